"""`memgen data`: list, fetch, check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Group, examples, say
from memgen.cli.options import FILE
from memgen.errors import MemgenError

LIST = ("memgen data list",)
FETCH = ("memgen data fetch mnist", "memgen data fetch mnist --from Downloads")
CHECK = ("memgen data check mnist",)


@click.group("data", cls=Group, epilog=examples(*LIST, *FETCH, *CHECK))
def command() -> None:
    """List, fetch and check data sets.

    Files are looked for in the folder that MEMGEN_DATA names, then in the cache (MEMGEN_CACHE, else the user's cache
    folder), where fetch puts them. Their content is always checked.
    """


@command.command("list", epilog=examples(*LIST))
def list_all() -> dict[str, Any]:
    """List the data sets and where their files are."""
    from tabulate import tabulate

    from memgen.data import DATASETS

    rows = []
    for name, home in DATASETS.items():
        folder = home.find() if home.files else None
        where = str(folder) if folder else f"not here yet: memgen data fetch {name}"
        where = where if home.files else "comes with scikit-learn"
        rows.append({"name": name, "about": home.about, "where": where, "available": not home.files or bool(folder)})
    say(tabulate([(row["name"], f"{row['about']}\n{row['where']}") for row in rows], tablefmt="plain"))
    return {"datasets": rows}


@command.command(epilog=examples(*FETCH))
@click.argument("name")
@click.option("--from", "origin", type=FILE, metavar="FOLDER", help="Copy the files from there.")
def fetch(name: str, origin: Path | None) -> dict[str, Any]:
    """Bring a data set into the cache."""
    from memgen.cli.reading import fetch
    from memgen.data import source

    folder = fetch(name, source(name), origin)
    say(f"{name} is in {folder}, its content checked")
    return {"name": name, "folder": str(folder)}


@command.command(epilog=examples(*CHECK))
@click.argument("name")
def check(name: str) -> dict[str, Any]:
    """Read a data set and check its content."""
    from memgen.data import source

    home = source(name)
    if home.files and home.find() is None:
        raise MemgenError(f"{name} is not on this machine; bring it with: memgen data fetch {name}")
    data = home.load()
    counts = {split: data.count(split) for split in ("train", "valid", "test")}
    sizes = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    columns = data.train.shape[1]
    say(f"{name}: {sizes} rows of {columns} columns, scale {data.scale}, {data.binarisation}; good")
    return {"name": name, **counts, "columns": columns, "scale": data.scale, "good": True}
