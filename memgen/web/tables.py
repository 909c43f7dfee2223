"""The answers for models of tables: fill in missing values, score rows, draw rows given some columns.

Input and output are text. The only file that is written lies in a temporary folder and is deleted at once.
"""

from __future__ import annotations

import csv
import io
import math
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from memgen.core.batch import Batch
from memgen.core.model import DGM
from memgen.data.cells import bare, is_missing, number
from memgen.data.columns import Columns
from memgen.data.conditions import given, given_texts, has_density, places
from memgen.data.incomplete_tables import TextTable, read_text_table
from memgen.data.kinds import DATED, LEVELLED
from memgen.data.texts import as_texts, number_text
from memgen.data.written import write_date
from memgen.errors import MemgenError
from memgen.tasks.columns import quick_column_scores
from memgen.tasks.conditional import conditional_sample
from memgen.tasks.sampling import sample
from memgen.tasks.scoring import RowScores, percentiles, score_rows
from memgen.web import queries, service
from memgen.web.answers import schema_of
from memgen.web.models import Served
from memgen.web.service import as_floats

DRAWS = 20
"""Number of completions of each row, whose spread is shown."""
STEPS = 100
BATCH = 50
"""Number of rows that are filled in together."""
SCORE_SAMPLES = 500
SCORES = ("log_p", "standard_error", "percentile")
"""Columns that a download of scored rows has in addition."""
REFERENCE = 100
"""Number of training rows to which rows are compared."""
MOST_CELLS = 50_000
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Prefixes by which a spreadsheet recognises a formula or a command, the last four in full width."""
NAME = "table.csv"


def read(text: str, columns: Columns) -> TextTable:
    """The user's table, parsed by the schema `columns`."""
    with tempfile.TemporaryDirectory(prefix="memgen-") as folder:
        path = Path(folder) / NAME
        path.write_bytes(text.encode("utf-8", "replace"))
        try:
            table = read_text_table(path, columns)
        except MemgenError as error:
            raise MemgenError(str(error).replace(str(path), "the table")) from None
    if len(table.x) > queries.MOST_ROWS or table.x.numel() > MOST_CELLS:
        raise MemgenError(f"the page takes up to {queries.MOST_ROWS:,} rows; memgen impute has no such limit")
    return table


def cells_of(table: TextTable) -> list[list[str]]:
    """The user's cells, in the order of the model's columns."""
    return [[bare(line[place]) for place in table.places] for line in table.lines.cells]


# ---- fill in


def fill(served: Served, model: DGM, query: queries.Table) -> dict[str, Any]:
    """`memgen impute`: every missing cell filled in, with its spread over draws."""
    columns = schema_of(served)
    table = read(query.text, columns)
    x = table.x.float()
    result = service.imputed(model, x, ~x.isnan(), draws=DRAWS, steps=STEPS, seed=query.seed, batch_size=BATCH)
    texts, cells = as_texts(columns, result.mean.numpy()), cells_of(table)
    drawn = [columns.filled(draw.numpy()) for draw in result.draws]
    filled = [row.nonzero().flatten().tolist() for row in x.isnan()]
    for i, j in x.isnan().nonzero().tolist():
        cells[i][j] = texts[i][j]
    return {
        "names": list(columns.names),
        "cells": cells,
        "filled": filled,
        "spread": [[_spread(columns, j, [draw[j][i] for draw in drawn]) for j in row] for i, row in enumerate(filled)],
        "csv": as_csv(list(columns.names), cells),
        "draws": DRAWS,
    }


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


# ---- score


class Scores(NamedTuple):
    rows: RowScores
    columns: Float64[torch.Tensor, "N D"]
    """log p of each column given the others."""


def scores_of(model: DGM, batch: Batch, seed: int = 0) -> Scores:
    """As by `memgen score`; the columns by one pass over all of them."""
    rows = score_rows(model, batch, SCORE_SAMPLES, seed=seed)
    return Scores(rows, quick_column_scores(model, batch, SCORE_SAMPLES, seed=seed))


