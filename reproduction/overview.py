"""The table with which the page opens: every row of the paper, its number, ours, the difference and a verdict."""

from __future__ import annotations

from typing import Any

from reproduction.rows import FREY, MNIST, OCR, ROWS, Row
from reproduction.text import grid, number

LEVEL = 0.1
"""Nats within which a number is level with the paper: two binarisations of the test set differ by about as much."""
MARK = "\\*"
"""Beside the number of a training that was extended after its test number was known."""
DATA = {MNIST: "MNIST", OCR: "OCR-letters", FREY: "Frey faces"}
Results = dict[str, dict[str, Any]]


def overview(results: Results, extended: dict[str, float]) -> str:
    """`extended`: the weights of trainings that were extended after a test number was known."""
    rows = [overview_row(row, results.get(row.name), extended) for row in ROWS.values() if row.table in DATA]
    return grid(("data", "row", "paper", "ours ± error", "difference", "verdict"), rows)


def overview_row(row: Row, result: dict[str, Any] | None, extended: dict[str, float]) -> tuple[str, ...]:
    digits = digits_of(row)
    start = (DATA[row.table], row.model, number(row.paper, digits=digits))
    if result is None:
        return (*start, "", "", "not done")
    value = number(result["paper"] + gap(result), result["difference_standard_error"], digits)
    mark = MARK if result["weights_sha256"] in extended else ""
    return (*start, value + mark, number(gap(result), digits=digits, sign=True), verdict(result))


def digits_of(row: Row) -> int:
    """The paper's numbers of Frey faces have no decimals."""
    return 0 if row.table == FREY else 2


def gap(result: dict[str, Any]) -> float:
    """Ours minus the paper's, with as many samples as in the paper where these were taken."""
    return float(result["difference"] + max((scoring["gain"] for scoring in result["more"].values()), default=0.0))


def tolerance(result: dict[str, Any]) -> float:
    """The paper's Frey faces are others than ours, so that there the standard error over faces counts."""
    return float(result["difference_standard_error"]) if result["table"] == FREY else LEVEL


def verdict(result: dict[str, Any]) -> str:
    """
    >>> result = {"table": "Table 1, OCR-letters", "difference": -0.15, "more": {}}
    >>> verdict(result), verdict(result | {"more": {"100000": {"gain": 0.1}}}), verdict(result | {"difference": 0.2})
    ('below', 'level with the paper', 'better')
    """
    if abs(gap(result)) <= tolerance(result):
        return "level with the paper"
    return "better" if gap(result) > 0 else "below"
