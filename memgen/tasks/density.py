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
from memgen.tasks.defensive import Defence, Pilot, defended
from memgen.tasks.sums import Sums
from memgen.tasks.sums import rungs as rungs

BATCH_SIZE = 8
"""Number of examples that are scored together."""
GROUP = 8
"""Number of rows that are scored together with a mixture as proposal."""


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

    def replaced(self, index: Int[Tensor, " n"], other: Likelihood) -> Likelihood:
        """The examples with the estimates of `other` at `index`; the ELBO stays."""
        log_p, effective = (
            old.index_copy(0, index, new) for old, new in ((self.log_p, other.log_p), (self.effective, other.effective))
        )
        bounds = {K: old.index_copy(0, index, other.bounds[K]) for K, old in self.bounds.items()}
        return Likelihood(self.samples, log_p, self.elbo, effective, bounds)

    def first(self, n: int) -> Likelihood:
        """The first n examples."""
        bounds = {K: values[:n] for K, values in self.bounds.items()}
        return Likelihood(self.samples, self.log_p[:n], self.elbo[:n], self.effective[:n], bounds)

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
    defensive: bool = True,
) -> Likelihood:
    """log p(x) of every row. If the model was built with `mask`, rows may have missing values, and log p is that of the
    observed values. The noise of a row depends on `seed` and on the row's key, by default its index.

    With `defensive` the rows of a table for which q(z|x) is a bad proposal are scored by a mixture (defensive.py). The
    ELBO is always that of q.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> result = log_likelihood(model, Batch(torch.tensor([[0.0, 1.0, 1.0]])), samples=500)
    >>> result.elbo.item() <= result.bounds[50].item() <= result.mean
    True
    """
    return join(list(log_likelihoods(model, rows, samples, 0, seed, batch_size, chunk, keys, defensive=defensive)))


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
    defensive: bool = True,
) -> Generator[Likelihood, None, None]:
    """`log_likelihood` of one batch after the other from example `start` on, to show progress and to continue later;
    `stop`: the first example that is not scored."""
    if samples < 1:
        raise MemgenError(f"samples must be at least 1, not {samples}")
    check_rows(model, rows)
    weights, keys = weights_of(model), range(len(rows)) if keys is None else keys
    with evaluating(model):
        defence = Defence.of(model, seed) if defensive and defended(model) else None
        encode = model.exact_encoder() if isinstance(model, ExactEncoder) else model.encode
        model = frozen(model)

        def part(where: slice) -> Likelihood:
            batch, noise = rows.rows(where).to(weights), ExampleNoise(seed, keys[where], model.latent)
            with torch.inference_mode():
                encoding = encode(batch)
                log_w = _accelerated(model, batch, encoding) or partial(log_weights, model, batch, encoding)
                result = _score(log_w, noise, samples, chunk)
            return result if defence is None else _defend(defence, result, rows.rows(where), keys[where])

        parts = chunks(rows, batch_size, start, stop)
        yield from side_by_side(part, parts) if weights.device.type == "cpu" else map(part, parts)


def _defend(defence: Defence, result: Likelihood, batch: Batch, keys: Sequence[int]) -> Likelihood:
    """The result with other estimates for the rows that need a mixture as proposal."""
    batch = batch.to(weights_of(defence.model))
    pilot = defence.pilot(batch, keys)
    index = pilot.needed.nonzero()[:, 0]
    if not len(index):
        return result
    keys = [keys[i] for i in index.tolist()]
    return result.replaced(index, by_mixture(defence, batch.rows(index), keys, pilot.rows(index), result.samples))


def by_mixture(defence: Defence, batch: Batch, keys: Sequence[int], pilot: Pilot, samples: int) -> Likelihood:
    """The density of rows with a mixture as proposal.

    The rows are scored in groups of GROUP, the last of which is filled up with copies of its last row. In groups of
    another size the results would have other last digits, which the search of modes can enlarge."""
    parts = []
    for start in range(0, len(batch), GROUP):
        index = torch.arange(start, start + GROUP).clamp_max(len(batch) - 1)
        rows, own_keys = batch.rows(index), [keys[i] for i in index.tolist()]
        mixture = defence.mixture(rows, pilot.rows(index), own_keys)
        noise = ExampleNoise(defence.seed, own_keys, mixture.noise)
        with torch.no_grad():
            parts.append(_score(partial(defence.log_weights, rows, mixture), noise, samples, BLOCK))
    return join(parts).first(len(batch))


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
    sums = Sums(samples)
    for done in range(0, samples, BLOCK):
        block = tuple(level[: samples - done] for level in noise.block())
        pieces = zip(*(level.split(chunk) for level in block), strict=True)
        sums.add(torch.cat([log_w(piece) for piece in pieces]))
    bounds = {rung.K: rung.result() for rung in sums.rungs}
    return Likelihood(samples, sums.log_mean, sums.mean, sums.effective, bounds)


def log_weights(model: GenerativeModel, batch: Batch, encoding: Any, noise: Levels) -> Float64[Tensor, "K B"]:
    """log w of given noise, from the encoding of x."""
    z, log_q, _ = model.infer(encoding, tuple(level.to(batch.x) for level in noise))
    log_p_x, log_p_z, _ = model.joint(batch, z)
    return sum((term.double() for term in log_p_z), log_p_x.double()) - sum(term.double() for term in log_q)
