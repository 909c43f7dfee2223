"""`memgen report`"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from memgen.cli.common import check_output, image_shape, say
from memgen.cli.reading import read_for
from memgen.report.figures.curves import shared_limits
from memgen.report.gather import Gathered, Subject, gather, paired_difference, to_score
from memgen.report.page import write_report
from memgen.runs.run import Run, read_model
from memgen.runs.session import choose_device
from memgen.tasks.density import standard_error


def report(options: argparse.Namespace) -> dict[str, Any]:
    check_output(options.output, ".html")
    clock = time.perf_counter()
    subjects = [
        subject(path, name, options.device, options.data)
        for path, name in zip(options.paths, names(options.paths), strict=True)
    ]
    samples, rows = to_score(subjects, options.samples, options.limit, options.seed)
    limits = shared_limits([one.run.metrics() for one in subjects if one.data.name == subjects[0].data.name])
    gathered = []
    for one in subjects:
        if len(subjects) > 1:
            say(options, f"{one.name}:")
        shared = limits if one.data.name == subjects[0].data.name else None
        gathered.append(gather(one, samples, rows, options.limit, options.seed, shared))
    figures = write_report(options.output, gathered, options.seed)
    say(options, f"wrote {options.output} and its figures into {figures}, {time.perf_counter() - clock:.1f} s")
    say(options, f"open it in a browser: {options.output.resolve().as_uri()}")
    return {
        "output": str(options.output),
        "figures": str(figures),
        "runs": [numbers(one) for one in gathered],
        "differences": [difference(gathered[0], other) for other in gathered[1:]],
        "samples": samples,
        "seed": options.seed,
        "seconds": time.perf_counter() - clock,
    }


def names(paths: list[Path]) -> list[str]:
    """Short names that tell the runs apart: the last part of each path, or more of it where these are the same.

    >>> names([Path("a/vae"), Path("b/vae")])
    ['a/vae', 'b/vae']
    """
    resolved = [path.absolute().parts for path in paths]  # not resolve: a link keeps its own name
    for length in range(1, max(map(len, resolved)) + 1):
        found = ["/".join(parts[-length:]) for parts in resolved]
        if len(set(found)) == len(found):
            return found
    return [f"{'/'.join(parts[-1:])} ({i})" for i, parts in enumerate(resolved, 1)]  # the same run, named twice


def subject(path: Path, name: str, device: str, data: str | None = None) -> Subject:
    run = Run.open(path)
    saved = read_model(path, choose_device(device))
    loaded = read_for(saved, data)
    return Subject(name, run, saved, loaded.data, image_shape(saved), loaded.other)


def numbers(one: Gathered) -> dict[str, Any]:
    return {
        "run": str(one.subject.run.folder),
        "log_likelihood": one.likelihood.mean,
        "standard_error": one.likelihood.standard_error,
        "elbo": float(one.likelihood.elbo.mean()),
        "bits_per_dimension": None if one.bits is None else one.bits.mean,
        "bits_per_dimension_standard_error": None if one.bits is None else one.bits.standard_error,
        "examples": len(one.likelihood.log_p),
        "imputation": {
            pattern: {
                "mse": own.error.mean,
                "standard_error": own.error.standard_error,
                "effective_states": own.effective,
            }
            for pattern, own in one.imputation.items()
        },
    }


def difference(a: Gathered, b: Gathered) -> dict[str, float] | None:
    values = paired_difference(a, b)
    return None if values is None else {"mean": float(values.mean()), "standard_error": standard_error(values)}
