"""`memgen impute --pattern`: values of a data set that a pattern hides, filled in and compared with the truth."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.cli.chains import Chains
from memgen.cli.command import count, say
from memgen.cli.filling import Filling
from memgen.cli.output import check_output
from memgen.cli.reading import data_for, image_shape
from memgen.core.layers import batch_norms
from memgen.data import Dataset
from memgen.data.output import write_atomically
from memgen.report.figures.images import image_rows
from memgen.runs.modelfile import Saved
from memgen.runs.scores import imputation_error
from memgen.tasks.density import standard_error
from memgen.tasks.imputation import AUTHORS_BATCH, Imputation
from memgen.tasks.patterns import missing_entries
from memgen.tasks.scores import SquaredError, squared_error

PICTURES = 12
"""Number of images in the figure, from the first on."""
GREY = "grey levels"
WORDS = "mean squared error per missing value"
UNITS = " (numbers in standard deviations, levels right 0 or wrong 1)"


class Task(NamedTuple):
    """The pattern, the data, and the files to write."""

    pattern: str
    data: str | None
    split: str
    limit: int | None
    values: str
    figure: Path | None
    npz: Path | None


class Outcome(NamedTuple):
    """Imputed values and their error."""

    x: Float[Tensor, "N D"]
    missing: Bool[Tensor, "N D"]
    values: str
    """Kind of the values: grey levels, or how they were binarised."""
    result: Imputation
    error: SquaredError
    batch: SquaredError | None
    """The error of the paper's method with batch statistics, which its authors used."""
    seconds: float

    @property
    def log_p(self) -> Float[Tensor, " n"]:
        """log p of the missing values, for rows whose values are all known because only the pattern hides them."""
        return self.result.log_p[~self.result.log_p.isnan()]


def impute_pattern(saved: Saved, filling: Filling, task: Task) -> dict[str, Any]:
    chains = filling.chains
    shape = image_shape(saved)
    task = task._replace(figure=task.figure or (Path("imputed.png") if shape else None))
    check_output(task.figure, ".png")
    data = data_for(saved, task.data, task.split, whole=True)
    outcome = filled(filling, task, data)
    if outcome is None:
        return filling.sharding.record()
    if task.figure is not None:
        write_figure(task.figure, outcome, shape)
    if task.npz is not None:
        write_npz(task.npz, outcome)
    for line in lines(chains, task, data, outcome):
        say(line)
    chains.say_carried(outcome.result)
    say(f"{outcome.seconds:.1f} s")
    for path in filter(None, (task.figure, task.npz)):
        say(f"wrote {path}")
    return record(chains, task, data, outcome)


def filled(filling: Filling, task: Task, data: Dataset) -> Outcome | None:
    """All rows, filled in; None where another process merges the shards."""
    x, values = rows_of(filling.chains, task, data)
    missing = missing_entries(task.pattern, data.shape, x.shape[1], len(x), seed=filling.chains.seed)
    clock = time.perf_counter()
    result = filling(x, ~(missing | x.isnan()))
    batch = with_batch_statistics(filling, x, missing)
    if result is None:
        return None
    error, _ = imputation_error(data, result.mean, x, missing)
    return Outcome(x, missing, values, result, error, batch, time.perf_counter() - clock)


def rows_of(chains: Chains, task: Task, data: Dataset) -> tuple[Float[Tensor, "N D"], str]:
    """Rows and the kind of their values: grey levels for methods that fill in means, else binarised ones."""
    grey = data.rows(task.split, task.limit)
    if not data.stochastic:
        return grey, "as the data set has them"
    if task.values == "grey" or (task.values == "auto" and chains.fills_means):
        return grey, GREY
    return data.fixed(task.split, task.limit).values, data.binarisation


def with_batch_statistics(
    filling: Filling, x: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"]
) -> SquaredError | None:
    """The error of the paper's method with batch statistics, which its authors used; None for other methods."""
    if filling.chains.method != "paper" or not batch_norms(filling.chains.model) or len(x) < 2:
        return None
    what, known = "imputing, batch statistics", missing & ~x.isnan()
    result = filling(x, ~(missing | x.isnan()), what, batch_size=AUTHORS_BATCH, batch_statistics=True)
    return None if result is None else squared_error(result.mean, x, known)


def write_figure(path: Path, outcome: Outcome, shape: tuple[int, ...]) -> None:
    n = min(PICTURES, len(outcome.x))
    x, mean = outcome.x[:n], outcome.result.mean[:n].float()
    rows = {"data": x, "missing": x, "imputed": mean}
    write_atomically(path, image_rows(path.stem, "", rows, shape, {"missing": outcome.missing[:n]}).png)


def write_npz(path: Path, outcome: Outcome) -> None:
    """Write the arrays from which the error is computed."""
    content, result = io.BytesIO(), outcome.result
    log_p = result.log_p.numpy()
    np.savez(content, x=outcome.x.numpy(), missing=outcome.missing.numpy(), mean=result.mean.numpy(), log_p=log_p)
    write_atomically(path, content.getvalue())


def lines(chains: Chains, task: Task, data: Dataset, outcome: Outcome) -> list[str]:
    """The numbers for people."""
    error, batch, n = outcome.error, outcome.batch, len(outcome.x)
    text = [
        f"{count(n, 'row')} of {data.name}, {task.split}, {outcome.values}",
        f"{task.pattern}: {error.missing:,} values missing",
        f"method {chains.method}, {chains.steps} steps, {chains.kept} kept, seed {chains.seed}",
    ]
    words = WORDS + (UNITS if data.columns is not None else "")
    if batch is None:
        text.append(f"{words}: {error.mean:.4f} +- {error.standard_error:.4f} (standard error over rows)")
    else:
        size = math.ceil(n / math.ceil(n / AUTHORS_BATCH))  # batches are near-equal
        text.append(f"{words}, exact batch-norm statistics:  {error.mean:.4f} +- {error.standard_error:.4f}")
        text.append(f"{words}, those of {size:,} rows at a time: {batch.mean:.4f} +- {batch.standard_error:.4f}")
    if outcome.values != GREY and len(log_p := outcome.log_p):
        spread = "" if len(log_p) == 1 else f" +- {standard_error(log_p):.2f}"
        text.append(f"log p(missing values | states): {log_p.mean():.2f}{spread} nats a row")
    return text


def record(chains: Chains, task: Task, data: Dataset, outcome: Outcome) -> dict[str, Any]:
    """The numbers for programs."""
    error, batch, log_p = outcome.error, outcome.batch, outcome.log_p
    has_likelihood = outcome.values != GREY
    return {
        "mse": error.mean,
        "standard_error": error.standard_error,
        "pattern": task.pattern,
        **chains.to_dict(),
        "missing": error.missing,
        "examples": len(outcome.x),
        "mse_batch_statistics": None if batch is None else batch.mean,
        "standard_error_batch_statistics": None if batch is None else batch.standard_error,
        "log_likelihood_missing": float(log_p.mean()) if has_likelihood else None,
        "log_likelihood_missing_standard_error": standard_error(log_p) if has_likelihood else None,
        **chains.carried(outcome.result),
        "data": data.name,
        "split": task.split,
        "values": outcome.values,
        "seconds": outcome.seconds,
        "figure": None if task.figure is None else str(task.figure),
        "npz": None if task.npz is None else str(task.npz),
    }
