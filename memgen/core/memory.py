"""The external memory of a layer (paper, section 3): attention f_a, memory f_m, composition f_c.

A layer with memory turns the generative information h_g of a standard layer into

    h_a = f_a(h_g)          the preference of this input for each slot       Attention   -> Preference
    h_m = M h_a             the content that is read from the memory         Memory
    h   = f_c(h_g, h_m)     the output of the layer                          Composition

The three are separate modules. A forward hook can observe h_a and h_m, switch a memory off (replace h_m) or read a
single slot (replace h_a), without any change to the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from memgen.core.layers import Module, linear
from memgen.core.sparse import largest_sums, read_rows
from memgen.errors import MemgenError

Squash = Callable[[Tensor], Tensor]
"""A function that turns scores into weights."""

MEMORY_SCALE = 0.01
"""Standard deviation of a slot's starting values."""


@dataclass(frozen=True)
class Preference:
    """h_a: the weights of all slots, or of a few chosen slots with their index."""

    weights: Float[Tensor, "*rows chosen"]
    index: Int[Tensor, "*rows chosen"] | None = None


class Attention(nn.Module):
    """h_a = squash(A h_g + b_A), dense over all slots; with `top` only for the `top` slots with the largest scores.

    >>> attention = ATTENTIONS["softmax"](4, 3)
    >>> attention(torch.zeros(2, 4)).weights[0]
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """

    def __init__(self, features: int, slots: int, top: int | None = None, *, squash: Squash) -> None:
        super().__init__()
        self.A = linear(features, slots)
        self.squash = squash
        self.top = None if top is None else min(top, slots)

    def forward(self, h_g: Float[Tensor, "*rows features"]) -> Preference:
        scores = self.A(h_g)
        if self.top is None:
            return Preference(self.squash(scores))
        scores, index = scores.topk(self.top)
        return Preference(self.squash(scores), index)


