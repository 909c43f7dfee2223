"""log w of many samples of a few rows, for the paper's models: P as a plan.

The result is that of `tasks.density.log_weights`; tests/tasks/test_evaluator.py compares both. A few hundred rows at a
time pass through the whole net, so that intermediate results stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from memgen.accelerate.library import serves
from memgen.accelerate.program import Plan, Program, blas
from memgen.core.layers import Frozen, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian, GaussianColumns
from memgen.core.memory import Attention, Memory, Mlp, ProductKeys, Sum, pairs_of_ranks, softmax
from memgen.core.model import DGM, Conditional, Levels
from memgen.core.products import Linear

MOST_PAIRS = 1024
"""Maximum number of pairs of ranks, because C sorts them by insertion."""
ROWS = 400
"""Number of rows that pass through the net at once; the fastest of 200 to 2,000."""


def supports(model: DGM) -> bool:
    """Whether P of a frozen model can be planned: the classes of the paper's models, one level, matching
    sizes, nothing hooked, float32 on the CPU, and a torch whose matrix products are MKL's."""
    p = model.p[0]
    return (
        type(model) is DGM
        and not model.mask
        and len(model.p) == 1
        and type(p) is Conditional
        and not p.skip
        and type(p.head) in (Bernoulli, Gaussian)
        and all(map(linear_fits, p.head.children()))
        and all(map(_layer_fits, p.layers))
        and _sizes_fit(model)
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        and not has_global_hooks()
        and serves(*model.parameters(), *(buffer for buffer in p.buffers() if buffer.is_floating_point()))
        and blas()
    )


def _sizes_fit(model: DGM) -> bool:
    p = cast(Conditional, model.p[0])
    layers = [cast(Frozen, layer.dense if isinstance(layer, MemoryLayer) else layer) for layer in p.layers]
    return sizes_chain(layers, model.latent[0], [*p.head.children()], model.likelihood.columns)


def sizes_chain(layers: Sequence[nn.Module], inputs: int, heads: Sequence[nn.Module], outputs: int) -> bool:
    """Whether the sizes of consecutive linear maps match, from `inputs` on, and all heads have `outputs` outputs."""
    for layer in layers:
        units, expected = cast(Tensor, layer.weight).shape
        if expected != inputs or len(cast(Tensor, layer.bias)) != units:
            return False
        inputs = units
    return all(cast(Tensor, head.weight).shape == (outputs, inputs) for head in heads)


def _layer_fits(layer: nn.Module) -> bool:
    if type(layer) is MemoryLayer:
        return type(layer.dense) is Frozen and recall_fits(layer)
    return type(layer) is Frozen


def recall_fits(layer: MemoryLayer) -> bool:
    """Whether the memory of a layer is one of the paper's, dense over all slots, or read by product keys."""
    attention, memory = layer.attention, layer.memory
    return (
        (_dense_fits(attention, memory) or _keys_fit(attention, memory))
        and attention.squash in (torch.sigmoid, softmax)
        and type(layer.composition) in (Mlp, Sum)
    )


def _dense_fits(attention: nn.Module, memory: nn.Module) -> bool:
    return (
        type(attention) is Attention
        and attention.top is None
        and linear_fits(attention.A)
        and type(memory) is Memory
        and not memory.sparse
        and attention.A.weight.shape == memory.M.shape  # slots and features
    )


def _keys_fit(attention: nn.Module, memory: nn.Module) -> bool:
    return (
        type(attention) is ProductKeys
        and type(memory) is Memory
        and memory.sparse
        and memory.M.shape == (attention.side**2, sum(attention.halves))
        and all(map(linear_fits, (attention.first, attention.second)))
        and [*map(_sizes, (attention.first, attention.second))] == [(attention.side, half) for half in attention.halves]
        and attention.pairs.shape[1] <= MOST_PAIRS
        and attention.pairs.device.type == "cpu"
        and attention.pairs.equal(pairs_of_ranks(attention.top, attention.side))  # the kernel relies on it
    )


def _sizes(linear: nn.Linear) -> tuple[int, ...]:
    return tuple(linear.weight.shape)


def linear_fits(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, Linear) and module.bias is not None


def read(layer: MemoryLayer) -> int:
    """The number of slots that an input reads: all slots, or the chosen ones."""
    keys = layer.attention
    return keys.top if isinstance(keys, ProductKeys) else len(cast(Memory, layer.memory).M)


class Chosen(NamedTuple):
    """Buffers of product keys: the scores of both halves, and the chosen slots."""

    first: Float[Tensor, "rows side"]
    second: Float[Tensor, "rows side"]
    slots: Int[Tensor, "rows top"]


