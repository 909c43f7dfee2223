"""A recipe as TOML and as tables: what it extends, its schedule, its stages, and changes to it.

    about    = "MEM-VAE on MNIST"
    extends  = "mnist-vae"      # a shipped recipe, of which this one has every setting that it does not give itself
    schedule = "paper"          # a file of schedules/: how it is trained
    [model]
    slots = [70, 30]

A schedule has sections like a recipe, which are defaults that a recipe may change, and [[stage]] tables, which stand.
A stage changes settings of [training] and [objective]. One with more samples than the recipe has is left out, so that a
schedule which ends with 50 samples serves recipes with 1, 5 and 50.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from memgen.errors import MemgenError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from memgen.recipes.settings import Recipe

Table = dict[str, Any]

MAIN = "main"
"""The name of the only stage of a recipe that names none."""
SECTIONS = ("data", "model", "objective", "training")
OF_STAGE = ("objective", "training")
KEYS = ("about", "extends", "schedule", *SECTIONS, "stage")
OF_OBJECTIVE = ("samples", "bound", "estimator", "local_reconstruction", "kl_warmup_epochs")
"""The keys of a stage that belong to [objective]; all others belong to [training]."""
NESTED = (("model", "hidden"), ("model", "slots"), ("objective", "local_reconstruction"))
"""Settings with one value per layer."""

BYTES, DEPTH = 256 * 1024, 16
"""The largest text and the deepest nesting that are parsed."""
TEXTS = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)
"""Strings and comments of TOML."""


def parse(text: str, where: str) -> Table:
    """TOML as tables, once it is known to be small and flat."""
    if len(text.encode()) > BYTES:
        raise MemgenError(
            f"{where}: a recipe has at most {BYTES // 1024} kB, this text has {len(text.encode()):,} bytes"
        )
    if _depth(text) > DEPTH:
        raise MemgenError(f"{where}: not a recipe: its tables and lists are nested more than {DEPTH} deep")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML, or a number of more digits than Python reads
        raise MemgenError(f"{where}: not valid TOML: {error}") from None


def _depth(text: str) -> int:
    """The nesting depth of brackets, or the number of parts of a dotted key."""
    bare = TEXTS.sub("_", text)
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    # A match begins where a word does: from every letter of a long word the search would take quadratic time.
    dots = max((part.count(".") for part in re.findall(r"(?<![\w-])[\w-]+(?:\s*\.\s*[\w-]+)+", bare)), default=0)
    return max(deepest, dots + 1)


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > BYTES:
            raise MemgenError(f"{path}: a recipe has at most {BYTES // 1024} kB")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MemgenError(f"cannot read the recipe {path}: {reason}") from None


def written(table: Table) -> str:
    return tomli_w.dumps(table)


def _names(folder: Any) -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def names() -> list[str]:
    """The shipped recipes."""
    return _names(resources.files("memgen.recipes"))


def schedule_names() -> list[str]:
    return _names(resources.files("memgen.recipes") / "schedules")


def shipped(name: str) -> Table:
    """The table of a shipped recipe, as its file has it."""
    if name not in names():
        raise unknown("recipe", name, names())
    return parse((resources.files("memgen.recipes") / f"{name}.toml").read_text("utf-8"), name)


def schedule_of(name: str) -> Table:
    """The table of a schedule."""
    if name not in schedule_names():
        raise unknown("schedule", name, schedule_names())
    return parse((resources.files("memgen.recipes") / "schedules" / f"{name}.toml").read_text("utf-8"), name)


def resolve(table: Table, where: str, schedule: str | None = None) -> Table:
    """The table with the recipe that it extends and its schedule filled in; every stage gets all its settings."""
    table = _extended(_checked(table, where), where)
    if "stage" in table and (schedule or "schedule" in table):
        raise MemgenError(f"{where}: it has [[stage]] tables of its own, so it can have no schedule; leave one out")
    schedule = schedule or table.get("schedule")
    timetable: Table = {} if schedule is None else _named_schedule(schedule, where)
    sections = {key: {**timetable.get(key, {}), **table.get(key, {})} for key in SECTIONS}
    samples = sections["objective"].get("samples", 1)
    stages = [
        _stage(entry, sections)
        for entry in table.get("stage") or timetable.get("stage") or [{"name": MAIN}]
        if "stage" in table or not _exceeds(entry.get("samples"), samples)
    ]
    if any(kind not in stage or not isinstance(stage["name"], str) for stage in stages for kind in OF_STAGE):
        raise MemgenError(f"{where}: every [[stage]] needs a name, as in name = {MAIN!r}")
    return {
        "about": table.get("about", ""),
        "data": sections["data"],
        "model": sections["model"],
        "stages": stages,
    }


def _exceeds(samples: Any, most: Any) -> bool:
    return isinstance(samples, int) and isinstance(most, int) and samples > most


def _named_schedule(name: Any, where: str) -> Table:
    try:
        return schedule_of(name)
    except MemgenError as error:
        raise MemgenError(f"{where}: {error}") from None


def _checked(table: Table, where: str) -> Table:
    """A table whose keys are those of a recipe, and whose sections are tables."""
    problems = [str(unknown("key", key, KEYS)) for key in table if key not in KEYS]
    problems += [f"{key} must be a table, [{key}]" for key in SECTIONS if not isinstance(table.get(key, {}), dict)]
    texts = ("about", "extends", "schedule")
    problems += [
        f"{key} must be a text, not {table[key]!r}" for key in texts if not isinstance(table.get(key, ""), str)
    ]
    stages = table.get("stage", [{}])
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, dict) for stage in stages):
        problems.append("stage must be a list of tables, [[stage]]")
    if problems:
        raise MemgenError("\n".join(f"{where}: {problem}" for problem in problems))
    return table


def _extended(table: Table, where: str) -> Table:
    """The table with the settings of the shipped recipe that it extends, recursively."""
    if "extends" not in table:
        return table
    try:
        base = _extended(shipped(table["extends"]), table["extends"])
    except MemgenError as error:
        raise MemgenError(f"{where}: extends: {error}") from None
    sections = {key: {**base.get(key, {}), **table.get(key, {})} for key in SECTIONS}
    inherited: Table = {} if "stage" in table else {key: base[key] for key in ("schedule", "stage") if key in base}
    return {**inherited, **table, **sections}


def _stage(entry: Table, sections: Table) -> Table:
    """A [[stage]] table with what the sections give it."""
    changes: dict[str, Table] = {"objective": {}, "training": {}}
    for key, value in entry.items():
        if key != "name":
            changes["objective" if key in OF_OBJECTIVE else "training"][key] = value
    return {"name": entry.get("name")} | {part: {**sections[part], **changes[part]} for part in OF_STAGE}


def plain(recipe: Recipe) -> Table:
    """A resolved table of a recipe, with every setting."""
    stages = [
        {"name": s.name, "objective": _listed(asdict(s.objective)), "training": asdict(s.training)}
        for s in recipe.stages
    ]
    model, data = _listed(asdict(recipe.model)), asdict(recipe.data)
    latent = model["latent"]
    model["latent"] = latent[0] if len(latent) == 1 else list(latent)
    for net in ("encoder", "decoder"):
        model[net] = [{key: list(v) if isinstance(v, tuple) else v for key, v in layer.items()} for layer in model[net]]
    data["kinds"] = list(data["kinds"])
    return {"about": recipe.about, "data": data, "model": model, "stages": stages}


def _listed(section: Table) -> Table:
    """A single level needs no list of levels."""
    for _, key in NESTED:
        if key in section:
            levels = section[key]
            section[key] = list(levels[0]) if len(levels) == 1 else [list(level) for level in levels]
    return section


def compact(table: Table) -> Table:
    """A resolved table as in a file: settings that are equal in all stages are in [objective] and [training]."""
    stages = table["stages"]
    shared = {
        part: {key: value for key, value in stages[0][part].items() if all(s[part][key] == value for s in stages)}
        for part in OF_STAGE
    }
    result: Table = {"about": table["about"], "data": table["data"], "model": table["model"], **shared}
    if [stage["name"] for stage in stages] != [MAIN]:
        result["stage"] = [
            {"name": stage["name"]}
            | {key: value for part in OF_STAGE for key, value in stage[part].items() if key not in shared[part]}
            for stage in stages
        ]
    return result


def position(name: str, names: Sequence[str]) -> int:
    """The index of a stage among all stages."""
    if name not in names:
        raise unknown("stage", name, names)
    return list(names).index(name)


def overridden(table: Table, settings: Iterable[str]) -> Table:
    """A resolved table with settings of the form section.key=value, or stage.NAME.key=value, changed."""
    for text in settings:
        key, equals, value = text.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not name:
            raise MemgenError(f"--set {text}: write it as section.key=value, for example training.epochs=10")
        try:
            for place, entry in _places(table, section, name):
                place[entry] = parse_value(value.strip())
        except MemgenError as error:
            raise MemgenError(f"--set {text}: {error}") from None
    return table


def _places(table: Table, section: str, name: str) -> list[tuple[Table, str]]:
    """The tables in which a setting stands, and its key."""
    if section in ("data", "model"):
        return [(table[section], name)]
    if section in OF_STAGE:
        return [(stage[section], name) for stage in table["stages"]]
    if section != "stage":
        raise unknown("section", section, (*SECTIONS, "stage"))
    which, _, key = name.rpartition(".")
    stage = table["stages"][position(which, [stage["name"] for stage in table["stages"]])]
    return [(stage["objective" if key in OF_OBJECTIVE else "training"], key)]


def parse_value(text: str) -> Any:
    """A TOML value; a bare word is a text, so that no quotes are needed on a command line."""
    try:
        return parse(f"value = {text}", "value")["value"]
    except MemgenError:  # not TOML, or too long or too deep
        return text


def differences(mine: Table, theirs: Table) -> list[str]:
    """The settings in which two resolved tables differ."""
    names = [", ".join(stage["name"] for stage in table["stages"]) for table in (mine, theirs)]
    alike = names[0] == names[1]
    ours, others = (_flat(table, alike) for table in (mine, theirs))
    changes = [f"{key} was {value!r}, is {others[key]!r}" for key, value in ours.items() if value != others[key]]
    return changes if alike else [*changes, f"the stages were {names[0]}, are {names[1]}"]


def _flat(table: Table, stages: bool) -> Table:
    """Settings by their names, with those of the stages or without."""
    settings = {f"{part}.{key}": value for part in ("data", "model") for key, value in table[part].items()}
    for stage in table["stages"] if stages else ():
        for part in OF_STAGE:
            place = part if len(table["stages"]) == 1 else f"stage.{stage['name']}"
            settings |= {f"{place}.{key}": value for key, value in stage[part].items()}
    return settings