def reference(served: Served, model: DGM) -> Scores:
    """The scores of training rows, evenly spaced; of rows drawn from the model if there are no data."""
    rows = served.examples.rows if served.examples.train is None else served.examples.train
    chosen = torch.linspace(0, len(rows) - 1, min(REFERENCE, len(rows))).round().long()
    return served.once("reference", lambda: scores_of(model, Batch.of(rows[chosen].float())))


def score(served: Served, model: DGM, query: queries.Table) -> dict[str, Any]:
    """log p of every row, and which columns are unusual given the others, beside those of the reference rows."""
    columns = schema_of(served)
    table = read(query.text, columns)
    scores, usual = scores_of(model, Batch.of(table.x.float()), query.seed), reference(served, model)
    # An incomplete row has fewer values to score: its log p says nothing beside that of complete rows.
    ranks = percentiles(scores.rows.log_p, usual.rows.log_p).where(~table.x.isnan().any(1), torch.nan)
    cells, numbers = cells_of(table), torch.stack([scores.rows.log_p, scores.rows.standard_error, ranks], 1)
    return {
        "names": list(columns.names),
        "cells": cells,
        "log_p": as_floats(scores.rows.log_p, 2),
        "standard_error": as_floats(scores.rows.standard_error, 2),
        "percentile": as_floats(ranks, 1),
        "columns": as_floats(scores.columns, 2),
        "column_percentile": as_floats(column_percentiles(scores, usual), 1),
        "reference": len(usual.rows.log_p),
        "real": served.examples.train is not None,
        "samples": SCORE_SAMPLES,
        "csv": as_csv([*columns.names, *SCORES], [[*row, *texts_of(n)] for row, n in zip(cells, numbers, strict=True)]),
    }


def column_percentiles(scores: Scores, usual: Scores) -> Float64[torch.Tensor, "N D"]:
    """The percentage of the reference rows in which a column is no more probable, given the others."""
    pairs = zip(scores.columns.T, usual.columns.T, strict=True)
    return torch.stack([percentiles(a.nan_to_num(torch.inf), b[~b.isnan()]) for a, b in pairs], 1)


def texts_of(numbers: Float64[torch.Tensor, " n"]) -> list[str]:
    return ["" if math.isnan(value) else f"{value:.4f}" for value in numbers.tolist()]


# ---- draw


def rows(served: Served, model: DGM, query: queries.Rows) -> dict[str, Any]:
    """`memgen sample --where`: new rows given some columns, by a value or by a range such as >50."""
    columns = schema_of(served)
    pairs = [(name, text.strip()) for name, text in query.given.items() if not is_missing(text)]
    condition, about = given(columns, pairs), dict[str, Any]()
    if not pairs:
        x = sample(model, query.n, seed=query.seed, draw=True).double()
    else:
        result = conditional_sample(model, condition, query.n, seed=query.seed, name=columns.names.__getitem__)
        x, about = result.x, {"log_p": round(result.log_p, 2), "effective": round(result.effective)}
    cells = as_texts(columns, x.numpy(), given_texts(columns, pairs), places(columns, pairs))
    return {
        "names": list(columns.names),
        "cells": cells,
        "given": [i for i, name in enumerate(columns.names) if name in dict(pairs)],
        "density": has_density(columns, condition),
        "csv": as_csv(list(columns.names), cells),
        **about,
    }


# ---- CSV


def as_csv(names: list[str], cells: list[list[str]]) -> str:
    """CSV text in which no cell is a formula for a spreadsheet."""
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows([defused(cell) for cell in row] for row in [names, *cells])
    return content.getvalue()


def defused(cell: str) -> str:
    """A cell that a spreadsheet would compute, prefixed by an apostrophe, which marks it as text.

    >>> [defused(cell) for cell in ("=1+1", "-3.5", "Bern", "@SUM(A1)", " =1")]
    ["'=1+1", '-3.5', 'Bern', "'@SUM(A1)", "' =1"]
    """
    risky = cell.lstrip(" ").startswith(FORMULAS) or re.match(r"[\t\r\n]", cell)
    return f"'{cell}" if risky and number(cell) is None else cell
