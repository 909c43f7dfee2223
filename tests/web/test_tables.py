"""Tables that come and go as text."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from memgen.core.batch import Batch
from memgen.data.texts import as_texts
from memgen.tasks import imputation
from memgen.tasks.columns import quick_column_scores
from memgen.tasks.scoring import score_rows
from memgen.web import tables
from memgen.web.answers import schema_of
from memgen.web.models import Served
from tests.web.served import (
    post,
)


def test_cells_that_were_there_stay_and_missing_ones_are_those_of_impute(app: Any, served: list[Served]) -> None:
    text = "town,age\nBern,\n,41.5\n=Basel,60\n"
    found = post(app, "fill", model=1, text=text)
    assert found["filled"] == [[1], [0], []]
    assert (found["cells"][0][0], found["cells"][1][1], found["cells"][2]) == ("Bern", "41.5", ["=Basel", "60"])
    columns = schema_of(served[1])
    x = tables.read(text, columns).x.float()
    expected = imputation.impute(served[1].model, Batch.of(x), "importance", steps=100, draws=20, batch_size=50)
    texts = as_texts(columns, expected.mean.numpy())
    assert (found["cells"][0][1], found["cells"][1][0]) == (texts[0][1], texts[1][0])
    assert "of 20" in found["spread"][1][0]


def test_no_cell_of_a_download_is_a_formula(app: Any) -> None:
    found = post(app, "fill", model=1, text="town,age\n=Basel,-3.5\nBern,\n")
    rows = list(csv.reader(io.StringIO(found["csv"])))
    assert rows[1] == ["'=Basel", "-3.5"]
    drawn = post(app, "rows", model=1, n=40, seed=1)
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(drawn["csv"])) for cell in row)


def test_given_columns_are_given(app: Any) -> None:
    found = post(app, "rows", model=1, n=12, given={"town": "Bern"})
    assert {row[0] for row in found["cells"]} == {"Bern"}
    assert len({row[1] for row in found["cells"]}) == 12
    error = post(app, "rows", 400, model=1, given={"town": "Paris"})["error"]
    assert "Paris" in error
    assert "/" not in error


def test_scores_are_those_of_the_tasks(app: Any, served: list[Served]) -> None:
    text = "town,age\nBern,\nBern,48\n=Basel,600\n"
    found = post(app, "score", model=1, text=text)
    model, n = served[1].model, tables.SCORE_SAMPLES
    rows = Batch.of(tables.read(text, schema_of(served[1])).x.float())
    expected = score_rows(model, rows, n)
    assert found["log_p"] == pytest.approx(expected.log_p.tolist(), abs=0.01)
    assert found["standard_error"] == pytest.approx(expected.standard_error.tolist(), abs=0.01)
    by_column = quick_column_scores(model, rows, n)
    assert found["columns"][0][1] is None
    assert found["columns"][1] == pytest.approx(by_column[1].tolist(), abs=0.01)
    assert found["percentile"][2] == 0.0
    assert found["column_percentile"][2][1] == 0.0
    assert found["column_percentile"][1][1] > 5
    assert not found["real"]
    assert found["csv"].splitlines()[0] == "town,age,log_p,standard_error,percentile"


def test_given_ranges_hold_and_come_with_their_probability(app: Any) -> None:
    found = post(app, "rows", model=1, n=20, given={"age": ">50"})
    assert all(float(row[1]) > 50 for row in found["cells"])
    assert found["given"] == [1]
    assert found["log_p"] < 0
    assert not found["density"]
    assert found["effective"] > 100


def test_the_memory_of_a_table_is_shown_as_rows(app: Any) -> None:
    rows = post(app, "examples", model=1, n=3)
    assert {row[0] for row in rows["rows"]} <= {"Bern", "=Basel"}
    z = post(app, "encode", model=1, row=2)["z"]
    found = post(app, "look", model=1, z=z, row=2, changes=[{"place": 0, "slot": 1}])
    assert found["x"][0][0] == rows["rows"][2][0]
    assert float(found["x"][0][1]) == pytest.approx(float(rows["rows"][2][1]), abs=1e-3)
    assert found["attention"][0][1] > found["changed"][0][1] == 0
    assert found["samples"] == 50
    assert len(found["means"]) == 2
    slots = post(app, "slots", model=1)
    assert len(slots["pictures"]) == 4
    near = post(app, "nearest", model=1, slot=1)
    assert len(near["rows"]) == near["count"] == 4
