"""log p(x), in nats, by importance sampling: the value by which models are compared.

    log p(x) ~ log 1/K sum_k p(x, z_k) / q(z_k | x),    z_k ~ q(z | x)

The expected estimate is a lower bound of log p(x) and tends to it as K grows. x is encoded once. The K samples are
processed in chunks, so that memory does not grow with K. The sums are in float64. The noise is fixed per example
(noise.py), so that the result does not depend on the chunks, the batches or the number of examples.
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

BATCH_SIZE = 8
"""Number of examples that are scored together."""


@dataclass(frozen=True)
class Likelihood:
    """Per example, in float64 and in nats."""

    samples: int
    log_p: Float64[Tensor, " N"]
    """The estimate of log p(x) with all the samples."""
    elbo: Float64[Tensor, " N"]
    """mean_k log w_k."""
    effective: Float64[Tensor, " N"]
    """Effective sample size, (sum w)^2 / sum w^2."""
    bounds: dict[int, Float64[Tensor, " N"]]
    """The importance bound with K < `samples`, averaged over disjoint groups, which shows whether it has converged."""

    def __len__(self) -> int:
        return len(self.log_p)

    @property
    def mean(self) -> float:
        return float(self.log_p.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of the mean, over examples."""
        return standard_error(self.log_p)


def standard_error(values: Float[Tensor, " N"]) -> float:
    """std / sqrt(N); NaN for a single value."""
    return float(values.std(correction=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


class BitsPerDimension(NamedTuple):
    mean: float
    standard_error: float
    """Over examples; NaN for a single one."""


def bits_per_dimension(log_p: Float64[Tensor, " N"], dimensions: Int[Tensor, " N"]) -> BitsPerDimension:
    """-log p / (D ln 2), as the ratio of the sums over examples, whose D differ if values are missing; and its
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


def borders(rows: int) -> list[int]:
    """The first row of every batch, and the number of rows.

    >>> borders(20)
    [0, 8, 16, 20]
    """
    return [*range(0, rows, BATCH_SIZE), rows]


def log_likelihood(
    model: GenerativeModel,
    rows: Rows,
    samples: int = 5000,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    chunk: int = BLOCK,
    keys: Sequence[int] | None = None,
) -> Likelihood:
    """log p(x) of every row. If the model was built with `mask`, rows may have missing values, and log p is that of the
    observed values. The noise of a row depends on `seed` and on the row's key, by default its index.

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
    batch_size: int = BATCH_SIZE,
    chunk: int = BLOCK,
    keys: Sequence[int] | None = None,
    stop: int | None = None,
) -> Generator[Likelihood, None, None]:
    """`log_likelihood` of one batch after the other from example `start` on, to show progress and to continue later;
    `stop`: the first example that is not scored."""
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

        parts = chunks(rows, batch_size, start, stop)
        yield from side_by_side(part, parts) if weights.device.type == "cpu" else map(part, parts)


def _accelerated(model: GenerativeModel, batch: Batch, encoding: Any) -> LogW | None:
    """A faster `log_weights`, equal up to rounding; None if there is none for the model."""
    return accelerate.log_weights(model, batch, encoding.q) if isinstance(model, DGM) else None


@runtime_checkable
class ExactEncoder(Protocol):
    """A model that can encode a row so that no bit of the result depends on the other rows of the batch."""

    def exact_encoder(self) -> Callable[[Batch], Any]:
        """`encode` with that property."""
        ...


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def side_by_side(work: Callable[[Item], Answer], items: Iterable[Item]) -> Generator[Answer, None, None]:
    """work(item) of all items in order, in parallel on as many threads as torch has, each item on one thread.

    The threads work independently. torch's own parallelism would synchronise them after every operation.

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
        torch.set_num_threads(threads)  # new threads would start with the value that the workers have set


LogW = Callable[[Levels], Float64[Tensor, "K B"]]
"""noise -> log w"""


def _score(log_w: LogW, noise: ExampleNoise, samples: int, chunk: int) -> Likelihood:
    """Process the samples of a few examples block by block."""
    stream = _Stream(samples)
    for done in range(0, samples, BLOCK):
        block = tuple(level[: samples - done] for level in noise.block())
        pieces = zip(*(level.split(chunk) for level in block), strict=True)
        stream.add(torch.cat([log_w(piece) for piece in pieces]))
    return stream.result()


def log_weights(model: GenerativeModel, batch: Batch, encoding: Any, noise: Levels) -> Float64[Tensor, "K B"]:
    """log w of given noise, from the encoding of x."""
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
    """The values 5, 50, 500, ... of K below `samples`. Each divides the next, and divides BLOCK or is a multiple of it.

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
