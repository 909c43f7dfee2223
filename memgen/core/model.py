"""The deep generative model: P-nets with memory, Q-nets without, any number of stochastic levels.

    P:  z_L ~ N(0, I),   z_l ~ p(z_l | z_{l+1}),   x ~ p(x | z_1)
    Q:  z_1 ~ q(z_1 | x),   z_{l+1} ~ q(z_{l+1} | z_l)

A model has two main methods. `infer` returns z and log q(z|x) per level. `joint` returns log p(x|z) and log p(z) per
level. Together they give

    log w = log p(x|z) + log p(z) - log q(z|x)

whose mean over K samples is the ELBO, whose log-mean-exp is the importance-weighted bound, and whose log-mean-exp over
thousands of samples estimates log p(x). Samples come first: z is (K, B, d), terms are (K, B). `GenerativeModel` is the
protocol, which the objective and all tasks are written against; `DGM` is the paper's model, its first implementation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from memgen.core.answers import Codes as Codes
from memgen.core.answers import Encoding as Encoding
from memgen.core.answers import Inference as Inference
from memgen.core.answers import Joint as Joint
from memgen.core.answers import Levels as Levels
from memgen.core.answers import Posterior as Posterior
from memgen.core.answers import Terms as Terms
from memgen.core.batch import Batch as Batch
from memgen.core.layers import Activation, MemoryLayer, Module
from memgen.core.likelihoods import LOG_2PI, Distribution, GaussianColumns, Head, Likelihood


@runtime_checkable
class GenerativeModel(Module, Protocol):
    """What the objective and all tasks require of a model p(x, z), q(z|x), which is a torch.nn.Module.

    z may be one tensor, the levels of a hierarchy or the steps of a recurrence: a tuple of tensors, one per level.
    """

    @property
    def latent(self) -> tuple[int, ...]:
        """Size of z at each level, from the data upwards."""
        ...

    @property
    def mask(self) -> bool:
        """Whether Q gets the mask of observed entries as an input, and so can read rows with missing values."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """The type of p(x|z), which determines the values that x may have."""
        ...

    def noise(self, K: int, B: int, generator: torch.Generator) -> Levels:
        """eps_l ~ N(0, I), (K, B, d_l), from which `infer` and `prior` compute z."""
        ...

    def encode(self, batch: Batch) -> Any:
        """The part of q(z|x) that does not depend on K, in any form; it is passed to `infer` and `log_q`."""
        ...

    def infer(self, encoding: Any, noise: Levels) -> Posterior:
        """z ~ q(z|x), computed from the noise, and log q(z|x). Zero noise gives the mean of q."""
        ...

    def log_q(self, encoding: Any, z: Levels, *, fixed: bool = False) -> Terms:
        """log q(z|x) of a given z; with `fixed` gradients flow through z but not into the parameters of q."""
        ...

    def joint(self, batch: Batch, z: Levels) -> Joint:
        """log p(x|z) over the observed entries, and log p(z)."""
        ...

    def log_p_z(self, batch: Batch, z: Levels) -> Terms:
        """log p(z) as in `joint`, without x."""
        ...

    def prior(self, noise: Levels, batch: Batch) -> Levels:
        """z ~ p(z), computed from the noise."""
        ...

    def decode(self, z: Codes, batch: Batch) -> Distribution:
        """p(x|z)"""
        ...


def infer_all(model: GenerativeModel, batch: Batch, noise: Levels) -> Inference:
    """All terms of log w for K = len(noise[0]) samples of every row."""
    posterior = model.infer(model.encode(batch), noise)
    return Inference.of(posterior, model.joint(batch, posterior.z))


def standard_noise(model: GenerativeModel, K: int, B: int, generator: torch.Generator) -> Levels:
    """eps_l ~ N(0, I) for every level, on the generator's device."""
    return tuple(torch.randn(K, B, d, generator=generator, device=generator.device) for d in model.latent)


