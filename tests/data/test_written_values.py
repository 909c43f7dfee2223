"""Numbers and dates are read as they are written, and written as they were."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from memgen.data.columns import Columns
from memgen.data.incomplete_tables import read_text_table
from memgen.data.own import read_own
from memgen.data.parsing import Reading, parse
from memgen.data.texts import as_texts
from memgen.data.written import FORMATS, Digits, date_format, read_date, write_date
from memgen.errors import MemgenError

NUMBERS: dict[str, tuple[list[str], list[float], str]] = {
    "thousands, en": (["1,234.50", "-7.00", "12,000,000.25"], [1234.5, -7, 12000000.25], "#,##0.00"),
    "thousands, whole": (["1,234", "5,678", "12"], [1234, 5678, 12], "#,##0"),
    "swiss": (["1'234.5", "20"], [1234.5, 20], "#'##0.#"),
    "german": (["1.234,50", "7,00"], [1234.5, 7], "#.##0,00"),
    "decimal comma": (["3,14", "-2,5", "7"], [3.14, -2.5, 7], "0,##"),
    "french": (["1\u202f234,5", "20,5"], [1234.5, 20.5], "#\u202f##0,0"),
    "plain": (["3.50", "2.00"], [3.5, 2], "0.00"),
    "whole": (["3", "20"], [3, 20], "0"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_with_their_separators_and_written_back(name: str) -> None:
    cells, values, pattern = NUMBERS[name]
    parsed = parse("x", [*cells, ""])
    assert parsed.values[:-1].tolist() == values
    assert np.isnan(parsed.values[-1])
    digits = Digits.of(parsed.format)
    assert digits is not None
    assert str(digits) == parsed.format
    assert [digits.write(float(value)) for value in values] == cells
    if name != "french":  # the group separator of "20,5" alone is not known
        assert parsed.format == pattern


def test_a_locale_decides_what_cells_leave_open() -> None:
    assert parse("x", ["1,234", "2,500"]).values.tolist() == [1234, 2500]
    assert parse("x", ["1,234", "2,500"], Reading(locale="de-DE")).values.tolist() == [1.234, 2.5]
    assert parse("x", ["1.234", "2.500"]).values.tolist() == [1.234, 2.5]
    assert parse("x", ["1.234", "2.500"], Reading(locale="de-DE")).values.tolist() == [1234, 2500]
    assert parse("x", ["3/4/2020"]).values[0] == np.datetime64("2020-04-03")
    assert parse("x", ["3/4/2020"], Reading(locale="en-US")).values[0] == np.datetime64("2020-03-04")


@pytest.mark.parametrize("format", FORMATS)
def test_dates_of_every_format_come_back(format: str) -> None:
    """A date whose day is no month, so that it has one reading; times are to the minute or second of the format."""
    cells = [write_date(datetime(1999, month, 28, 13, 45, 30), format) for month in (1, 12)]
    found = date_format(cells)
    assert found is not None
    assert [write_date(read_date(cell, found), found) for cell in cells] == cells
    assert [read_date(cell, found) for cell in cells] == [read_date(cell, format) for cell in cells]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["12", "13", "abc", *map(str, range(40))], "row 3: 'abc' is not a number"),
        (["2020-01-01", "2020-02-30"], "no common format that is read"),
    ],
)
def test_cells_that_fit_no_form_are_told(cells: list[str], words: str) -> None:
    with pytest.raises(MemgenError, match=words):
        parse("x", cells, Reading("date" if "-" in cells[0] else "any"))


def awkward(path: Path, rows: int = 60) -> Path:
    """A table of columns that need care, 40% of whose cells are missing except in the first one."""
    chance = np.random.default_rng(0)
    yes, no = ["yes", "Yes", "TRUE", "1"], ["no", "No", "f", "0"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "zip", "born", "paid", "member", "gift", "size"])
        for i in range(rows):
            row = [
                f"{chance.choice(['01067', '80331', '04109'])}",
                f"{1 + chance.integers(28)}.{1 + chance.integers(12)}.{1950 + chance.integers(50)}",
                f"{np.exp(8 + chance.normal()):,.2f}",
                chance.choice(yes if chance.random() < 0.5 else no),
                f"{chance.integers(1, 900) * (chance.random() < 0.4)}",
                f"{170 + 8 * chance.normal():.1f}",
            ]
            writer.writerow([f"no. {i}", *(cell if chance.random() < 0.6 else "" for cell in row)])
    return path


def test_an_awkward_table_is_read_and_written_back_in_its_own_form(tmp_path: Path) -> None:
    path = awkward(tmp_path / "x.csv")
    data = read_own(path, ignore=["id"])
    columns = data.columns
    assert columns is not None
    assert columns.kinds == ("code", "date", "positive", "binary", "zero_inflated", "real")
    assert columns.ignored == ("id",)
    assert len(columns.columns[3].levels) == 2
    assert "8 spellings merged" in columns.columns[3].why
    assert [c.format for c in columns][1:3] == ["%-d.%-m.%Y", "#,##0.00"]
    table = read_text_table(path, columns)
    # What is known is written as it was; a truth value in another spelling is the same value.
    texts = as_texts(columns, table.x.numpy(), free=range(len(columns)))
    for row, found in zip(table.lines.cells, texts, strict=True):
        for place, (cell, text) in enumerate(zip(row[1:], found, strict=True)):
            if place != 3:
                assert text == cell.strip('"')
    # Far values are put inside the range, and have the decimals of the column.
    far = as_texts(columns, np.array([[0, 1e3, 1e3, 0, 1e5, 0.12345]]))[0]
    assert read_date(far[1], "%d.%m.%Y").year <= 1999
    assert Digits.of("#,##0.00").read(far[2]) == columns.columns[2].high
    assert len(far[5].partition(".")[2]) == 1
    table.write(tmp_path / "full.csv", table.x.nan_to_num(0))
    with path.open() as before, (tmp_path / "full.csv").open() as after:
        for old, new in zip(csv.reader(before), csv.reader(after), strict=True):
            assert all(a == b or not a for a, b in zip(old, new, strict=True))
            assert all(new)
    assert Columns.from_json(columns.to_json()) == columns


def test_all_problems_are_told_at_once_with_their_remedy(tmp_path: Path) -> None:
    lines = [f"c{i:05},free text {i},{'abc' if i == 7 else i * 1.5},{i % 3}" for i in range(60)]
    (tmp_path / "x.csv").write_text("id,the note,number,good\n" + "\n".join(lines) + "\n")
    with pytest.raises(MemgenError) as caught:
        read_own(tmp_path / "x.csv")
    message = str(caught.value)
    assert "3 columns cannot be used" in message
    assert "--ignore id --ignore 'the note' --ignore number" in message
    assert message.index("'id'") < message.index("'the note'") < message.index("row 8: 'abc'")
    data = read_own(tmp_path / "x.csv", ignore=["id", "the note", "number"])
    assert data.columns is not None
    assert data.columns.names == ("good",)
    for ignore, words in ((["nothing"], "unknown column to ignore"), ((*data.columns.ignored, "good"), "all columns")):
        with pytest.raises(MemgenError, match=words):
            read_own(tmp_path / "x.csv", ignore=ignore)


def test_a_large_column_of_dates_or_separators_is_no_free_text(tmp_path: Path) -> None:
    lines = [f'{datetime.fromtimestamp(1e9 + 7e4 * i):%Y-%m-%d %H:%M:%S},"{1000 + 3 * i:,}"' for i in range(3000)]
    (tmp_path / "x.csv").write_text("when,amount\n" + "\n".join(lines) + "\n")
    data = read_own(tmp_path / "x.csv")
    assert data.columns is not None
    assert data.columns.kinds == ("time", "integer")
    assert data.columns.columns[1].step == 3
