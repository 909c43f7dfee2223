"""Tables that come and go as text."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from memgen.core.batch import Batch
from memgen.tasks import density, imputation
from memgen.web import tables
from memgen.web.shelf import Shown
from tests.web.served import (
    post,
)


def test_cells_that_were_there_stay_and_missing_ones_are_those_of_impute(app: Any, shown: list[Shown]) -> None:
    text = "town,age\nBern,\n,41.5\n=Basel,60\n"
    found = post(app, "fill", model=1, text=text)
    assert found["filled"] == [[1], [0], []]
    assert (found["cells"][0][0], found["cells"][1][1], found["cells"][2]) == ("Bern", "41.5", ["=Basel", "60"])
    columns = tables.schema_of(shown[1])
    offset = columns.columns[1].offset
    x = tables.read(text, columns).x.float()
    expected = imputation.impute(shown[1].model, Batch.of(x), "importance", steps=100, draws=20, batch_size=50)
    assert float(found["cells"][0][1]) == pytest.approx(float(expected.mean[0, 1]) + offset, rel=1e-4)
    whole = density.log_likelihood(shown[1].model, Batch.of(x[2:]), tables.SCORE_SAMPLES).log_p
    assert found["log_p"][2] == pytest.approx(float(whole), abs=0.01)
    assert "of 20" in found["spread"][1][0]


def test_no_cell_of_a_download_is_a_formula(app: Any) -> None:
    found = post(app, "fill", model=1, text="town,age\n=Basel,-3.5\nBern,\n")
    rows = list(csv.reader(io.StringIO(found["csv"])))
    assert rows[1] == ["'=Basel", "-3.5"]
    drawn = post(app, "rows", model=1, n=40, seed=1)
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(drawn["csv"])) for cell in row)


def test_given_columns_are_given(app: Any) -> None:
    found = post(app, "rows", model=1, n=12, fixed={"town": "Bern"})
    assert {row[0] for row in found["cells"]} == {"Bern"}
    assert len({row[1] for row in found["cells"]}) == 12
    error = post(app, "rows", 400, model=1, fixed={"town": "Paris"})["error"]
    assert "Paris" in error
    assert "/" not in error
