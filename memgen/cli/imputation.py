"""`memgen impute`: missing values of a data set's rows, for a number, or of the user's own data."""

from __future__ import annotations

import argparse
import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.cli.common import check_output, count, image_shape, say
from memgen.cli.reading import data_for
from memgen.core.batch import Batch
from memgen.core.layers import batch_norms
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data import Dataset
from memgen.data.incomplete import Incomplete, Table, read_incomplete
from memgen.data.incomplete_tables import TextTable
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.report.figures.images import image_rows
from memgen.runs.run import Saved, read_model
from memgen.runs.scores import fill, imputation_error
from memgen.runs.session import choose_device
from memgen.tasks.density import standard_error
from memgen.tasks.imputation import AUTHORS_BATCH, METHODS, Imputation, check_incomplete, method_for
from memgen.tasks.patterns import PATTERNS, missing_entries
from memgen.tasks.scores import SquaredError, squared_error

PICTURES = 12
"""Images in the figure: the first ones."""
FEW = 5
"""Effective states below which a person is told that the answer rests on few."""
FOR_INPUT = {"output": None, "mean": False, "draws": 0, "allow_empty_columns": False, "header": "auto"}
FOR_PATTERN = {"data": None, "split": "test", "limit": None, "values": "auto", "figure": None, "npz": None}
"""Options that go with one way of use only, and their defaults."""
FLAGS = {"figure": "-o"}


def impute(options: argparse.Namespace) -> dict[str, Any]:
    if options.input is None and options.pattern is None:
        raise MemgenError(f"say what is missing: --input YOUR_DATA, or --pattern, one of {PATTERNS}")
    if options.input is not None and options.pattern is not None:
        raise MemgenError("--input and --pattern exclude each other: give one of them")
    own, other = ("--input", FOR_PATTERN) if options.pattern is None else ("--pattern", FOR_INPUT)
    for name, default in other.items():
        if getattr(options, name) != default:
            flag = FLAGS.get(name, "--" + name.replace("_", "-"))
            raise MemgenError(f"{flag} does not go with {own}; see memgen impute --help")
    method_for(options.method, options.draws)  # a wrong name is told at once
    saved = read_model(options.path, choose_device(options.device))
    options.method = method_for(options.method, options.draws, saved.model.mask)
    return impute_pattern(options, saved) if options.input is None else impute_input(options, saved)


def filled(
    options: argparse.Namespace, saved: Saved, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], **more: Any
) -> Imputation:
    shared = {"steps": options.steps, "keep": options.keep, "draws": options.draws, "seed": options.seed}
    return fill(saved.model, Batch(x, observed), options.method, **shared, **more)


def rows_of(options: argparse.Namespace, data: Dataset) -> tuple[Float[Tensor, "N D"], str]:
    """Grey levels for the method that fills in means, binarised ones for the others."""
    grey, binary = data.rows(options.split)[: options.limit], data.fixed(options.split, options.limit).x
    if not data.stochastic:
        return grey, "as the data set has them"
    if options.values == "grey" or (options.values == "auto" and METHODS[options.method].fills_means):
        return grey, "grey levels"
    return binary, data.binarisation


def impute_pattern(options: argparse.Namespace, saved: Saved) -> dict[str, Any]:
    shape = image_shape(saved)
    figure = options.figure or (Path("imputed.png") if shape else None)
    check_output(figure, ".png")
    check_output(options.npz, ".npz", options.overwrite)
    data = data_for(saved, options.data, options.split, whole=True)
    x, values = rows_of(options, data)
    missing = missing_entries(options.pattern, data.shape, x.shape[1], len(x), seed=options.seed)
    clock = time.perf_counter()
    result = filled(options, saved, x, ~(missing | x.isnan()))
    error, _ = imputation_error(data, result.mean, x, missing)
    batch = with_batch_statistics(options, saved, x, missing)
    seconds = time.perf_counter() - clock
    if figure is not None:
        n = min(PICTURES, len(x))
        rows = {"data": x[:n], "missing": x[:n], "imputed": result.mean[:n].float()}
        write_atomically(figure, image_rows(figure.stem, "", rows, shape, {"missing": missing[:n]}).png)
    if options.npz is not None:
        write_npz(options.npz, x, missing, result)
    tell_pattern(options, data, values, error, batch, result, seconds)
    for path in (figure, options.npz):
        if path is not None:
            say(options, f"wrote {path}")
    log_p = known_log_p(result)
    has_likelihood = values != "grey levels"
    return {
        "mse": error.mean,
        "standard_error": error.standard_error,
        "pattern": options.pattern,
        "method": options.method,
        "steps": options.steps,
        "missing": error.missing,
        "kept": kept(options),
        "examples": len(x),
        "mse_batch_statistics": None if batch is None else batch.mean,
        "standard_error_batch_statistics": None if batch is None else batch.standard_error,
        "log_likelihood_missing": float(log_p.mean()) if has_likelihood else None,
        "log_likelihood_missing_standard_error": standard_error(log_p) if has_likelihood else None,
        **carried(options, result),
        "data": data.name,
        "split": options.split,
        "values": values,
        "seed": options.seed,
        "seconds": seconds,
        "figure": None if figure is None else str(figure),
        "npz": None if options.npz is None else str(options.npz),
    }