class ProductKeys(nn.Module):
    """The `top` slots with the largest scores among n^2, at the cost of 2n scores (Lample and others, 2019).

    Slot (i, j) has the score (A_1 h_1 + b_1)_i + (A_2 h_2 + b_2)_j, where h_1 and h_2 are the halves of h_g. The rows
    of the corresponding dense attention's A are all pairs of half-keys. The search is exact: the sum of the r-th and
    the s-th largest score of the two halves can be one of the `top` largest only if r*s <= top.

    >>> preference = ProductKeys(features=6, slots=10_000, top=4, squash=torch.sigmoid)(torch.randn(5, 6))
    >>> preference.weights.shape, preference.index.shape
    (torch.Size([5, 4]), torch.Size([5, 4]))
    """

    pairs: Tensor

    def __init__(self, features: int, slots: int, top: int | None = None, *, squash: Squash) -> None:
        super().__init__()
        self.side = math.isqrt(slots)
        if self.side**2 != slots or features < 2:
            near = max(1, round(math.sqrt(slots))) ** 2
            raise MemgenError(
                f"product keys need a square number of slots and two units or more, not {slots} slots (try {near}) and "
                f"{features} units"
            )
        self.halves = (features // 2, features - features // 2)
        self.first, self.second = (linear(half, self.side) for half in self.halves)
        self.squash = squash
        self.top = min(top or slots, slots)
        self.register_buffer("pairs", pairs_of_ranks(self.top, self.side), persistent=False)

    def forward(self, h_g: Float[Tensor, "*rows features"]) -> Preference:
        h_1, h_2 = h_g.split(self.halves, -1)
        scores, index = largest_sums(self.first(h_1), self.second(h_2), self.pairs, self.top)
        return Preference(self.squash(scores), index)


def pairs_of_ranks(top: int, side: int) -> Int[Tensor, "2 pairs"]:
    """Pairs of ranks, counted from 0, in two lists of `side` numbers, whose sum may be one of the `top` largest.

    >>> pairs_of_ranks(top=3, side=5).tolist()
    [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]
    """
    reach = min(top, side)
    pairs = [(r, s) for r in range(reach) for s in range(min(reach, top // (r + 1)))]
    return torch.tensor(pairs).t().contiguous()


class Memory(nn.Module):
    """h_m = M h_a, without a bias. M is a trained parameter; a slot is a column of the paper's M.

    >>> memory = Memory(features=2, slots=3)
    >>> memory(Preference(torch.eye(3))).equal(memory.M)   # weight 1 for one slot returns that slot
    True
    """

    def __init__(self, features: int, slots: int, sparse: bool = False) -> None:
        super().__init__()
        self.sparse = sparse
        """Whether the gradient of M is sparse, so that a training step changes the chosen rows only."""
        # The paper's M is features x slots. It is stored transposed, so that a slot is a contiguous row.
        self.M = nn.Parameter(MEMORY_SCALE * torch.randn(slots, features))

    def forward(self, h_a: Preference) -> Float[Tensor, "*rows features"]:
        if h_a.index is None:
            return h_a.weights @ self.M
        if not self.sparse:  # a small memory with chosen slots: a plain gather with dense gradients
            return (h_a.weights.unsqueeze(-1) * self.M[h_a.index]).sum(-2)
        return read_rows(self.M, h_a.index, h_a.weights)


class Sum(nn.Module):
    """h = phi(h_g + h_m). With this composition every slot can be decoded and inspected."""

    def __init__(self, features: int) -> None:
        super().__init__()

    def forward(self, h_g: Float[Tensor, "*rows f"], h_m: Float[Tensor, "*rows f"]) -> Float[Tensor, "*rows f"]:
        # The paper does not say whether phi follows the sum; here it is applied in both compositions.
        return torch.relu(h_g + h_m)


class Mlp(nn.Module):
    """h = phi(a + b1*c), element by element, every coefficient a vector with one entry per unit:

        a =         a1 + a2*h_m + a3*h_g + a4*h_g*h_m
        c = sigmoid(c1 + c2*h_m + c3*h_g + c4*h_g*h_m)

    It starts as the identity on h_g >= 0 (a3 = c3 = 1, all others 0), so that training starts without memory.

    >>> h_g, h_m = torch.rand(5, 4), torch.randn(5, 4)
    >>> Mlp(4)(h_g, h_m).equal(h_g)
    True
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.a1, self.a2, self.a4, self.b1 = (nn.Parameter(torch.zeros(features)) for _ in range(4))
        self.c1, self.c2, self.c4 = (nn.Parameter(torch.zeros(features)) for _ in range(3))
        self.a3, self.c3 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.ones(features))

    def forward(self, h_g: Float[Tensor, "*rows f"], h_m: Float[Tensor, "*rows f"]) -> Float[Tensor, "*rows f"]:
        # Factoring out h_m saves one pass over all rows for a and one for c.
        a = self.a1 + self.a3 * h_g + (self.a2 + self.a4 * h_g) * h_m
        c = torch.sigmoid(self.c1 + self.c3 * h_g + (self.c2 + self.c4 * h_g) * h_m)
        return torch.relu(a + self.b1 * c)


def sparse_parameters(model: Module) -> list[str]:
    """Names of the parameters with sparse gradients: the memories that are read by index."""
    return [f"{name}.M" for name, module in model.named_modules() if isinstance(module, Memory) and module.sparse]


def softmax(scores: Float[Tensor, "*rows slots"]) -> Float[Tensor, "*rows slots"]:
    """Weights that sum to 1 over the slots."""
    return torch.softmax(scores, -1)


ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "sigmoid": partial(Attention, squash=torch.sigmoid),
    "softmax": partial(Attention, squash=softmax),
}
"""name -> f(features, slots), a module (..., features) -> Preference over all slots."""

SPARSE_ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "top": partial(Attention, squash=torch.sigmoid),
    "product": partial(ProductKeys, squash=torch.sigmoid),
}
"""name -> f(features, slots, top), a module (..., features) -> Preference for `top` slots, with their index."""

COMPOSITIONS: dict[str, Callable[[int], nn.Module]] = {"sum": Sum, "mlp": Mlp}
"""name -> f(features), a module (h_g, h_m) -> h."""
