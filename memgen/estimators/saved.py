"""The file of an estimator, checked before an estimator is made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from memgen.core.model import DGM
from memgen.data.columns import Columns
from memgen.data.documents import parse_json, parse_record
from memgen.errors import MemgenError, reason
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.storage import load_tensors

FITTED: dict[str, type | tuple[type, ...]] = {
    "seed_": int,
    "n_iter_": int,
    "linear_": bool,
    "complete_": bool,
    "validation_scores_": dict,
    "missing_": list,
    "offset_": (float, int, type(None)),
}
"""Attribute that an estimator learns, other than its model -> its type in the file."""


class SavedEstimator(NamedTuple):
    """All that a file has of an estimator."""

    settings: dict[str, Any]
    fitted: dict[str, Any]
    named: bool
    names: tuple[str, ...]
    """Of all columns in their order, the ignored ones among them."""
    recipe: Recipe
    columns: Columns
    model: DGM


def read_estimator(path: Path, name: str, settings: Collection[str], fitted: Collection[str]) -> SavedEstimator:
    """The file of an estimator of this class `name`, which has these `settings` and these `fitted` attributes."""
    tensors, about = load_tensors(path)
    if about.get("estimator") != name:
        raise MemgenError(f"{path} holds {about.get('estimator', 'no estimator')[:80]!r}, not a {name}")
    needed = {"settings", "fitted", "named", "recipe", "columns"}
    if lacking := sorted(needed - about.keys()):
        raise MemgenError(f"{path} is damaged: it has no {lacking[0]} inside")
    recipe = Recipe.from_toml(about["recipe"], f"{path} (recipe inside)")
    columns = Columns.from_json(about["columns"], f"{path} (columns inside)")
    return SavedEstimator(
        _entries(about["settings"], dict.fromkeys(settings), f"{path} (settings inside)"),
        _fitted(about["fitted"], fitted, len(columns), f"{path} (fitted inside)"),
        parse_json(about["named"], f"{path} (named inside)") is True,
        _names(about.get("names"), columns, f"{path} (names inside)"),
        recipe,
        columns,
        _model(recipe, columns, tensors, path),
    )


def _names(text: str | None, columns: Columns, where: str) -> tuple[str, ...]:
    """The names of all columns; a file of an earlier version has only those of the model."""
    names = list(columns.names) if text is None else parse_json(text, where)
    known = {*columns.names, *columns.ignored}
    if not isinstance(names, list) or {name for name in names if isinstance(name, str)} != known:
        raise MemgenError(f"{where} is damaged: these are not the names of its columns")
    return tuple(names)


def _entries(text: str, kinds: Mapping[str, type | tuple[type, ...] | None], where: str) -> dict[str, Any]:
    """An object with these names and no others."""
    record = parse_record(text, {name: kind for name, kind in kinds.items() if kind is not None}, where)
    for name in sorted(record.keys() ^ kinds.keys()):
        raise MemgenError(f"{where} is damaged: {'it lacks' if name in kinds else 'unknown entry'} {name[:80]!r}")
    return record


def _fitted(text: str, names: Collection[str], columns: int, where: str) -> dict[str, Any]:
    record = _entries(text, {name: FITTED[name] for name in names}, where)
    scores = record["validation_scores_"]
    if not all(epoch.isdecimal() and len(epoch) < 20 and type(v) in (int, float) for epoch, v in scores.items()):
        raise MemgenError(f"{where} is damaged: its scores are no numbers by epoch")
    if not all(type(place) is int and 0 <= place < columns for place in record.get("missing_", ())):
        raise MemgenError(f"{where} is damaged: its missing columns are none of the columns")
    return record | {"validation_scores_": {int(epoch): score for epoch, score in scores.items()}}


def _model(recipe: Recipe, columns: Columns, tensors: dict[str, Tensor], path: Path) -> DGM:
    model = build(recipe, len(columns), columns.modelled).double().eval()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise MemgenError(f"{path} does not fit its recipe: {reason(error)}") from None
    return model
