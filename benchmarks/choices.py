"""Which tables and methods a comparison is asked for, and which of them are here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from benchmarks.tables import CHOOSING, REPORTING, TABLES, AbsentError, load

OURS = "memgen"


def names_of(text: str, known: Iterable[str], what: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise SystemExit(f"--{what} {text}: {', '.join(unknown) or 'nothing'} is none of {', '.join(known)}")
    return names


def installed_tables(text: str) -> list[str]:
    """The names that --tables means, without those whose package is absent, which get a line each."""
    sets = {"choosing": list(CHOOSING), "reporting": list(REPORTING)}
    installed = []
    for name in sets.get(text) or names_of(text, TABLES, "tables"):
        try:
            load(name)
        except AbsentError as error:
            print(f"table {name} is left out: {error}")
        else:
            installed.append(name)
    return installed


def installed_methods(text: str, known: Iterable[str], module: str) -> list[str]:
    """The names that --methods means; memgen's own needs a module that this version may not have yet."""
    names = names_of(text, known, "methods")
    absent = OURS in names and importlib.util.find_spec(module) is None
    if absent:
        print(f"method {OURS} is left out: there is no {module}")
    elif OURS in names:
        importlib.import_module(module)  # here, so that no cell is charged for it
    return [name for name in names if not (absent and name == OURS)]
