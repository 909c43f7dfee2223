"""Random numbers: one generator per purpose, derived from the user's seed, and noise that belongs to an example."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

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
    IMPUTATION = 5
    MASKS = 6
    WALK = 7
    CHOICES = 8


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


def row_keys(x: Float[Tensor, "rows columns"]) -> list[int]:
    """A key per row that depends on its content alone, so that its noise is the same beside any other rows.

    >>> a, b, c = row_keys(torch.tensor([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
    >>> a == c, a == b
    (True, False)
    """
    content = (x.double() + 0.0).cpu().numpy()  # adding zero makes one of the two zeros that floats have
    content = np.where(np.isnan(content), np.nan, content)  # and this one of the many NaNs
    return [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=4).digest(), "little") for row in content]


class ExampleNoise:
    """Standard normal noise that is a function of the seed, the example's key and the block of samples alone; a key is
    the example's index, or made of its content (`row_keys`).

    Whatever batches and chunks an evaluation uses, example i meets the same noise, and no two examples share any. torch
    seeds its CPU generator with 32 bits, so the examples get consecutive seeds, which cannot collide, not hashed ones,
    which would (10,000 hashes of 32 bits collide in one run out of a hundred).
    """

    def __init__(self, seed: int, keys: Sequence[int], sizes: tuple[int, ...]) -> None:
        start = stream(seed, Purpose.EVALUATION)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.sizes = sizes

    def block(self) -> tuple[Float[Tensor, "BLOCK B d"], ...]:
        """The next block of every example, per level."""
        draws = [[torch.randn(BLOCK, d, generator=source) for d in self.sizes] for source in self.generators]
        return tuple(torch.stack(level, 1) for level in zip(*draws, strict=True))


class StepNoise(NamedTuple):
    """What one step of a chain needs, in float64."""

    normal: tuple[Float[Tensor, "1 B d"], ...]
    """For z, per level."""
    uniform: Float[Tensor, "B D"]
    """For x."""
    accept: Float[Tensor, " B"]


class RowNoise:
    """Noise of Markov chains, one chain per row, that is a function of the seed, the row's key and the step alone."""

    AHEAD = 10
    """Steps drawn at once: fewer calls. Fixed: it is part of what a seed means."""

    def __init__(
        self, seed: int, keys: Sequence[int], sizes: tuple[int, ...], columns: int, device: torch.device
    ) -> None:
        start = stream(seed, Purpose.IMPUTATION)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.sizes, self.columns, self.device = sizes, columns, device

    def steps(self) -> Iterator[StepNoise]:
        """Without end."""
        while True:
            normal = self._stack(torch.randn, sum(self.sizes))
            uniform = self._stack(torch.rand, self.columns + 1)
            for z, u in zip(normal, uniform, strict=True):
                yield StepNoise(tuple(z.unsqueeze(0).split(self.sizes, -1)), u[:, :-1], u[:, -1])

    def _stack(self, kind: Callable[..., Tensor], width: int) -> Float[Tensor, "ahead B width"]:
        draws = [kind(self.AHEAD, width, generator=source, dtype=torch.float64) for source in self.generators]
        return torch.stack(draws, 1).to(self.device)


class Choices:
    """Uniform numbers for choosing among states, per row, apart from the noise that makes the states."""

    def __init__(self, seed: int, keys: Sequence[int], device: torch.device) -> None:
        start = stream(seed, Purpose.CHOICES)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.device = device

    def uniform(self, n: int, width: int) -> Float[Tensor, "n B width"]:
        draws = [torch.rand(n, width, generator=source, dtype=torch.float64) for source in self.generators]
        return torch.stack(draws, 1).to(self.device)
