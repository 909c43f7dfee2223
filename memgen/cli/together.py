"""`memgen train` on several processes, which torchrun or another scheduler has started: they must agree, and only
rank 0 reads and writes the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import torch

from memgen import __version__
from memgen.cli.choosing import Wishes
from memgen.cli.command import INTERRUPTED
from memgen.cli.reading import Loaded, as_trained, load
from memgen.data.own import as_path, is_path
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.runs.following import follow
from memgen.runs.session import Options
from memgen.runs.signals import Stopped
from memgen.training.distributed import Ranks
from memgen.training.prepare import Prepared, prepare

OF_ONE_MACHINE = ("out", "data")
"""Options that may differ among ranks: the run folder is that of rank 0, and the data are compared by their content."""
LONGEST = 100
"""Characters of a setting in a message."""


def check_commands(ranks: Ranks, wishes: Wishes, how: Options) -> None:
    """Refuse ranks that were started with other settings, or have other versions."""
    options = {name: value for name, value in wishes._asdict().items() if name not in (*OF_ONE_MACHINE, "changes")}
    for setting, _, value in (text.partition("=") for text in wishes.changes):
        options[f"--set {setting.strip()}"] = value
    recipe = wishes.recipe
    if recipe is not None and recipe.endswith(".toml"):
        options["recipe"] = Recipe.read(recipe, wishes.schedule).to_toml()
    options |= {"until": how.until, "compile": how.compiled, "device": how.device}
    options |= {"the version of memgen": __version__, "the version of torch": torch.__version__}
    check_same(ranks, {name: str(value) for name, value in options.items()})
    if how.compiled:
        raise MemgenError("--compile is for one process; leave it out under torchrun")


def check_same(ranks: Ranks, own: Mapping[str, str]) -> None:
    """Refuse to go on if something differs among the ranks."""
    first, *others = map(json.loads, ranks.all_words(json.dumps(own)))
    for index, other in enumerate(others, 1):
        for name in {**first, **other}:
            a, b = (_short(of_rank.get(name, "not given")) for of_rank in (first, other))
            if first.get(name) != other.get(name):
                raise MemgenError(
                    f"the ranks do not agree: {name} is {a} on rank 0 and {b} on rank {index}; give all of them the "
                    "same command and the same data"
                )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def check_ready(ranks: Ranks, loaded: Loaded, ready: Prepared) -> None:
    """Refuse ranks with other data, and steps with fewer rows than there are ranks."""
    data = loaded.data
    rows = " x ".join(map(str, (loaded.rows, data.train.shape[1])))
    check_same(ranks, {"the data set": data.name, "the size of the data": rows, "their sha256": loaded.fingerprint})
    for stage, sizes in zip(ready.recipe.stages, ready.sizes, strict=True):
        if min(sizes) < ranks.size:
            raise MemgenError(
                f"stage {stage.name} has a step of {min(sizes)} rows, which cannot be divided among {ranks.size} "
                "ranks; start fewer processes, or use a larger training.batch_size"
            )


def tell_others(ranks: Ranks, ready: Prepared, loaded: Loaded) -> None:
    """Give the other ranks the recipe, and the place of the data, as rank 0 has chosen them."""
    name = ready.recipe.data.name if loaded.path is None else str(loaded.path)
    ranks.words(json.dumps({"recipe": ready.recipe.to_toml(), "data": name}))
    check_ready(ranks, loaded, ready)


def train_along(ranks: Ranks, wishes: Wishes, how: Options, device: str) -> dict[str, int]:
    """What a rank other than 0 does."""
    told = json.loads(ranks.words())
    recipe = Recipe.from_toml(told["recipe"], "the recipe of rank 0")
    name = told["data"] if wishes.data is None else wishes.data
    if wishes.data is not None and is_path(wishes.data):
        name = as_path(wishes.data)
    elif is_path(told["data"]) and not Path(name).exists():
        raise MemgenError(f"rank {ranks.index} has no {name}, on which rank 0 trains; say where it is: --data PATH")
    loaded = load(as_trained(replace(recipe.data, name=name)), recipe.model.likelihood)
    ready = prepare(recipe, loaded.data, loaded.form)
    check_ready(ranks, loaded, ready)
    try:
        follow(ready, ranks, how.until, device)
    except Stopped:  # rank 0 says where the training has stopped
        raise click.exceptions.Exit(INTERRUPTED) from None
    ranks.leave()
    return {"rank": ranks.index}