def recall(
    plan: Plan, layer: MemoryLayer, h_g: Tensor, h_a: Tensor, h_m: Tensor, out: Tensor, chosen: Chosen | None = None
) -> None:
    """h_a = f_a(h_g), h_m = M h_a and f_c(h_g, h_m); `chosen` is for product keys."""
    attention, memory, composition = layer.attention, cast(Memory, layer.memory), layer.composition
    if chosen is not None:
        _choose(plan, cast(ProductKeys, attention), h_g, h_a, chosen)
    else:
        plan.linear(cast(Attention, attention).A, h_g, h_a)
    if attention.squash is softmax:
        plan.add("softmax", h_a, h_a)
    else:
        plan.add("sigmoid", h_a, h_a)
    if chosen is not None:
        plan.add("read_rows", memory.M, chosen.slots, h_a, h_m)
    else:
        plan.product(h_a, memory.M, h_m)
    if isinstance(composition, Mlp):
        plan.add("mlp", h_g, h_m, coefficients(composition), out)
    else:
        plan.add("add", h_g, h_m, out)


def _choose(plan: Plan, keys: ProductKeys, h_g: Tensor, scores: Tensor, chosen: Chosen) -> None:
    """The slots with the largest scores, and these scores."""
    h_1, h_2 = h_g.split(keys.halves, 1)
    plan.linear(keys.first, h_1, chosen.first)
    plan.linear(keys.second, h_2, chosen.second)
    plan.add("largest_sums", chosen.first, chosen.second, keys.pairs.contiguous(), scores, chosen.slots)


def coefficients(m: Mlp) -> tuple[Tensor, ...]:
    """The coefficients in the order of kernels.c."""
    return m.a1, m.a2, m.a3, m.a4, m.b1, m.c1, m.c2, m.c3, m.c4


class Decoder:
    """log w of K samples of rows x with the posterior q, a function of the noise."""

    def __init__(self, model: DGM, x: Float[Tensor, "B D"], q: GaussianColumns, K: int) -> None:
        self.plan, self.x = Plan(), x.contiguous()
        (B, d), new = q.mean.shape, x.new_empty
        self.noise, h, log_q, log_p = new(K, B, d), new(K * B, d), new(K, B), new(K * B)
        self.log_w = new(K, B, dtype=torch.float64)
        z, p = h, cast(Conditional, model.p[0])
        self.plan.add("reparameterise", q.mean.contiguous(), q.log_variance.contiguous(), self.noise, z, log_q)
        for layer in p.layers:
            h = self._layer(layer, h)
        self._head(p.head, h, K, log_p)
        self.plan.add("log_weights", log_p, z, log_q, self.log_w)
        self.program = Program([self.plan], [])

    def _layer(self, layer: nn.Module, h: Tensor) -> Tensor:
        dense = cast(Frozen, layer.dense if isinstance(layer, MemoryLayer) else layer)
        h_g = h.new_empty(len(h), len(dense.bias))
        self.plan.product(h, dense.weight.t(), h_g)
        self.plan.add("add_bias_relu", h_g, dense.bias)
        if not isinstance(layer, MemoryLayer):
            return h_g
        h_a, h_m, out = h.new_empty(len(h), read(layer)), *(torch.empty_like(h_g) for _ in "mo")
        recall(self.plan, layer, h_g, h_a, h_m, out, self._chosen(layer.attention, h_a))
        return out

    def _chosen(self, attention: nn.Module, h_a: Tensor) -> Chosen | None:
        if not isinstance(attention, ProductKeys):
            return None
        first, second = (h_a.new_empty(len(h_a), attention.side) for _ in attention.halves)
        return Chosen(first, second, torch.empty_like(h_a, dtype=torch.int64))

    def _head(self, head: nn.Module, h: Tensor, K: int, log_p: Tensor) -> None:
        shape = (len(h), self.x.shape[1])
        if isinstance(head, Bernoulli):
            products = h.new_empty(shape)
            self.plan.product(h, head.logits.weight.t(), products)
            self.plan.add("bernoulli", products, head.logits.bias, self.x, K, log_p)
            return
        head = cast(Gaussian, head)
        mean, raw = h.new_empty(shape), h.new_empty(shape)
        self.plan.linear(head.mean, h, mean)
        self.plan.linear(head.log_variance, h, raw)
        self.plan.add("gaussian", mean, raw, self.x, K, float(head.floor) ** 2, log_p)

    def __call__(self, noise: Float[Tensor, "K B d"]) -> Float64[Tensor, "K B"]:
        self.noise.copy_(noise)
        self.program.run()
        return self.log_w.clone()


class Decoders:
    """`Decoder` for any number of samples, which are processed in chunks."""

    def __init__(self, model: DGM, x: Float[Tensor, "B D"], q: GaussianColumns) -> None:
        self.model, self.x, self.q = model, x, q
        self.made: dict[int, Decoder] = {}

    def __call__(self, noise: Levels) -> Float64[Tensor, "K B"]:
        return torch.cat([self._of(len(samples))(samples) for samples in noise[0].split(max(1, ROWS // len(self.x)))])

    def _of(self, K: int) -> Decoder:
        if K not in self.made:
            self.made[K] = Decoder(self.model, self.x, self.q, K)
        return self.made[K]
