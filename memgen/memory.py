"""The external memory of a layer (paper, section 3): attention f_a, memory f_m, composition f_c.

A layer with memory turns the generative information h_g of a standard layer into

    h_a = f_a(h_g)          the preference of this input for each slot       Attention   -> Preference
    h_m = M h_a             what the memory recalls                          Memory
    h   = f_c(h_g, h_m)     both together                                    Composition

The three are modules of their own, so that a forward hook can look between them, silence a memory (replace h_m) or show
one slot (replace h_a) without a line of code in the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from memgen.layers import linear

MEMORY_SCALE = 0.01
"""Standard deviation of a slot's starting values."""


@dataclass(frozen=True)
class Preference:
    """h_a: how much an input wants of each slot; dense over all slots, or for a chosen few and which they are."""

    weights: Float[Tensor, "*rows chosen"]
    index: Int[Tensor, "*rows chosen"] | None = None


class Attention(nn.Module):
    """h_a = squash(A h_g + b_A), dense over all slots.

    >>> attention = ATTENTIONS["softmax"](4, 3)
    >>> attention(torch.zeros(2, 4)).weights[0]
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """

    def __init__(self, features: int, slots: int, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.A = linear(features, slots)
        self.squash = squash

    def forward(self, h_g: Float[Tensor, "*rows features"]) -> Preference:
        return Preference(self.squash(self.A(h_g)))


class Memory(nn.Module):
    """h_m = M h_a, without a bias; M is a trained parameter with one slot per column of the paper's matrix.

    >>> memory = Memory(features=2, slots=3)
    >>> memory(Preference(torch.eye(3))).equal(memory.M)   # asking for one slot returns that slot
    True
    """

    def __init__(self, features: int, slots: int) -> None:
        super().__init__()
        # The paper's M is features x slots. It is stored transposed, so that a slot is a contiguous row to gather.
        self.M = nn.Parameter(MEMORY_SCALE * torch.randn(slots, features))

    def forward(self, h_a: Preference) -> Float[Tensor, "*rows features"]:
        if h_a.index is None:
            return h_a.weights @ self.M
        return (h_a.weights.unsqueeze(-1) * self.M[h_a.index]).sum(-2)


class Sum(nn.Module):
    """h = phi(h_g + h_m): the composition of which every slot can be decoded and looked at."""

    def __init__(self, features: int) -> None:
        super().__init__()

    def forward(self, h_g: Float[Tensor, "*rows f"], h_m: Float[Tensor, "*rows f"]) -> Float[Tensor, "*rows f"]:
        # The paper's text leaves the last phi open for the sum; it is applied for both compositions.
        return torch.relu(h_g + h_m)


class Mlp(nn.Module):
    """h = phi(a + b1*c), element by element, every coefficient a vector with one entry per unit:

        a =         a1 + a2*h_m + a3*h_g + a4*h_g*h_m
        c = sigmoid(c1 + c2*h_m + c3*h_g + c4*h_g*h_m)

    It starts as the identity on h_g >= 0 (a3 = c3 = 1, all others 0): the net first learns without memory.

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
        # The terms with h_m are taken together, which saves a pass over all rows for a and one for c.
        a = self.a1 + self.a3 * h_g + (self.a2 + self.a4 * h_g) * h_m
        c = torch.sigmoid(self.c1 + self.c3 * h_g + (self.c2 + self.c4 * h_g) * h_m)
        return torch.relu(a + self.b1 * c)


ATTENTIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "sigmoid": partial(Attention, squash=torch.sigmoid),
    "softmax": partial(Attention, squash=partial(torch.softmax, dim=-1)),
}
"""name -> f(features, slots), a module (..., features) -> Preference."""

COMPOSITIONS: dict[str, Callable[[int], nn.Module]] = {"sum": Sum, "mlp": Mlp}
"""name -> f(features), a module (h_g, h_m) -> h."""
