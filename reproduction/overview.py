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


def overview_row(row: Row, own: dict[str, Any] | None, extended: dict[str, float]) -> tuple[str, ...]:
    digits = digits_of(row)
    start = (DATA[row.table], row.model, number(row.paper, digits=digits))
    if own is None:
        return (*start, "", "", "not done")
    value = number(own["paper"] + gap(own), own["difference_standard_error"], digits)
    mark = MARK if own["weights_sha256"] in extended else ""
    return (*start, value + mark, number(gap(own), digits=digits, sign=True), verdict(own))


def digits_of(row: Row) -> int:
    """The paper's numbers of Frey faces have no decimals."""
    return 0 if row.table == FREY else 2


def gap(own: dict[str, Any]) -> float:
    """Ours minus the paper's, with as many samples as in the paper where these were taken."""
    return float(own["difference"] + max((more["gain"] for more in own["more"].values()), default=0.0))


def tolerance(own: dict[str, Any]) -> float:
    """The paper's Frey faces are others than ours, so that there the standard error over faces counts."""
    return float(own["difference_standard_error"]) if own["table"] == FREY else LEVEL


def verdict(own: dict[str, Any]) -> str:
    """
    >>> own = {"table": "Table 1, OCR-letters", "difference": -0.15, "more": {}}
    >>> verdict(own), verdict(own | {"more": {"100000": {"gain": 0.1}}}), verdict(own | {"difference": 0.2})
    ('below', 'level with the paper', 'better')
    """
    if abs(gap(own)) <= tolerance(own):
        return "level with the paper"
    return "better" if gap(own) > 0 else "below"
