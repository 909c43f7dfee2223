"""Truth values that are written as words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

TRUTHS = {
    **dict.fromkeys(("yes", "y", "true", "t", "1", "on", "ja", "j", "oui", "vrai", "wahr"), True),
    **dict.fromkeys(("no", "n", "false", "f", "0", "off", "nein", "non", "faux", "falsch"), False),
}
"""Word, in lower case -> truth value."""


def truth_of(text: str) -> bool | None:
    """
    >>> truth_of(" Yes"), truth_of("FALSE"), truth_of("perhaps")
    (True, False, None)
    """
    return TRUTHS.get(text.strip().lower())


def are_truths(levels: Iterable[str]) -> bool:
    """Whether these texts are truth values, and both of them.

    >>> are_truths(["yes", "No", "1"]), are_truths(["yes", "Yes"]), are_truths(["yes", "no", "perhaps"])
    (True, False, False)
    """
    return {truth_of(level) for level in levels} == {True, False}


def spellings(texts: Iterable[str]) -> dict[bool, list[str]]:
    """The spellings of both truth values, the most frequent one first.

    >>> spellings(["yes", "Yes", "no", "yes"])
    {False: ['no'], True: ['yes', 'Yes']}
    """
    counts = Counter(texts)
    ordered = sorted(counts, key=lambda text: (-counts[text], text))
    return {truth: [text for text in ordered if truth_of(text) is truth] for truth in (False, True)}


def level_of(levels: tuple[str, ...], text: str) -> str:
    """The level that a text stands for where the levels are two truth values: another spelling is the same value.

    >>> level_of(("no", "yes"), "TRUE"), level_of(("no", "yes"), "perhaps")
    ('yes', 'perhaps')
    """
    truth = truth_of(text)
    return text if truth is None else next((level for level in levels if truth_of(level) is truth), text)
