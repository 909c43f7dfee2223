"""Imputation methods side by side: the same images, the same missing pixels, equal decoder passes.

    python -m benchmarks.missing_pixels RUN [--split valid] [--limit 500] [--steps 100]

Images are binarised once, for every method, because that is what the likelihood models; every method averages over the
last half of its states (`paper-last` is the paper's own answer, the very last state). The log-likelihood of the missing
pixels is log mean_m p(x_mis|z_m) over those states, in nats per image: a method whose states all miss the truth pays.
Below each pattern stand the differences to the default method, paired over images. Choose a default on validation
images of a run that did not train on them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from memgen.cli.reading import rows_to_score
from memgen.core.batch import Batch
from memgen.runs.run import read_model
from memgen.tasks.density import standard_error
from memgen.tasks.imputation import DEFAULT, METHODS, Imputation, impute
from memgen.tasks.patterns import missing_entries, scaled_patterns
from memgen.tasks.scores import SquaredError, squared_error


def tell(pattern: str, name: str, result: Imputation, mse: SquaredError, seconds: float) -> dict[str, object]:
    log_p, error = float(result.log_p.mean()), standard_error(result.log_p)
    accepted = f"{float(result.accepted.mean()):.1%}" if name == "mwg" else ""
    effective = f"{float(result.effective.median()):.1f}" if METHODS[name.removesuffix("-last")].weighted else ""
    print(
        f"{pattern:<10} {name:<12} {mse.mean:>8.4f} ± {mse.standard_error:.4f} {log_p:>9.2f} ± {error:<6.2f} "
        f"{accepted or effective:>9} {seconds:>8.1f}",
        flush=True,
    )
    numbers = {"mse": mse.mean, "mse_standard_error": mse.standard_error, "log_p": log_p, "log_p_standard_error": error}
    return {"pattern": pattern, "method": name, **numbers, "seconds": seconds}


def difference(name: str, by_method: dict[str, Imputation], x: Tensor, missing: Tensor) -> None:
    """This method minus the default, paired over images."""
    a, b = by_method[name], by_method[DEFAULT]
    squares = [((one.mean - x) ** 2).where(missing, 0).sum(-1) / missing.sum(-1).double().mean() for one in (a, b)]
    mse, log_p = squares[0] - squares[1], a.log_p - b.log_p
    print(
        f"{'':<10} {name} minus {DEFAULT}: mse {mse.mean():+.4f} ± {standard_error(mse):.4f}, "
        f"log p {log_p.mean():+.2f} ± {standard_error(log_p):.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100, help="decoder passes of every method")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    saved = read_model(options.run)
    x, data = rows_to_score(saved, options.split, options.limit)
    kept = options.steps // 2
    print(f"{len(x)} {options.split} images of {data.name}, {data.binarisation}")
    print(f"{options.steps} decoder passes, the last {kept} states kept")
    print(f"{'pattern':<10} {'method':<12} {'mse':>16} {'log p(missing)':>18} {'carried by':>10} {'seconds':>8}")
    rows = []
    methods = [name for name, entry in METHODS.items() if saved.model.mask or not entry.masked]
    for pattern in scaled_patterns(data.shape):
        missing = missing_entries(pattern, data.shape, x.shape[1], len(x), seed=options.seed)
        by_method: dict[str, Imputation] = {}
        for name in ("paper-last", *methods):
            clock = time.perf_counter()
            keep = 1 if name == "paper-last" else kept
            method = name.removesuffix("-last")
            result = impute(saved.model, Batch(x, ~missing), method, steps=options.steps, keep=keep, seed=options.seed)
            seconds = time.perf_counter() - clock
            rows.append(tell(pattern, name, result, squared_error(result.mean, x, missing), seconds))
            by_method[name] = result
        for name in by_method:
            if name != DEFAULT:
                difference(name, by_method, x, missing)
    print(json.dumps({"steps": options.steps, "examples": len(x), "threads": torch.get_num_threads(), "rows": rows}))


if __name__ == "__main__":
    main()
