"""Random numbers: one generator per purpose, derived from the user's seed, and noise that is fixed per example."""

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
"""Samples per block of an example's noise. Another value would change the results of all seeds."""


BINARISATION_SEED = 1234
"""The seed of test sets that are binarised once."""


class Purpose(IntEnum):
    """The purpose of a stream of random numbers; streams of different purposes are independent."""

    START_VALUES = 0
    TRAINING = 1
    STATISTICS = 2
    EVALUATION = 3
    SAMPLING = 4
    IMPUTATION = 5
    MASKS = 6
    WALK = 7
    CHOICES = 8
    CONDITIONS = 9
    PILOT = 10
    MODES = 11


def stream(seed: int, purpose: Purpose) -> int:
    """A 32-bit seed for torch, hashed so that the streams of neighbouring seeds and purposes are unrelated."""
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
    # RandomState, because numpy guarantees its stream: the published hashes of binarised test sets depend on it.
    uniform = np.random.RandomState(seed).random_sample(tuple(x.shape))
    return torch.from_numpy((uniform < x.double().cpu().numpy()).astype(np.float32)).to(x.device)


def row_keys(x: Float[Tensor, "rows columns"]) -> list[int]:
    """A key per row that depends on the row's content alone, so that its noise does not depend on the other rows.

    The content is read in single precision: the units of a column change the last digits of float64.

    >>> a, b, c = row_keys(torch.tensor([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
    >>> a == c, a == b
    (True, False)
    """
    content = (x.float() + 0.0).cpu().numpy()  # adding zero turns -0.0 into 0.0
    content = np.where(np.isnan(content), np.nan, content)  # all NaNs get the same bits
    return [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=4).digest(), "little") for row in content]


class ExampleNoise:
    """Standard normal noise that depends only on the seed, the example's key and the number of the block.

    A key is the example's index, or computed from its content (`row_keys`). An example has the same noise for any batch
    and chunk size of an evaluation, and examples with different keys have different noise. torch seeds its CPU
    generator with 32 bits. The examples get consecutive seeds, which cannot collide; of 10,000 hashes of 32 bits, two
    collide in one run out of a hundred.
    """

    def __init__(
        self, seed: int, keys: Sequence[int], sizes: tuple[int, ...], purpose: Purpose = Purpose.EVALUATION
    ) -> None:
        start = stream(seed, purpose)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.sizes = sizes

    def block(self) -> tuple[Float[Tensor, "BLOCK B d"], ...]:
        """The next block of every example, per level."""
        draws = [[torch.randn(BLOCK, d, generator=source) for d in self.sizes] for source in self.generators]
        return tuple(torch.stack(level, 1) for level in zip(*draws, strict=True))


class StepNoise(NamedTuple):
    """The noise of one step of a Markov chain, in float64."""

    normal: tuple[Float[Tensor, "1 B d"], ...]
    """The noise of z, per level."""
    uniform: Float[Tensor, "B D"]
    """The noise of x."""
    accept: Float[Tensor, " B"]


class RowNoise:
    """Noise of Markov chains, one chain per row, that depends only on the seed, the row's key and the step."""

    AHEAD = 10
    """Steps drawn at once, to save calls. Another value would change the results of all seeds."""

    def __init__(
        self, seed: int, keys: Sequence[int], sizes: tuple[int, ...], columns: int, device: torch.device
    ) -> None:
        start = stream(seed, Purpose.IMPUTATION)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.sizes, self.columns, self.device = sizes, columns, device

    def steps(self) -> Iterator[StepNoise]:
        """An endless iterator over steps."""
        while True:
            normal = self._stack(torch.randn, sum(self.sizes))
            uniform = self._stack(torch.rand, self.columns + 1)
            for z, u in zip(normal, uniform, strict=True):
                yield StepNoise(tuple(z.unsqueeze(0).split(self.sizes, -1)), u[:, :-1], u[:, -1])

    def _stack(self, distribution: Callable[..., Tensor], width: int) -> Float[Tensor, "ahead B width"]:
        draws = [distribution(self.AHEAD, width, generator=source, dtype=torch.float64) for source in self.generators]
        return torch.stack(draws, 1).to(self.device)


class Choices:
    """Uniform numbers for choosing among states, per row, independent of the noise of the states."""

    def __init__(self, seed: int, keys: Sequence[int], device: torch.device) -> None:
        start = stream(seed, Purpose.CHOICES)
        self.generators = [torch.Generator().manual_seed((start + key) % 2**32) for key in keys]
        self.device = device

    def uniform(self, n: int, width: int) -> Float[Tensor, "n B width"]:
        draws = [torch.rand(n, width, generator=source, dtype=torch.float64) for source in self.generators]
        return torch.stack(draws, 1).to(self.device)
