"""`memgen impute`: missing values of a data set's rows, for a number, or of the user's own data."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.commands.common import check_output, count, data_for, finite, image_shape, say
from memgen.data import DATASETS, Dataset
from memgen.data.incomplete import Incomplete, read_incomplete
from memgen.errors import MemgenError, unknown
from memgen.figures.images import image_rows
from memgen.layers import batch_norms
from memgen.progress import Progress
from memgen.run import Saved, read_model
from memgen.seeds import binarise
from memgen.session import choose_device
from memgen.storage import write_atomically
from memgen.tasks.density import standard_error
from memgen.tasks.imputation import (
    AUTHORS_BATCH,
    METHODS,
    Imputation,
    check_incomplete,
    imputations,
    join,
)
from memgen.tasks.patterns import PATTERNS, missing_entries
from memgen.tasks.scores import SquaredError, squared_error

PICTURES = 12
"""Images in the figure: the first ones."""
FEW = 5
"""Effective states below which a person is told that completions repeat themselves."""


def impute(options: argparse.Namespace) -> dict[str, Any]:
    if (options.input is None) == (options.pattern is None):
        raise MemgenError(f"say what is missing: --input YOUR_DATA, or --pattern, one of {PATTERNS}")
    if options.method not in METHODS:
        raise unknown("imputation method", options.method, METHODS)
    saved = read_model(options.path, choose_device(options.device))
    return impute_pattern(options, saved) if options.input is None else impute_input(options, saved)


def filled(
    options: argparse.Namespace,
    saved: Saved,
    x: Float[Tensor, "N D"],
    observed: Bool[Tensor, "N D"],
    smooth: bool = False,
    batch_statistics: bool = False,
    what: str = "imputing",
) -> Imputation:
    """All rows, with a progress bar."""
    parts: list[Imputation] = []
    size = AUTHORS_BATCH if batch_statistics else 250
    more = (options.steps, options.keep, options.draws, smooth, options.seed, size, batch_statistics)
    with Progress(what, len(x), "row") as progress:
        for part in imputations(saved.model, x, observed, options.method, *more):
            parts.append(part)
            progress.to(sum(len(part.mean) for part in parts))
    return join(parts)


def rows_of(options: argparse.Namespace, data: Dataset) -> tuple[Float[Tensor, "N D"], str]:
    """Grey levels for the methods that fill in means, binarised ones for those that weigh by the likelihood."""
    grey, binary = data.rows(options.split)[: options.limit], data.fixed(options.split, options.limit)
    if options.values == "auto":
        options.values = "binary" if METHODS[options.method].modelled or options.method == "gibbs" else "grey"
    if not data.stochastic:
        return grey, "as the data set has them"
    return (grey, "grey levels") if options.values == "grey" else (binary, data.binarisation)


def impute_pattern(options: argparse.Namespace, saved: Saved) -> dict[str, Any]:
    for given, name in ((options.output, "--output"), (options.mean, "--mean"), (options.draws, "--draws")):
        if given:
            raise MemgenError(f"{name} goes with --input; with --pattern the figure goes to -o FILE.png")
    shape = image_shape(saved)
    figure = options.figure or (Path("imputed.png") if shape else None)
    check_output(figure, ".png")
    data = data_for(saved, options.data, options.split)
    x, values = rows_of(options, data)
    missing = missing_entries(options.pattern, data.shape, x.shape[1], len(x), seed=options.seed)
    check_incomplete(saved.model, x, ~missing, options.method)
    clock = time.perf_counter()
    result = filled(options, saved, x, ~missing)
    error = squared_error(result.mean, x, missing)
    both = options.method == "paper" and bool(batch_norms(saved.model))
    batch = None
    if both:
        guess = filled(options, saved, x, ~missing, batch_statistics=True, what="imputing, batch statistics").mean
        batch = squared_error(guess, x, missing)
    seconds = time.perf_counter() - clock
    if figure is not None:
        n = min(PICTURES, len(x))
        rows = {"data": x[:n], "missing": x[:n], "imputed": result.mean[:n].float()}
        drawn = image_rows(figure.stem, "", rows, shape, {"missing": missing[:n]})
        write_atomically(figure, drawn.png)
    tell_pattern(options, data, values, error, batch, result, seconds)
    if figure is not None:
        say(options, f"wrote {figure}")
    number = float(result.log_p.mean())
    return {
        "mse": finite(error.mean),
        "standard_error": finite(error.standard_error),
        "pattern": options.pattern,
        "method": options.method,
        "steps": options.steps,
        "missing": error.missing,
        "kept": kept(options),
        "examples": len(x),
        "mse_batch_statistics": None if batch is None else finite(batch.mean),
        "standard_error_batch_statistics": None if batch is None else finite(batch.standard_error),
        "log_likelihood_missing": finite(number) if modelled(saved, values) else None,
        "log_likelihood_missing_standard_error": finite(standard_error(result.log_p))
        if modelled(saved, values)
        else None,
        "data": data.name,
        "split": options.split,
        "values": values,
        "seed": options.seed,
        "seconds": seconds,
        "figure": None if figure is None else str(figure),
    }


def modelled(saved: Saved, values: str) -> bool:
    """Whether the values have a likelihood: grey levels have none under a Bernoulli."""
    return not (saved.model.likelihood.binary and values == "grey levels")


def kept(options: argparse.Namespace) -> int:
    own: int | None = options.keep
    return METHODS[options.method].kept(options.steps) if own is None else own


def tell_pattern(
    options: argparse.Namespace,
    data: Dataset,
    values: str,
    error: SquaredError,
    batch: SquaredError | None,
    result: Imputation,
    seconds: float,
) -> None:
    """The numbers for people."""
    rows = count(len(result.mean), "row")
    say(
        options,
        f"{rows} of {data.name}, {options.split}, {values}; {options.pattern}: {error.missing:,} values missing",
    )
    say(options, f"method {options.method}, {options.steps} steps, {kept(options)} kept, seed {options.seed}")
    words = "mean squared error per missing value"
    if batch is None:
        say(options, f"{words}: {error.mean:.4f} +- {error.standard_error:.4f} (standard error over rows)")
    else:
        say(options, f"{words}, exact batch-norm statistics:  {error.mean:.4f} +- {error.standard_error:.4f}")
        say(options, f"{words}, statistics of {AUTHORS_BATCH:,} rows:  {batch.mean:.4f} +- {batch.standard_error:.4f}")
    if values != "grey levels":
        log_p, spread = result.log_p.mean(), standard_error(result.log_p)
        say(options, f"log p(missing values | states): {log_p:.2f} +- {spread:.2f} nats a row")
    if options.method == "mwg":
        say(options, f"accepted proposals among the kept: {result.accepted.mean():.1%}")
    if METHODS[options.method].weighted:
        say(options, f"effective states: median {result.effective.median():.1f} of {kept(options)}")
    say(options, f"{seconds:.1f} s")


def impute_input(options: argparse.Namespace, saved: Saved) -> dict[str, Any]:
    if options.output is None:
        raise MemgenError("say where the completed data go: --output")
    outputs = output_paths(options)
    model, home = saved.model, DATASETS[saved.recipe.data.name]
    levels = 256 if home.load().scale == "v/256" else 255
    given = read_incomplete(
        options.input, model.likelihood.columns, image_shape(saved), levels, options.allow_empty_columns
    )
    observed = ~given.x.isnan()
    x, grey = as_modelled(saved, given, observed, options)
    check_incomplete(model, x, observed, options.method)
    result = filled(options, saved, x, observed, smooth=grey)
    completions = ([result.mean] if options.mean else []) + list(result.draws)
    for path, completed in zip(outputs, completions, strict=True):
        given.write(path, completed)
    missing = int((~observed).sum())
    rows = count(len(x), "row")
    say(options, f"filled in {missing:,} of {observed.numel():,} values in {rows} by the method {options.method}")
    if METHODS[options.method].weighted and float(result.effective.median()) < FEW and options.draws > 1:
        say(
            options,
            f"fewer than {FEW} states carry the weight: completions repeat themselves; try more --steps, or gibbs",
        )
    for path in outputs:
        say(options, f"wrote {path}")
    return {
        "rows": len(x),
        "missing": missing,
        "method": options.method,
        "steps": options.steps,
        "kept": kept(options),
        "draws": options.draws,
        "mean": options.mean,
        "seed": options.seed,
        "outputs": [str(path) for path in outputs],
    }


def output_paths(options: argparse.Namespace) -> list[Path]:
    """OUTPUT for the mean, OUTPUT-1, OUTPUT-2, ... for draws; checked."""
    source, target = options.input, options.output
    options.mean = options.mean or not options.draws
    suffix = "" if source.is_dir() else target.suffix
    if source.is_file() and suffix.lower() != source.suffix.lower():
        raise MemgenError(f"--output {target} must end in {source.suffix}, as --input does")
    if not target.parent.is_dir():
        raise MemgenError(f"there is no folder {target.parent} to write {target.name} into")
    numbered = [
        target.with_name(f"{target.stem if suffix else target.name}-{m + 1}{suffix}") for m in range(options.draws)
    ]
    paths: list[Path] = ([target] if options.mean else []) + numbered
    for path in paths:
        if path.exists() and source.exists() and path.samefile(source):
            raise MemgenError(f"{path} is the input itself; choose another --output")
        if path.exists() and path.is_dir() != source.is_dir():
            kind = "a folder" if path.is_dir() else "a file"
            raise MemgenError(f"{path} exists and is {kind}; choose another --output")
    return paths


def as_modelled(
    saved: Saved, given: Incomplete, observed: Bool[Tensor, "N D"], options: argparse.Namespace
) -> tuple[Float[Tensor, "N D"], bool]:
    """What the method sees, and whether it stands for grey levels: under a Bernoulli likelihood these are probabilities
    and are binarised, once, for the methods that need it; missing values then come out as grey levels too.
    """
    x = given.x.float()
    known = x.where(observed, 0)
    grey = saved.model.likelihood.binary and not bool(((known == 0) | (known == 1)).all())
    if not grey or bool(((known < 0) | (known > 1)).any()):
        return x, False
    if options.method == "paper":
        return x, True
    return binarise(known).where(observed, torch.nan), True
