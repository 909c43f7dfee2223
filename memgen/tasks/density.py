"""log p(x), in nats, by importance sampling: the number that people compare.

    log p(x) ~ log 1/K sum_k p(x, z_k) / q(z_k | x),    z_k ~ q(z | x)

The estimate is a lower bound in the mean and tends to log p(x) as K grows. x is encoded once; the K samples stream by
in chunks, so memory stays bounded whatever K is; the sums are in float64. The noise belongs to the example
(noise.py), so the answer depends neither on the chunks nor on the batches nor on how many examples are scored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from memgen import accelerate
from memgen.core.batch import Batch, Rows, chunks
from memgen.core.layers import evaluating, frozen
from memgen.core.model import DGM, GenerativeModel, Levels
from memgen.core.noise import BLOCK, ExampleNoise
from memgen.errors import MemgenError
from memgen.tasks.common import check_rows, weights_of


@dataclass(frozen=True)
class Likelihood:
    """Per example, in float64 and in nats."""

    samples: int
    log_p: Float64[Tensor, " N"]
    """The estimate of log p(x) with all the samples."""
    elbo: Float64[Tensor, " N"]
    """mean_k log w_k."""
    effective: Float64[Tensor, " N"]
    """Effective sample size, (sum w)^2 / sum w^2: how many of the samples carry the estimate."""
    bounds: dict[int, Float64[Tensor, " N"]]
    """The importance bound with fewer samples, averaged over disjoint groups: how the estimate rises and settles."""

    @property
    def mean(self) -> float:
        return float(self.log_p.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, over examples."""
        return standard_error(self.log_p)


