"""The answers for models of tables: fill in missing values, draw rows given some columns, score rows.

Input and output are text. The only file that is written lies in a temporary folder and is deleted at once.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.model import DGM
from memgen.data.cells import bare, is_missing, number
from memgen.data.columns import Columns
from memgen.data.conditions import given, given_texts, places
from memgen.data.incomplete_tables import TextTable, read_text_table
from memgen.data.kinds import DATED, LEVELLED
from memgen.data.texts import as_texts, number_text
from memgen.data.written import write_date
from memgen.errors import MemgenError
from memgen.tasks.conditional import conditional_sample
from memgen.web import asks, service
from memgen.web.service import as_floats
from memgen.web.shelf import Shown
from memgen.web.work import Check

DRAWS = 20
"""Number of completions of each row, whose spread is shown."""
STEPS = 100
BATCH = 50
"""Number of rows that are filled in together."""
SCORE_SAMPLES = 200
MOST_CELLS = 50_000
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "|", "%")
"""Prefixes by which a spreadsheet recognises a formula or a command."""
NAME = "table.csv"


def schema_of(shown: Shown) -> Columns:
    columns = shown.saved.form.columns
    if columns is None:
        raise MemgenError(f"{shown.name} is no model of a table with named columns")
    return columns


def read(text: str, columns: Columns) -> TextTable:
    """The user's table, parsed by the schema `columns`."""
    with tempfile.TemporaryDirectory(prefix="memgen-") as folder:
        path = Path(folder) / NAME
        path.write_bytes(text.encode("utf-8", "replace"))
        try:
            table = read_text_table(path, columns)
        except MemgenError as error:
            raise MemgenError(str(error).replace(str(path), "the table")) from None
    if len(table.x) > asks.MOST_ROWS or table.x.numel() > MOST_CELLS:
        raise MemgenError(f"the page takes up to {asks.MOST_ROWS:,} rows; memgen impute has no such limit")
    return table


def fill(shown: Shown, ask: asks.Fill, check: Check) -> dict[str, Any]:
    """Every missing cell filled in, with its spread over draws, and log p of every row."""
    columns = schema_of(shown)
    table = read(ask.text, columns)
    model, x = service.view(shown.model, check), table.x.float()
    observed = ~x.isnan()
    result = service.imputed(model, x, observed, draws=DRAWS, steps=STEPS, seed=ask.seed, batch_size=BATCH)
    texts = as_texts(columns, result.mean.numpy())
    drawn = [columns.filled(draw.numpy()) for draw in result.draws]
    cells, filled, spread = [], [], []
    for i, (row, missing) in enumerate(zip(table.lines.cells, (~observed).tolist(), strict=True)):
        originals = [bare(row[place]) for place in table.places]
        cells.append([new if absent else old for absent, new, old in zip(missing, texts[i], originals, strict=True)])
        filled.append([j for j, absent in enumerate(missing) if absent])
        spread.append([_spread(columns, j, [one[j][i] for one in drawn]) for j, absent in enumerate(missing) if absent])
    scores = score(shown, model, x, result.log_observed.float())
    return {
        "names": list(columns.names),
        "cells": cells,
        "filled": filled,
        "spread": spread,
        "log_p": as_floats(scores, 2),
        "csv": as_csv(list(columns.names), cells),
        "draws": DRAWS,
    }


def score(shown: Shown, model: DGM, x: Float[Tensor, "N D"], log_observed: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log p of the observed values of every row, computed as by `memgen evaluate`. If the model was not trained on
    missing values, incomplete rows get the estimate `log_observed`, a by-product of imputation."""
    whole = torch.ones(len(x), dtype=torch.bool) if shown.model.mask else ~x.isnan().any(-1)
    scores = log_observed.clone()
    if bool(whole.any()):
        scores[whole] = service.log_p(model, x[whole], SCORE_SAMPLES).float()
    return scores


def _spread(columns: Columns, place: int, values: list[Any]) -> str:
    """A short summary of the draws of one cell."""
    column = columns.columns[place]
    if column.kind in LEVELLED:
        kinds, counts = np.unique([str(_plain(value)) for value in values], return_counts=True)
        best = np.argsort(-counts, kind="stable")[:3]
        return ", ".join(f"{kinds[i]} in {counts[i]} of {len(values)}" for i in best)
    if column.kind in DATED:
        days = np.sort(np.array(values, "datetime64[s]"))[[len(values) // 10, len(values) // 2, -1 - len(values) // 10]]
        dates = [write_date(day.item(), column.format) for day in days]
        return f"median {dates[1]}, 8 of 10 draws between {dates[0]} and {dates[2]}"
    low, middle, high = np.quantile(np.array(values, float), [0.1, 0.5, 0.9])
    words = [number_text(float(v), abs(float(high - low)) * 1000) for v in (low, middle, high)]
    return f"median {words[1]}, 8 of 10 draws between {words[0]} and {words[2]}"


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value


def rows(shown: Shown, ask: asks.Rows, check: Check) -> dict[str, Any]:
    """New rows given some columns, by a value or by a range such as >50."""
    columns, model = schema_of(shown), service.view(shown.model, check)
    pairs = [(name, text.strip()) for name, text in ask.fixed.items() if not is_missing(text)]
    condition = given(columns, pairs)
    if not pairs:
        x: Tensor = service.samples(model, ask.n, ask.seed, True, 0).x.double()
    else:
        name, tick = columns.names.__getitem__, lambda states: check()
        x = conditional_sample(model, condition, ask.n, seed=ask.seed, name=name, tick=tick).x
    cells = as_texts(columns, x.numpy(), given_texts(columns, pairs), places(columns, pairs))
    fixed = [i for i, name in enumerate(columns.names) if name in dict(pairs)]
    return {"names": list(columns.names), "cells": cells, "fixed": fixed, "csv": as_csv(list(columns.names), cells)}


def as_csv(names: list[str], cells: list[list[str]]) -> str:
    """CSV text in which no cell is a formula for a spreadsheet."""
    return _written([[defused(cell) for cell in row] for row in [names, *cells]])


def _written(table: list[list[str]]) -> str:
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(table)
    return content.getvalue()


def defused(cell: str) -> str:
    """A cell that a spreadsheet would compute, prefixed by an apostrophe, which marks it as text.

    >>> [defused(cell) for cell in ("=1+1", "-3.5", "Bern", "@SUM(A1)", " =1")]
    ["'=1+1", '-3.5', 'Bern', "'@SUM(A1)", "' =1"]
    """
    risky = cell.lstrip(" ").startswith(FORMULAS) or re.match(r"[\t\r\n]", cell)
    return f"'{cell}" if risky and number(cell) is None else cell
