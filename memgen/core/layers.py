"""The deterministic layers of both nets, and batch norm with exact statistics.

Dense         h = phi(norm(W h_in + b))
MemoryLayer   h = f_c(h_g, M f_a(h_g)) with h_g from a Dense layer

Every layer returns its pre-activation and its output. The local reconstruction compares the pre-activations of Q with
the outputs of P; the next layer reads the output. The feature axis is last; all axes before it are rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core import products
from memgen.core.rows import Moments, Total, normalise
from memgen.errors import MemgenError

EPSILON = 1e-5
"""Default of the constant that is added to a variance before its square root is taken."""


def linear(inputs: int, outputs: int) -> nn.Linear:
    """W h + b with the paper's starting values: W Glorot uniform with gain 1, b zero."""
    layer = products.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@runtime_checkable
class Module(Protocol):
    """The methods of torch.nn.Module that a model needs."""

    training: bool

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def state_dict(self, *, prefix: str = "") -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def double(self) -> Any: ...


class Activation(NamedTuple):
    """What a layer returns."""

    pre: Float[Tensor, "*rows units"]
    """W h + b, before normalisation; with batch norm in training W h, because batch norm would subtract b."""
    output: Float[Tensor, "*rows units"]


class Dense(nn.Module):
    """h = phi(norm(W h_in + b)), phi = ReLU.

    >>> Dense(3, 5, BatchNorm)(torch.randn(8, 3)).output.shape
    torch.Size([8, 5])
    """

    def __init__(self, inputs: int, units: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        # The bias before batch norm has no effect, but the paper counts it as a parameter.
        self.linear = linear(inputs, units)
        self.norm = norm(units)

    def forward(self, h: Float[Tensor, "*rows inputs"]) -> Activation:
        if isinstance(self.norm, BatchNorm):
            # Leaving the bias out saves a pass over the rows to add it, and one to sum its gradient, which is zero.
            pre = products.linear(h, self.linear.weight, None if self.training else self.linear.bias)
        else:
            pre = self.linear(h)
        return Activation(pre, torch.relu(self.norm(pre)))


class Frozen(nn.Module):
    """A Dense layer for evaluation, with its batch norm merged into W and b: phi(W h + b), without a pre-activation.

    >>> dense = Dense(3, 5, BatchNorm).eval()
    >>> _ = dense.norm.mean.zero_(), dense.norm.variance.fill_(2.0)
    >>> h = torch.randn(8, 3)
    >>> torch.allclose(Frozen(dense)(h).output, dense(h).output, atol=1e-6)
    True
    """

    def __init__(self, dense: Dense) -> None:
        super().__init__()
        weight, bias = dense.linear.weight.double(), dense.linear.bias.double()
        if isinstance(norm := dense.norm, BatchNorm):
            scale = norm.gamma.double() / torch.sqrt(norm.variance.double() + norm.epsilon)
            weight, bias = weight * scale.unsqueeze(1), (bias - norm.mean.double()) * scale + norm.beta.double()
        self.register_buffer("weight", weight.detach().to(dense.linear.weight))
        self.register_buffer("bias", bias.detach().to(dense.linear.weight))

    weight: Tensor
    bias: Tensor

    def forward(self, h: Float[Tensor, "*rows inputs"]) -> Activation:
        output = torch.relu(products.linear(h, self.weight, self.bias))
        return Activation(output, output)


class MemoryLayer(nn.Module):
    """h = f_c(h_g, h_m) with h_g = dense(h_in), h_a = attention(h_g), h_m = memory(h_a)."""

    def __init__(self, dense: nn.Module, attention: nn.Module, memory: nn.Module, composition: nn.Module) -> None:
        super().__init__()
        self.dense = dense
        self.attention = attention
        self.memory = memory
        self.composition = composition

    def forward(self, h: Float[Tensor, "*rows inputs"]) -> Activation:
        pre, h_g = self.dense(h)
        h_a = self.attention(h_g)
        h_m = self.memory(h_a)
        return Activation(pre, self.composition(h_g, h_m))


class BatchNorm(nn.Module):
    """gamma * (h - mean) / sqrt(variance + epsilon) + beta, per unit.

    In training, mean and (biased) variance are those of all rows of the batch: with K samples, all K*B of them. In
    evaluation they are the stored statistics of the whole training set, which `write_statistics` collects. There are no
    moving averages, because they would lag behind the weights. Statistics that were never collected are NaN, so that
    their use shows.
    """

    mean: Tensor
    variance: Tensor
    total: Total | None = None
    """Where the rows of a batch are divided among processes (`divided`)."""

    def __init__(self, units: int, epsilon: float = EPSILON) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(units))
        self.beta = nn.Parameter(torch.zeros(units))
        self.register_buffer("mean", torch.full((units,), torch.nan))
        self.register_buffer("variance", torch.full((units,), torch.nan))

    def forward(self, h: Float[Tensor, "*rows units"]) -> Float[Tensor, "*rows units"]:
        if self.training:
            return normalise(h, self.gamma, self.beta, self.epsilon, self.total)
        rows = h.reshape(-1, h.shape[-1])
        return F.batch_norm(rows, self.mean, self.variance, self.gamma, self.beta, eps=self.epsilon).view_as(h)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "batch": BatchNorm,
    "layer": lambda units, epsilon=EPSILON: nn.LayerNorm(units, epsilon),
    "none": lambda units, epsilon=EPSILON: nn.Identity(),
}
"""name -> f(units, epsilon), a module that keeps the shape."""