def with_batch_statistics(
    options: argparse.Namespace, saved: Saved, x: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"]
) -> SquaredError | None:
    """The paper's method once more, normalised as its authors did: by the batch at hand."""
    if options.method != "paper" or not batch_norms(saved.model) or len(x) < 2:
        return None
    more = {"batch_size": AUTHORS_BATCH, "batch_statistics": True, "what": "imputing, batch statistics"}
    known = missing & ~x.isnan()
    return squared_error(filled(options, saved, x, ~(missing | x.isnan()), **more).mean, x, known)


def known_log_p(result: Imputation) -> Float[Tensor, " n"]:
    """Of the rows whose missing values are all known, because only the pattern hid them."""
    return result.log_p[~result.log_p.isnan()]


def write_npz(path: Path, x: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"], result: Imputation) -> None:
    """All that the number is made of."""
    content = io.BytesIO()
    np.savez(content, x=x.numpy(), missing=missing.numpy(), mean=result.mean.numpy(), log_p=result.log_p.numpy())
    write_atomically(path, content.getvalue())


def carried(options: argparse.Namespace, result: Imputation) -> dict[str, float | None]:
    """How many states carry the answer."""
    own = METHODS[options.method]
    return {
        "effective_states": float(result.effective.median()) if own.weighted else None,
        "accepted": float(result.accepted.mean()) if options.method == "mwg" else None,
    }


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
    n = len(result.mean)
    say(options, f"{count(n, 'row')} of {data.name}, {options.split}, {values}")
    say(options, f"{options.pattern}: {error.missing:,} values missing")
    say(options, f"method {options.method}, {options.steps} steps, {kept(options)} kept, seed {options.seed}")
    words = "mean squared error per missing value"
    if data.columns is not None:
        words = "mean squared error per missing value (numbers in standard deviations, levels right 0 or wrong 1)"
    if batch is None:
        say(options, f"{words}: {error.mean:.4f} +- {error.standard_error:.4f} (standard error over rows)")
    else:
        size = math.ceil(n / math.ceil(n / AUTHORS_BATCH))  # batches are near-equal
        say(options, f"{words}, exact batch-norm statistics:  {error.mean:.4f} +- {error.standard_error:.4f}")
        say(options, f"{words}, those of {size:,} rows at a time: {batch.mean:.4f} +- {batch.standard_error:.4f}")
    if values != "grey levels" and len(log_p := known_log_p(result)):
        spread = "" if len(log_p) == 1 else f" +- {standard_error(log_p):.2f}"
        say(options, f"log p(missing values | states): {log_p.mean():.2f}{spread} nats a row")
    tell_carried(options, result)
    say(options, f"{seconds:.1f} s")


def tell_carried(options: argparse.Namespace, result: Imputation) -> None:
    found = carried(options, result)
    if (accepted := found["accepted"]) is not None:
        say(options, f"accepted proposals among the kept: {accepted:.1%}")
    if (effective := found["effective_states"]) is not None:
        hint = "; more --steps would help" if effective < FEW else ""
        say(options, f"effective states: median {effective:.1f} of {kept(options)}{hint}")


def impute_input(options: argparse.Namespace, saved: Saved) -> dict[str, Any]:
    if options.output is None:
        raise MemgenError("say where the completed data go: --output")
    outputs = output_paths(options)
    model, form = saved.model, saved.form
    given = read_incomplete(
        options.input,
        model.likelihood.columns,
        image_shape(saved),
        form.levels,
        options.allow_empty_columns,
        options.header,
        form.columns,
    )
    observed = ~given.x.isnan()
    x, grey = as_modelled(saved, given, observed, form.levels, options)
    try:
        check_incomplete(model, Batch(x, observed), options.method)
    except MemgenError as error:
        raise MemgenError(f"{options.input}: {str(error).removeprefix('the data: ')}") from None
    result = filled(options, saved, x, observed, smooth=grey)
    completions = ([result.mean] if options.mean else []) + list(result.draws)
    for path, completed in zip(outputs, completions, strict=True):
        given.write(path, completed)
    missing = int((~observed).sum())
    tell_input(options, given, observed, grey, result)
    for path in outputs:
        say(options, f"wrote {path}")
    return {
        "rows": len(x),
        "missing": missing,
        "method": options.method,
        "steps": options.steps,
        "kept": kept(options),
        **carried(options, result),
        "binarised": grey and not METHODS[options.method].fills_means,
        "header": given.named if isinstance(given, Table | TextTable) else None,
        "draws": options.draws,
        "mean": options.mean,
        "seed": options.seed,
        "outputs": [str(path) for path in outputs],
    }


def tell_input(
    options: argparse.Namespace, given: Incomplete, observed: Bool[Tensor, "N D"], grey: bool, result: Imputation
) -> None:
    missing, empty = int((~observed).sum()), int((~observed).all(-1).sum())
    if isinstance(given, Table | TextTable) and given.named:
        say(options, f"the first line of {options.input} was read as a header (--header no: as a row)")
    rows = count(len(given.x), "row")
    say(options, f"filled in {missing:,} of {observed.numel():,} values in {rows} by the method {options.method}")
    if empty:
        say(options, f"{count(empty, 'row')} had no value at all: drawn from the model, as it were")
    if grey and not METHODS[options.method].fills_means:
        say(options, f"the method saw the grey levels binarised once (seed {options.seed}); what is filled in is grey")
    tell_carried(options, result)


def output_paths(options: argparse.Namespace) -> list[Path]:
    """OUTPUT for the mean, OUTPUT-1, OUTPUT-2, ... for draws; nothing that exists is overwritten unasked."""
    source, target = options.input, options.output
    options.mean = options.mean or not options.draws
    suffix = "" if source.is_dir() else target.suffix
    if source.is_file() and suffix.lower() != source.suffix.lower():
        raise MemgenError(f"--output {target} must end in {source.suffix}, as --input does")
    if not target.parent.is_dir():
        raise MemgenError(f"there is no folder {target.parent} to write {target.name} into")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise MemgenError(f"--output {target} lies inside --input; choose another place")
    stem = target.stem if suffix else target.name
    paths: list[Path] = [target] if options.mean else []
    paths += [target.with_name(f"{stem}-{m + 1}{suffix}") for m in range(options.draws)]
    for path in paths:
        if path.exists() and source.exists() and path.samefile(source):
            raise MemgenError(f"{path} is the input itself; choose another --output")
        if path.exists() and path.is_dir() != source.is_dir():
            kind = "a folder" if path.is_dir() else "a file"
            raise MemgenError(f"{path} exists and is {kind}; choose another --output")
        if not options.overwrite and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
            raise MemgenError(f"{path} exists already; choose another --output, or say --overwrite")
    return paths


def as_modelled(
    saved: Saved, given: Incomplete, observed: Bool[Tensor, "N D"], levels: int, options: argparse.Namespace
) -> tuple[Float[Tensor, "N D"], bool]:
    """What the method sees, and whether it stands for grey levels: under a Bernoulli likelihood these are probabilities
    and are binarised, once, for the methods that need it; missing values then come out as grey levels too.
    """
    x = given.x.float()
    known = x.where(observed, 0)
    white = (known == 255 / levels) | (known == 1)  # at v/256 the whitest byte is not quite 1
    if not saved.model.likelihood.binary or bool(((known < 0) | (known > 1)).any()):
        return x, False
    if bool(((known == 0) | white).all()):
        return white.to(x).where(observed, torch.nan), False
    if METHODS[options.method].fills_means:
        return x, True
    return binarise(known, (BINARISATION_SEED + options.seed) % 2**32).where(observed, torch.nan), True
