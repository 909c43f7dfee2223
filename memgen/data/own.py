"""The user's own data: a table, an array or a folder of images, read into a Dataset with seeded splits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int
from numpy.typing import NDArray
from torch import Tensor

from memgen.data.columns import Columns
from memgen.data.dataset import SPLITS, Dataset, labels
from memgen.data.kinds import check_kinds, given_kinds
from memgen.data.own_files import ENDINGS, files_in, read_path
from memgen.data.own_images import RawImages, levels_of
from memgen.data.own_streamed import Wanted, open_stored, read_streamed
from memgen.data.own_tables import Expected, RawTable, arrange
from memgen.data.values import Coded, tidy
from memgen.data.words import parse_locale
from memgen.errors import MemgenError, unknown

SPLIT_SEED = 1234
FEWEST = 10
"""Rows, so that every split has one."""
MOST_CLASSES = 1000
HEADERS = STREAM = ("auto", "yes", "no")
CHUNK = 1 << 20


def is_path(name: str) -> bool:
    """Whether `name` is a path rather than the name of a data set.

    >>> is_path("digits"), is_path("table.csv"), is_path("photos/"), is_path("nothing-of-the-kind")
    (False, True, True, False)
    """
    from memgen.data import DATASETS

    return name not in DATASETS and (as_path(name) == name or Path(name).exists())


def as_path(name: str) -> str:
    """A path in a form that `is_path` recognises, even where there is no such file.

    >>> as_path("photos"), as_path("table.csv"), as_path("photos/")
    ('./photos', 'table.csv', 'photos/')
    """
    named = "/" in name or os.sep in name or Path(name).suffix.lower() in ENDINGS
    return name if named else f"./{name}"


def read_own(
    path: Path,
    *,
    size: tuple[int, int] | None = None,
    levels: int = 0,
    likelihood: str = "auto",
    kinds: Mapping[str, str] | None = None,
    header: str = "auto",
    ignore: Sequence[str] = (),
    locale: str = "auto",
    columns: Columns | None = None,
    stream: str = "auto",
    seed: int = SPLIT_SEED,
    whole: bool = False,
    tested: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Dataset:
    """A table, an array, an idx file or a folder of images or tables, split 80 : 10 : 10 by the seed; with `whole`
    every split is all the rows, in their order: for data that no training has seen. With `tested` the test rows lie in
    another file, and those of this one are for training, too.

    `size`: height and width that images are made to have. `levels`: the largest level of their pixels, by which these
    are divided; 0: as the pixels show. `kinds`: of columns, by name; those not given are
    inferred from the values. `ignore`: columns that are not read. `locale`: how numbers and dates are written (LOCALES
    of written.py). `columns`: read the table by this schema, that of a trained model. `likelihood` is put
    into the Dataset; "auto" is "mixed" for tables, and for images "bernoulli" if they have two levels, else
    "discretised_logistic". `stream`: whether the rows stay in the file and are read while they are used; "auto": if it
    is large. `report(done, total)` is called while images, or rows that stay in the file, are read.
    """
    if header not in HEADERS:
        raise unknown("header", header, HEADERS)
    if stream not in STREAM:
        raise unknown("choice of data.stream", stream, STREAM)
    check_kinds(kinds or {})
    if not path.exists():
        raise MemgenError(f"there is no file or folder {path}")
    expected = Expected(kinds or {}, columns, columns.ignored if columns else tuple(ignore), parse_locale(locale))
    try:
        if (stored := open_stored(path, size, stream)) is not None:
            return read_streamed(stored, Wanted(size, levels, likelihood, expected, None if whole else seed, report))
        data = read_path(path, size, header, expected, report)
        rows = dict.fromkeys(SPLITS, np.arange(len(data))) if whole else split_rows(len(data), seed)
        if tested:
            rows |= {"train": np.concatenate([rows["train"], rows["test"]])}
        name = path.resolve().name
        if isinstance(data, RawImages):
            return _images(name, data, rows, levels, likelihood, kinds, columns)
        if size is not None:
            raise MemgenError("a size is for images, and this is a table; images in an array are (N, height, width)")
        return _table(name, data, rows, likelihood, kinds, columns)
    except MemgenError as error:
        # Most errors from these functions name a row and a column, but not the file.
        raise error if str(path) in str(error) else MemgenError(f"{path}: {error}") from None


def with_test(data: Dataset, test: Dataset) -> Dataset:
    """The data with all rows of another file, which was read in the same form, as test rows."""
    if data.is_streamed or data.shape != test.shape:
        what = "stay in their file (say --no-stream)" if data.is_streamed else "have another shape"
        raise MemgenError(f"{test.name} cannot be the test rows of {data.name}, whose rows {what}")
    labels = {split: codes for split, codes in data.labels.items() if split != "test"}
    if labels and test.labels:
        if other := sorted({*test.classes} - {*data.classes}):
            raise MemgenError(f"{test.name} has rows of the class {other[0]!r}, which {data.name} does not have")
        place = torch.tensor([data.classes.index(name) for name in test.classes])
        labels["test"] = place[test.labels["test"]]
    return replace(data, test=test.rows("test"), labels=labels)


def split_rows(n: int, seed: int = SPLIT_SEED) -> dict[str, Int[NDArray[np.intp], " rows"]]:
    """Which rows go where: 80% train, 10% valid, 10% test, at least one each; the same on every machine.

    >>> {split: len(rows) for split, rows in split_rows(25).items()}
    {'train': 21, 'valid': 2, 'test': 2}
    """
    if n < FEWEST:
        raise MemgenError(f"there are {n} rows; to train, validate and test takes at least {FEWEST}")
    # RandomState, because its stream is frozen for good.
    order = np.random.RandomState(seed).permutation(n).astype(np.intp)
    part = n // 10
    return {"train": order[: n - 2 * part], "valid": order[n - 2 * part : n - part], "test": order[n - part :]}


def _table(
    name: str,
    table: RawTable,
    rows: dict[str, NDArray[np.intp]],
    likelihood: str,
    kinds: Mapping[str, str] | None,
    columns: Columns | None,
) -> Dataset:
    if columns is None:
        given = given_kinds(table.names, kinds)
        columns = Columns.infer(
            table.values,
            table.names,
            given,
            train=rows["train"],
            formats=table.formats,
            problems=dict(table.problems),
            ignored=table.ignored,
        )
        if likelihood not in ("auto", "mixed"):
            columns = columns.unscaled()
    elif table.problems:
        raise MemgenError("; ".join(problem for _, problem in table.problems))
    elif kinds:
        raise MemgenError("the kinds of columns are those of the model; do not give others")
    else:
        table = arrange(table, columns)
    order, places = _in_order(rows)
    numbers = torch.from_numpy(columns.encode(table.values, dtype=np.float32, order=order))
    x = {split: numbers[place] for split, place in places.items()}
    codes, classes = class_codes(table.labels)
    return Dataset(
        name,
        x["train"],
        x["valid"],
        x["test"],
        likelihood="mixed" if likelihood == "auto" else likelihood,
        labels=_labels(codes, rows),
        classes=classes,
        columns=columns,
    )


def _images(
    name: str,
    images: RawImages,
    rows: dict[str, NDArray[np.intp]],
    levels: int,
    likelihood: str,
    kinds: Mapping[str, str] | None,
    columns: Columns | None,
) -> Dataset:
    if kinds or columns is not None:
        what = "kinds of columns are for tables" if kinds else "the model was trained on a table"
        raise MemgenError(f"{what}, and these are images")
    levels = levels_of(images, levels)
    two = images.has_only(0, levels)
    if likelihood == "auto":
        likelihood = "bernoulli" if two else "discretised_logistic"
    x = _parts(images.rows(levels), rows)
    codes, classes = class_codes(images.labels)
    return Dataset(
        name,
        x["train"],
        x["valid"],
        x["test"],
        shape=images.pixels.shape[1:],
        likelihood=likelihood,
        stochastic=likelihood == "bernoulli" and not two,
        labels=_labels(codes, rows),
        scale="0/1" if likelihood == "bernoulli" and two else f"v/{levels}{', rounded' * images.rounded}",
        levels=levels,
        classes=classes,
    )


def _in_order(rows: dict[str, NDArray[np.intp]]) -> tuple[NDArray[np.intp], dict[str, slice]]:
    """The rows of all splits, concatenated, and the slice of each split. Splits of the same rows share one slice,
    so that nothing is copied."""
    parts = {id(part): part for part in rows.values()}
    ends = dict(zip(parts, np.cumsum([len(part) for part in parts.values()]).tolist(), strict=True))
    places = {split: slice(ends[id(part)] - len(part), ends[id(part)]) for split, part in rows.items()}
    return np.concatenate(list(parts.values())), places


def _parts(
    x: Float32[NDArray[np.float32], "N D"], rows: dict[str, NDArray[np.intp]]
) -> dict[str, Float32[Tensor, "rows D"]]:
    return {split: torch.from_numpy(x[indices]) for split, indices in rows.items()}


def _labels(codes: NDArray[np.intp] | None, rows: dict[str, NDArray[np.intp]]) -> dict[str, Int[Tensor, " rows"]]:
    return {} if codes is None else {split: labels(codes[indices]) for split, indices in rows.items()}


def class_codes(values: NDArray[Any] | Coded | None) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
    """A number 0, 1, ... for each row's class, and the names of the classes, sorted.

    >>> class_codes(np.array(["cat", "ant", "cat"]))
    (array([1, 0, 1]), ('ant', 'cat'))
    """
    if values is None:
        return None, ()
    raw = tidy("labels", values)
    if raw.missing.any():
        row = int(np.flatnonzero(raw.missing)[0]) + 1
        raise MemgenError(f"the label of row {row} is missing; every row needs one, or the column another name")
    if raw.form != "text" and bool((raw.data != np.floor(raw.data)).any()):
        raise MemgenError("labels are text or whole numbers, these are fractions; give the column another name")
    levels = sorted(set(raw.data.tolist()))
    if len(levels) > MOST_CLASSES:
        raise MemgenError(f"there are {len(levels)} different labels, which is too many; give the column another name")
    place = {level: i for i, level in enumerate(levels)}
    codes = np.array([place[value] for value in raw.data.tolist()], dtype=np.intp)
    return codes, tuple(level if raw.form == "text" else str(int(level)) for level in levels)


def fingerprint(path: Path) -> str:
    """The sha256 of a file, or of the names and contents of a folder's files: whether the data are still the same."""
    try:
        if not path.is_dir():
            return _sha256(path).hex()
        whole = hashlib.sha256()
        for file in files_in(path):
            name = os.fsencode(file.relative_to(path).as_posix())
            whole.update(name + b"\0" + _sha256(file))
        return whole.hexdigest()
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None


def _sha256(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.digest()