class _Reached(Exception):  # noqa: N818
    """The layer whose statistics are collected has received its input; the layers after it need not run."""


@torch.no_grad()
def write_statistics(
    model: Module,
    chunks: Callable[[], Iterable[tuple[Any, ...]]],
    run: Callable[..., object] | None = None,
    total: Total | None = None,
) -> None:
    """Write the exact statistics of a data set into every batch norm of `model`. `chunks()` yields the arguments of
    `run`, a pass through the model, by default of the model itself.

    The layers are processed in order, each after the exact statistics of all layers before it are set. The result is
    that of a single pass over all the data at once, in bounded memory. (Averaging the moments of mini-batches would
    not give that: deeper layers would get inputs normalised with other statistics.)
    `model.modules()` must list the batch norms in the order in which they run, and `chunks()` must give the same
    chunks each time it is called; each batch norm runs once in a pass. With `total` these are the chunks of one of many
    processes, and the statistics are those of all.
    """
    training = model.training
    model.train(False)
    for norm in batch_norms(model):
        gathered = Moments()
        handle = norm.register_forward_pre_hook(partial(_gather, gathered))
        try:
            for arguments in chunks():
                with suppress(_Reached):
                    (run or cast(nn.Module, model))(*arguments)
        finally:
            handle.remove()
        if total is not None:
            gathered.exchange(total, len(norm.mean))
        norm.mean.copy_(gathered.mean)
        norm.variance.copy_(gathered.variance)
    model.train(training)


def _gather(moments: Moments, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    moments.add(inputs[0])
    raise _Reached


def batch_norms(model: Module) -> list[BatchNorm]:
    return [module for module in model.modules() if isinstance(module, BatchNorm)]


@contextmanager
def divided(model: Module, total: Total | None) -> Iterator[None]:
    """A context in which batch norm in training takes its moments over the rows of all processes."""
    for norm in batch_norms(model):
        norm.total = total
    try:
        yield
    finally:
        for norm in batch_norms(model):
            norm.total = None


def has_statistics(model: Module) -> bool:
    """Whether every batch norm of the model has statistics, which are those of the current weights."""
    return all(bool(norm.mean.isfinite().all()) for norm in batch_norms(model))


def require_statistics(model: Module) -> None:
    """Check that the model can run in evaluation mode."""
    if not has_statistics(model):
        raise MemgenError(
            "the batch-norm statistics of these weights were never collected; call memgen.collect_statistics"
        )


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """A context with the model in evaluation mode. The previous mode is restored at the end, also after an error."""
    require_statistics(model)
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)


M = TypeVar("M", bound=Module)


def frozen(net: M) -> M:
    """A net for evaluation without gradients: batch norms are merged into the weights, all else is shared.

    A net with hooks is returned unchanged, so that the hooks run."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in net.modules()):
        return net
    return cast(M, _frozen(cast(nn.Module, net)))


def _frozen(module: nn.Module) -> nn.Module:
    if type(module) is Dense and isinstance(module.norm, (BatchNorm, nn.Identity)):
        return Frozen(module)
    copied = copy.copy(module)
    copied._modules = {name: child and _frozen(child) for name, child in module._modules.items()}
    return copied


def forget_statistics(model: Module) -> None:
    """Set all statistics to NaN before the weights change, because they would be wrong for the new weights."""
    for norm in batch_norms(model):
        norm.mean.fill_(torch.nan)
        norm.variance.fill_(torch.nan)