class StandardPrior:
    """p(z) = N(0, I) at every level, for models that need no other: what the protocol asks about it."""

    latent: tuple[int, ...]

    noise = standard_noise

    def prior(self, noise: Levels, batch: Batch) -> Levels:
        """z_l = eps_l"""
        return noise

    def log_p_z(self, batch: Batch, z: Levels) -> Terms:
        """log N(z_l; 0, I)"""
        return tuple(map(log_prior, z))


def mean_code(model: GenerativeModel, batch: Batch) -> Posterior:
    """The result of `infer` without noise: z is the mean of q(z|x), with K = 1."""
    return model.infer(model.encode(batch), tuple(batch.x.new_zeros(1, len(batch), d) for d in model.latent))


class Conditional(nn.Module):
    """A net that turns its input into a distribution: deterministic layers, then a head.

    P and Q differ only in the memories of P's layers. With `skip` the head also reads the net's input: a linear path
    around the layers, which helps on small tables.

    >>> from memgen.core.layers import NORMS, Dense
    >>> from memgen.core.likelihoods import Gaussian
    >>> net = Conditional([Dense(5, 8, NORMS["batch"])], Gaussian(8, 2))
    >>> q, features = net(torch.randn(10, 5))
    >>> q.mean.shape, features[0].output.shape
    (torch.Size([10, 2]), torch.Size([10, 8]))
    """

    def __init__(self, layers: Sequence[nn.Module], head: nn.Module, skip: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = head
        self.skip = skip and len(layers) > 0

    def forward(self, h: Float[Tensor, "*rows inputs"]) -> tuple[Distribution, tuple[Activation, ...]]:
        features: list[Activation] = []
        inputs = h
        for layer in self.layers:
            result: Activation | Tensor = layer(h)
            if isinstance(result, Activation):
                features.append(result)
                h = result.output
            else:  # a layer without parameters, such as a View
                h = result
        return self.head(torch.cat([h, inputs], -1) if self.skip else h), tuple(features)


class DGM(nn.Module):
    """A deep generative model: `q` and `p` list one Conditional per stochastic level, from the data upwards.

    q[0] gives q(z_1|x), q[l] gives q(z_{l+1}|z_l); p[0] gives p(x|z_1), p[l] gives p(z_l|z_{l+1}). The prior of the
    top level is N(0, I). With `mask` Q gets the mask of observed entries, so that it can learn from incomplete rows.
    """

    def __init__(self, q: Sequence[Conditional], p: Sequence[Conditional], mask: bool = False) -> None:
        super().__init__()
        self.mask = mask
        # Q is registered before P: write_statistics needs the order in which the layers run.
        self.q = nn.ModuleList(q)
        self.p = nn.ModuleList(p)
        self.latent: tuple[int, ...] = tuple(cast(Head, net.head).columns for net in q)
        """Size of z at each level, from the data upwards."""

    @property
    def likelihood(self) -> Head:
        """The head of p(x|z)."""
        return cast(Head, self.p[0].head)

    noise = standard_noise

    def encode(self, batch: Batch) -> Encoding:
        """q(z_1|x). Unobserved entries are replaced by zeros, which is the column's mean if the likelihood standardises
        its columns. With `mask` the mask of observed entries is a second input of Q."""
        x, observed, head = batch.x, batch.observed, self.likelihood
        h = head.encode(x if observed is None else x.where(observed, 0))
        if observed is not None:
            h = h * observed[..., head.owners]
        if self.mask:
            h = torch.cat([h, torch.ones_like(x) if observed is None else observed.to(x)], -1)
        return Encoding(*self.q[0](h))

    def exact_encoder(self) -> Callable[[Batch], Encoding]:
        """`encode` in float64, rounded at the end, without features.

        In float32 the last bits of a row's encoding depend on the other rows of the batch. log w can amplify that
        difference to 1e-3 nats."""
        encoder, exact = copy.copy(self), cast(Conditional, copy.deepcopy(self.q[0]).double())
        encoder._modules = {**self._modules, "q": nn.ModuleList([exact])}

        def encode(batch: Batch) -> Encoding:
            q = encoder.encode(Batch(batch.x.double(), batch.observed)).q
            return Encoding(GaussianColumns(q.mean.to(batch.x), q.log_variance.to(batch.x)), ())

        return encode

    def infer(self, encoding: Encoding, noise: Levels) -> Posterior:
        """z_l = mu + sigma * noise_l, level by level, with log q of each."""
        z, log_q, up = [], [], []
        q, features = encoding
        for net, eps in zip([*self.q[1:], None], noise, strict=True):
            z_l, log_q_l = q.reparameterise(eps)
            z.append(z_l)
            log_q.append(log_q_l)
            up.append(features)
            if net is not None:
                q, features = net(z_l)
        return Posterior(tuple(z), tuple(log_q), tuple(up))

    def log_q(self, encoding: Encoding, z: Levels, *, fixed: bool = False) -> Terms:
        """log q of given z, per level; with `fixed` gradients flow through z but not into the parameters of q."""
        first = encoding.q.detach() if fixed else encoding.q
        above = [(as_constant(net, z_l) if fixed else net(z_l))[0] for net, z_l in zip(self.q[1:], z[:-1], strict=True)]
        return tuple(q.log_prob(z_l) for q, z_l in zip([first, *above], z, strict=True))

    def joint(self, batch: Batch, z: Levels) -> Joint:
        """log p(x|z_1) over the observed entries, log p(z_l|z_{l+1}), and log N(z_L; 0, I) of the top level."""
        p_x, features = self.p[0](z[0])
        down = [features[::-1]]
        log_p_x = p_x.log_prob(batch.x, batch.observed)
        log_p_z = []
        for net, below, above in zip(self.p[1:], z[:-1], z[1:], strict=True):
            p_z, features = net(above)
            log_p_z.append(p_z.log_prob(below))
            down.append(features[::-1])
        log_p_z.append(log_prior(z[-1]))
        return Joint(log_p_x, tuple(log_p_z), tuple(down))

    def log_p_z(self, batch: Batch, z: Levels) -> Terms:
        """log p(z_l|z_{l+1}) and log N(z_L; 0, I) of the top level."""
        below = [net(above)[0].log_prob(z_l) for net, z_l, above in zip(self.p[1:], z[:-1], z[1:], strict=True)]
        return (*below, log_prior(z[-1]))

    def forward(self, batch: Batch, noise: Levels) -> Inference:
        return infer_all(self, batch, noise)

    def prior(self, noise: Levels, batch: Batch) -> Levels:
        """z_L is the noise of the top level, then z_l = mu(z_{l+1}) + sigma(z_{l+1}) * noise_l."""
        z = [noise[-1]]
        for net, eps in zip(reversed(self.p[1:]), reversed(noise[:-1]), strict=True):
            z.append(net(z[-1])[0].reparameterise(eps)[0])
        return tuple(reversed(z))

    def decode(self, z: Codes, batch: Batch) -> Distribution:
        """p(x|z_1), which does not depend on the levels above."""
        return cast(Distribution, self.p[0](z[0])[0])

    def memory_layers(self) -> dict[str, MemoryLayer]:
        """The layers with memory by name, numbered from the data upwards, as in the paper: layer 1 is next to x."""
        named = {}
        for level, net in enumerate(self.p, 1):
            layers = [layer for layer in cast(Conditional, net).layers if any(True for _ in layer.parameters())]
            for index, layer in enumerate(reversed(layers), 1):
                if isinstance(layer, MemoryLayer):
                    named[f"layer {index}" if len(self.p) == 1 else f"level {level} layer {index}"] = layer
        return named


def log_prior(z: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows"]:
    """log N(z; 0, I)"""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * LOG_2PI)


def as_constant(net: nn.Module, h: Float[Tensor, "*rows inputs"]) -> tuple[GaussianColumns, tuple[Activation, ...]]:
    """net(h) with its parameters held fixed."""
    constants = {name: parameter.detach() for name, parameter in net.named_parameters()}
    return cast("tuple[GaussianColumns, tuple[Activation, ...]]", functional_call(net, constants, (h,)))


def count_parameters(module: nn.Module) -> int:
    """Weights, biases and the gamma and beta of batch norm; not its statistics."""
    return sum(parameter.numel() for parameter in module.parameters())
