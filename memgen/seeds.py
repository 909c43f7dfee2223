"""Random numbers: one generator per purpose, derived from the user's seed, and noise that belongs to an example."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from memgen.errors import MemgenError

BLOCK = 250
"""Samples per block of an example's noise. Fixed: it is part of what a seed means."""


BINARISATION_SEED = 1234
"""Of test sets that are binarised once."""


class Purpose(IntEnum):
    """What a stream of random numbers is for; streams of different purposes have nothing in common."""

    START_VALUES = 0
    TRAINING = 1
    STATISTICS = 2
    EVALUATION = 3
    SAMPLING = 4


def stream(seed: int, purpose: Purpose) -> int:
    """A 32-bit seed for torch, spread out so that neighbouring seeds and purposes are unrelated."""
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1)[0])


def generator(seed: int, purpose: Purpose, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(stream(seed, purpose))


def binarise(x: Float[Tensor, "rows columns"], seed: int = BINARISATION_SEED) -> Float[Tensor, "rows columns"]:
    """Draw each value as 0 or 1 with probability x, the same way on every machine; row i does not depend on later rows.

    >>> binarise(torch.tensor([[0.0, 0.5, 1.0]]))
    tensor([[0., 0., 1.]])
    """
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise MemgenError(f"only values in [0, 1] can be binarised, these go from {x.min():g} to {x.max():g}")
    # RandomState, because its stream is frozen for good: published hashes of binarised test sets rest on it.
    uniform = np.random.RandomState(seed).random_sample(tuple(x.shape))
    return torch.from_numpy((uniform < x.double().cpu().numpy()).astype(np.float32)).to(x.device)


class ExampleNoise:
    """Standard normal noise that is a function of the seed, the example's index and the block of samples alone.

    Whatever batches and chunks an evaluation uses, example i meets the same noise, and no two examples share any. torch
    seeds its CPU generator with 32 bits, so the examples get consecutive seeds, which cannot collide, not hashed ones,
    which would (10,000 hashes of 32 bits collide in one run out of a hundred).
    """

    def __init__(self, seed: int, indices: range, sizes: tuple[int, ...]) -> None:
        start = stream(seed, Purpose.EVALUATION)
        self.generators = [torch.Generator().manual_seed((start + index) % 2**32) for index in indices]
        self.sizes = sizes

    def block(self) -> tuple[Float[Tensor, "BLOCK B d"], ...]:
        """The next block of every example, per level."""
        draws = [[torch.randn(BLOCK, d, generator=own) for d in self.sizes] for own in self.generators]
        return tuple(torch.stack(level, 1) for level in zip(*draws, strict=True))
