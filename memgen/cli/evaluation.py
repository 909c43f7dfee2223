"""`memgen evaluate`"""

from __future__ import annotations

import argparse
from typing import Any

from memgen.cli.common import count, say
from memgen.cli.reading import read_for
from memgen.errors import MemgenError
from memgen.runs.run import Run, read_model
from memgen.runs.scores import bits_of, score
from memgen.runs.session import choose_device
from memgen.tasks.density import Likelihood

FEW = 10
"""Effective samples below which a person is told that the estimate is too low."""


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    run = Run.open(options.path) if options.path.is_dir() else None
    saved = read_model(options.path, choose_device(options.device))
    loaded = read_for(saved, options.data, options.split, whole=True)
    data = loaded.data
    batch = data.fixed(options.split, options.limit)
    result, seconds = score(
        run, saved, batch, options.split, options.samples, options.seed, options.fresh, loaded.other
    )
    if not bool(result.log_p.isfinite().all()):
        bad = int((~result.log_p.isfinite()).sum())
        raise MemgenError(
            f"log p(x) is not finite for {bad:,} of {len(batch):,} examples: these weights cannot be used"
        )
    smallest, median = float(result.effective.min()), float(result.effective.median())
    examples = count(len(batch), "example")
    say(options, f"{options.path}, {options.split}: {examples} of {data.name}, scale {data.scale}, {data.binarisation}")
    say(options, f"weights: {saved.weights}, after {count(saved.epoch, 'epoch')}; noise seed {options.seed}")
    for line in ladder(result):
        say(options, line)
    bits = bits_of(saved, result, batch)
    if bits is not None:
        error = "" if len(batch) == 1 else f" +- {bits.standard_error:.4f}"
        say(options, f"bits per dimension: {bits.mean:.4f}{error}")
    say(options, f"effective sample size: median {median:.1f}, smallest {smallest:.1f} of {result.samples:,}")
    if median < FEW:
        say(options, f"fewer than {FEW} samples carry the estimate: log p(x) may be higher; try more --samples")
    say(options, f"{seconds:.1f} s")
    return {
        "log_likelihood": result.mean,
        "standard_error": result.standard_error if len(batch) > 1 else None,
        "bits_per_dimension": None if bits is None else bits.mean,
        "bits_per_dimension_standard_error": None if bits is None else bits.standard_error,
        "samples": result.samples,
        "examples": len(batch),
        "elbo": float(result.elbo.mean()),
        "effective_sample_size": float(result.effective.mean()),
        "effective_sample_size_smallest": smallest,
        "bounds": {str(K): float(values.mean()) for K, values in result.bounds.items()},
        "seconds": seconds,
        "split": options.split,
        "seed": options.seed,
        "data": data.name,
        "scale": data.scale,
        "binarisation": data.binarisation,
        "weights": saved.weights,
        "weights_sha256": saved.sha256,
        "epochs": saved.epoch,
    }


def ladder(result: Likelihood) -> list[str]:
    """The bound at growing K, up to the estimate."""
    error = "" if len(result.log_p) == 1 else f" +- {result.standard_error:.3f}"
    rungs = {1: result.elbo, **result.bounds} if result.samples > 1 else {}
    lines = [f"{'1 (ELBO)' if K == 1 else f'{K:,}':>12}  {values.mean():.3f}" for K, values in rungs.items()]
    last = f"{result.samples:>12,}  {result.mean:.3f}{error} nats (standard error over examples)"
    return [f"{'K':>12}  log p(x) >=", *lines, last]