def standard_error(values: Float[Tensor, " N"]) -> float:
    """std / sqrt(N); NaN for a single value."""
    return float(values.std(correction=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


class BitsPerDimension(NamedTuple):
    mean: float
    standard_error: float
    """Over examples; NaN for a single one."""


def bits_per_dimension(log_p: Float64[Tensor, " N"], dimensions: Int[Tensor, " N"]) -> BitsPerDimension:
    """-log p / (D ln 2), where D may differ between examples because some lack values: the ratio of the sums, and its
    standard error sqrt(N/(N-1) sum_i (-log p_i / ln 2 - D_i * mean)^2) / sum_i D_i.

    >>> bits_per_dimension(torch.tensor([-8.0, -8.0]).double() * math.log(2), torch.tensor([1, 1]))
    BitsPerDimension(mean=8.0, standard_error=0.0)
    """
    bits, counts, n = -log_p / math.log(2), dimensions.double(), len(log_p)
    total = float(counts.sum())
    if not total:
        return BitsPerDimension(math.nan, math.nan)
    mean = float(bits.sum()) / total
    spread = float(((bits - counts * mean) ** 2).sum())
    return BitsPerDimension(mean, math.sqrt(n / (n - 1) * spread) / total if n > 1 else math.nan)


def join(parts: Sequence[Likelihood]) -> Likelihood:
    """The examples of all parts, in order."""
    return Likelihood(
        parts[0].samples,
        torch.cat([part.log_p for part in parts]),
        torch.cat([part.elbo for part in parts]),
        torch.cat([part.effective for part in parts]),
        {K: torch.cat([part.bounds[K] for part in parts]) for K in parts[0].bounds},
    )


def log_likelihood(
    model: GenerativeModel,
    rows: Rows,
    samples: int = 5000,
    *,
    seed: int = 0,
    batch_size: int = 8,
    chunk: int = BLOCK,
    keys: Sequence[int] | None = None,
) -> Likelihood:
    """log p(x) of every row. Where the model was built with `mask`, entries that are not observed may be missing, and
    log p is that of the others. A row's noise is a function of `seed` and of its key: by default its place among the
    rows.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> result = log_likelihood(model, Batch(torch.tensor([[0.0, 1.0, 1.0]])), samples=500)
    >>> result.elbo.item() <= result.bounds[50].item() <= result.mean
    True
    """
    return join(list(log_likelihoods(model, rows, samples, 0, seed, batch_size, chunk, keys)))


def log_likelihoods(
    model: GenerativeModel,
    rows: Rows,
    samples: int,
    start: int = 0,
    seed: int = 0,
    batch_size: int = 8,
    chunk: int = BLOCK,
    keys: Sequence[int] | None = None,
) -> Generator[Likelihood, None, None]:
    """The same, a few examples at a time from example `start` on, for progress bars and for going on later."""
    if samples < 1:
        raise MemgenError(f"samples must be at least 1, not {samples}")
    check_rows(model, rows)
    weights, keys = weights_of(model), range(len(rows)) if keys is None else keys
    with evaluating(model):
        encode = model.exact_encoder() if isinstance(model, ExactEncoder) else model.encode
        model = frozen(model)

        def part(where: slice) -> Likelihood:
            batch, noise = rows.rows(where).to(weights), ExampleNoise(seed, keys[where], model.latent)
            with torch.inference_mode():
                encoding = encode(batch)
                log_w = _accelerated(model, batch, encoding) or partial(log_weights, model, batch, encoding)
                return _score(log_w, noise, samples, chunk)

        parts = chunks(rows, batch_size, start)
        yield from side_by_side(part, parts) if weights.device.type == "cpu" else map(part, parts)


def _accelerated(model: GenerativeModel, batch: Batch, encoding: Any) -> LogW | None:
    """The same as `log_weights`, but for rounding, where it is at hand for a model."""
    return accelerate.log_weights(model, batch, encoding.q) if isinstance(model, DGM) else None


@runtime_checkable
class ExactEncoder(Protocol):
    """A model that can encode a row by itself: no bit of the answer depends on the rows beside it."""

    def exact_encoder(self) -> Callable[[Batch], Any]:
        """`encode` with that property."""
        ...


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def side_by_side(work: Callable[[Item], Answer], items: Iterable[Item]) -> Generator[Answer, None, None]:
    """work(item) of all items in order, as many at a time as torch has threads, each on one thread: these need not wait
    for each other after every formula, as threads that share each of them do.

    >>> list(side_by_side(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        ahead: deque[Future[Answer]] = deque()
        for item in items:
            ahead.append(pool.submit(work, item))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what the workers have set is what other new threads would begin with


LogW = Callable[[Levels], Float64[Tensor, "K B"]]
"""noise -> log w"""


def _score(log_w: LogW, noise: ExampleNoise, samples: int, chunk: int) -> Likelihood:
    """Stream the samples of a few examples."""
    stream = _Stream(samples)
    for done in range(0, samples, BLOCK):
        block = tuple(level[: samples - done] for level in noise.block())
        pieces = zip(*(level.split(chunk) for level in block), strict=True)
        stream.add(torch.cat([log_w(piece) for piece in pieces]))
    return stream.result()


def log_weights(model: GenerativeModel, batch: Batch, encoding: Any, noise: Levels) -> Float64[Tensor, "K B"]:
    """log w of given noise, from an x that is encoded already."""
    z, log_q, _ = model.infer(encoding, tuple(level.to(batch.x) for level in noise))
    log_p_x, log_p_z, _ = model.joint(batch, z)
    return sum((term.double() for term in log_p_z), log_p_x.double()) - sum(term.double() for term in log_q)


class _Rung:
    """The importance bound with K samples, averaged over disjoint groups of K in a stream of blocks."""

    def __init__(self, K: int) -> None:
        self.K = K
        self.groups = 0
        self.sum: Tensor | float = 0.0
        self.open: Tensor | None = None
        self.filled = 0

    def add(self, log_w: Float64[Tensor, "block B"]) -> None:
        if self.K <= BLOCK:  # whole groups inside the block
            groups = log_w[: len(log_w) // self.K * self.K].unflatten(0, (-1, self.K)).logsumexp(1)
            self._close(groups.sum(0), len(groups))
            return
        block = log_w.logsumexp(0)
        self.open = block if self.open is None else torch.logaddexp(self.open, block)
        self.filled += len(log_w)
        if self.filled == self.K:
            self._close(self.open, 1)
            self.open, self.filled = None, 0

    def _close(self, log_sums: Tensor, groups: int) -> None:
        self.sum = self.sum + log_sums - groups * math.log(self.K)
        self.groups += groups

    def result(self) -> Tensor:
        assert isinstance(self.sum, Tensor)
        return self.sum / self.groups


def rungs(samples: int) -> list[int]:
    """The smaller K on the way: 5, 50, 500, ... Each divides the next and BLOCK, or is a multiple of it.

    >>> rungs(5000)
    [5, 50, 500]
    """
    return [K for K in (5 * 10**n for n in range(12)) if samples > K]


class _Stream:
    """Running log-sum-exp of log w and of 2 log w, running mean of log w, and the rungs."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.count = 0
        self.sum = torch.zeros(1, dtype=torch.float64)
        self.log_sum = torch.full((1,), -torch.inf, dtype=torch.float64)
        self.log_squares = torch.full((1,), -torch.inf, dtype=torch.float64)
        self.rungs = [_Rung(K) for K in rungs(samples)]

    def add(self, log_w: Float64[Tensor, "block B"]) -> None:
        log_w = log_w.cpu()
        self.count += len(log_w)
        self.sum = self.sum + log_w.sum(0)
        self.log_sum = torch.logaddexp(self.log_sum, log_w.logsumexp(0))
        self.log_squares = torch.logaddexp(self.log_squares, (2 * log_w).logsumexp(0))
        for rung in self.rungs:
            rung.add(log_w)

    def result(self) -> Likelihood:
        return Likelihood(
            self.samples,
            self.log_sum - math.log(self.count),
            self.sum / self.count,
            torch.exp(2 * self.log_sum - self.log_squares),
            {rung.K: rung.result() for rung in self.rungs},
        )
