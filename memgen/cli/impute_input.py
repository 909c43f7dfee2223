"""`memgen impute --input`: fill in missing values of the user's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.cli.chains import Chains
from memgen.cli.command import count, say
from memgen.cli.filling import Filling
from memgen.cli.output import check_writable
from memgen.cli.reading import image_shape
from memgen.core.batch import Batch
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data.incomplete import Incomplete, Table, read_incomplete
from memgen.data.incomplete_tables import TextTable
from memgen.errors import MemgenError
from memgen.runs.modelfile import Saved
from memgen.tasks.imputation import Imputation, check_incomplete


class Files(NamedTuple):
    """Input, options of reading, and outputs."""

    source: Path
    outputs: list[Path]
    mean: bool
    """Whether the first output is the average completion."""
    allow_empty_columns: bool
    header: str


class Seen(NamedTuple):
    """The rows in the form that the method reads."""

    x: Float[Tensor, "N D"]
    observed: Bool[Tensor, "N D"]
    grey: bool
    """Whether they stand for grey levels."""


def impute_input(saved: Saved, filling: Filling, files: Files) -> dict[str, Any]:
    chains = filling.chains
    given = read(saved, files)
    seen = as_modelled(saved, given, chains.seed, chains.fills_means)
    try:
        check_incomplete(saved.model, Batch(seen.x, seen.observed), chains.method)
    except MemgenError as error:
        raise MemgenError(f"{files.source}: {str(error).removeprefix('the data: ')}") from None
    result = filling(seen.x, seen.observed, smooth=seen.grey)
    if result is None:
        return filling.sharding.record()
    completions = ([result.mean] if files.mean else []) + list(result.draws)
    for path, completed in zip(files.outputs, completions, strict=True):
        given.write(path, completed)
    tell(chains, files, given, seen, result)
    return {
        "rows": len(seen.x),
        "missing": int((~seen.observed).sum()),
        **chains.to_dict(),
        **chains.carried(result),
        "binarised": seen.grey and not chains.fills_means,
        "header": given.named if isinstance(given, Table | TextTable) else None,
        "draws": chains.draws,
        "mean": files.mean,
        "outputs": [str(path) for path in files.outputs],
    }


def read(saved: Saved, files: Files) -> Incomplete:
    form, columns = saved.form, saved.model.likelihood.columns
    shape, empty = image_shape(saved), files.allow_empty_columns
    return read_incomplete(files.source, columns, shape, form.levels, empty, files.header, form.columns)


def tell(chains: Chains, files: Files, given: Incomplete, seen: Seen, result: Imputation) -> None:
    missing, empty = int((~seen.observed).sum()), int((~seen.observed).all(-1).sum())
    if isinstance(given, Table | TextTable) and given.named:
        say(f"the first line of {files.source} was read as a header (--header no: as a row)")
    rows = count(len(given.x), "row")
    say(f"filled in {missing:,} of {seen.observed.numel():,} values in {rows} by the method {chains.method}")
    if empty:
        say(f"{count(empty, 'row')} had no value at all: drawn from the model without a condition")
    if seen.grey and not chains.fills_means:
        say(f"the method saw the grey levels binarised once (seed {chains.seed}); what is filled in is grey")
    chains.say_carried(result)
    for path in files.outputs:
        say(f"wrote {path}")


def output_paths(source: Path, target: Path | None, mean: bool, draws: int, overwrite: bool) -> list[Path]:
    """OUTPUT for the mean, OUTPUT-1, OUTPUT-2, ... for draws. Existing files are refused without --overwrite."""
    if target is None:
        raise MemgenError("say where the completed data go: --output")
    suffix = "" if source.is_dir() else target.suffix
    if source.is_file() and suffix.lower() != source.suffix.lower():
        raise MemgenError(f"--output {target} must end in {source.suffix}, as --input does")
    if not target.parent.is_dir():
        raise MemgenError(f"there is no folder {target.parent} to write {target.name} into")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise MemgenError(f"--output {target} lies inside --input; choose another place")
    check_writable(target.parent)
    stem = target.stem if suffix else target.name
    paths: list[Path] = [target] if mean else []
    paths += [target.with_name(f"{stem}-{m + 1}{suffix}") for m in range(draws)]
    for path in paths:
        check_place(path, source, overwrite)
    return paths


def check_place(path: Path, source: Path, overwrite: bool) -> None:
    """Refuse the input itself, a folder in place of a file, and existing files without --overwrite."""
    if path.exists() and source.exists() and path.samefile(source):
        raise MemgenError(f"{path} is the input itself; choose another --output")
    if path.exists() and path.is_dir() != source.is_dir():
        kind = "a folder" if path.is_dir() else "a file"
        raise MemgenError(f"{path} exists and is {kind}; choose another --output")
    if not overwrite and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        raise MemgenError(f"{path} exists already; choose another --output, or say --overwrite")


def as_modelled(saved: Saved, given: Incomplete, seed: int, grey: bool) -> Seen:
    """The rows in the form that a task reads.

    Under a Bernoulli likelihood grey levels are probabilities. They are binarised once, unless the task reads `grey`.
    Their missing values are then filled in as grey levels too.
    """
    x, observed = given.x.float(), ~given.x.isnan()
    known = x.where(observed, 0)
    white = (known == 255 / saved.form.levels) | (known == 1)  # at v/256 the whitest byte is not quite 1
    if not saved.model.likelihood.binary or bool(((known < 0) | (known > 1)).any()):
        return Seen(x, observed, False)
    if bool(((known == 0) | white).all()):
        return Seen(white.to(x).where(observed, torch.nan), observed, False)
    if grey:
        return Seen(x, observed, True)
    binary = binarise(known, (BINARISATION_SEED + seed) % 2**32)
    return Seen(binary.where(observed, torch.nan), observed, True)
