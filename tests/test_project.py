"""The project itself: who may import whom, what the README promises, what a wheel holds."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

import memgen
from memgen.cli.main import SECTIONS, group, main
from memgen.recipes.settings import recipe_names
from memgen.runs import zoo

ROOT = Path(__file__).parents[1]

ROOMS = [
    {"errors"},
    {"core"},
    {"data"},
    {"recipes"},
    {"accelerate"},
    {"tasks"},
    {"training"},
    {"runs"},
    {"report", "estimators"},
    {"web"},
    {"cli"},
    {"__main__"},
]
"""From the ground up: a room imports only from rows above its own in this list, and from itself."""


def imports(path: Path) -> set[str]:
    """The parts of memgen that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "memgen" else [f"memgen.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("memgen.")}
    return found


def test_imports_go_downwards_only() -> None:
    rank = {name: i for i, row in enumerate(ROOMS) for name in row}
    for path in (ROOT / "memgen").rglob("*.py"):
        parts = path.relative_to(ROOT / "memgen").with_suffix("").parts
        if parts == ("__init__",):
            continue
        own = parts[0]
        assert own in rank, f"{own} has no place in the order yet"
        for other in imports(path) - {own, "__version__"}:
            assert rank[other] < rank[own], f"{path.name} imports {other}, which stands above it"


def test_who_asks_for_what_is_fast() -> None:
    """Training, its optimizer and the evaluator, in one place each; the method is readable without."""
    asking = {
        path.relative_to(ROOT / "memgen").as_posix()
        for path in (ROOT / "memgen").rglob("*.py")
        if path.parent.name != "accelerate" and "accelerate" in imports(path)
    }
    assert asking == {"training/execution.py", "training/optimizer.py", "tasks/density.py"}


LONGEST_FILE, LONGEST_FUNCTION = 300, 19
FOLDERS = ("memgen", "tests", "benchmarks", "reproduction")
"""Of all Python code."""


def test_no_python_file_is_longer_than_300_lines() -> None:
    lines = {path: path.read_text().count("\n") for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > LONGEST_FILE} == {}


def test_nine_of_ten_functions_are_short() -> None:
    lines = [
        node.end_lineno - node.lineno + 1
        for path in (ROOT / "memgen").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    assert sorted(lines)[len(lines) * 9 // 10] < LONGEST_FUNCTION


def test_nothing_unpickles_evaluates_or_builds_shell_strings() -> None:
    for path in (ROOT / "memgen").rglob("*.py"):
        text = path.read_text()
        assert not re.search(
            r"import pickle|(?<!\.)\beval\(|\bexec\(|shell=True|os\.system|(?<!safetensors\.)torch\.load\(", text
        ), path


def test_modules_are_imported_lazily_and_all_names_resolve() -> None:
    code = "import sys, memgen; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for name in memgen.__all__:
        assert getattr(memgen, name) is not None
    assert set(dir(memgen)) == set(memgen.__all__)
    with pytest.raises(AttributeError):
        memgen.nothing  # noqa: B018


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "results" / "REPRODUCTION.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "results" / "LEDGER.md",
    ROOT / "reproduction" / "NOTES.md",
    ROOT / "benchmarks" / "NOTES.md",
]


@pytest.mark.usefixtures("long_loop")
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_the_documents_show_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bash and python block, in order and in one folder: a page may make the data that it goes on with."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, block in re.findall(r"```(bash|python)\n(.*?)```", path.read_text(), re.DOTALL):
        if language == "bash":
            run_lines(path, block)
        else:
            with contextlib.redirect_stdout(None):
                exec(compile(block, path.name, "exec"), names)


def run_lines(path: Path, block: str) -> None:
    """Every line of a bash block: memgen commands run, make targets exist, scripts are there."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in filter(None, (line.partition("#")[0].strip() for line in block.splitlines())):
        words = shlex.split(line)
        if words[0] == "memgen":
            run_memgen(words[1:])
        elif words[0] == "make":
            assert set(words[1:]) <= targets, line
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]) is not None, line
        else:
            assert words[0] in ("pip", "git", "cd"), f"{path.name}: no test checks {line!r}"


def run_memgen(arguments: list[str]) -> None:
    """Run a command of the documents; long trainings, their runs and foreign data are only parsed."""
    options = parsed(arguments)
    foreign = str(options.get("recipe") or options.get("name") or options.get("path") or "")
    if arguments[0] not in ("demo", "serve") and not foreign.startswith(("mnist", "ocr", "frey", "runs/reproduce")):
        assert main(arguments) == 0, arguments


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a command line, which must be one that memgen understands."""
    command: click.Command = group
    context, name = None, "memgen"
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=name)
        found, inner, arguments = command.resolve_command(context, arguments)
        assert inner is not None
        command, name = inner, found or ""
    return command.make_context(name, arguments, parent=context).params


def test_the_help_says_the_first_sentence_of_every_command() -> None:
    """It is written twice, so that `memgen --help` need not import the commands."""
    for commands in SECTIONS.values():
        for name, about in commands.items():
            command = group.get_command(click.Context(group), name)
            assert command is not None
            assert (command.help or "").partition("\n")[0] == about, name


def test_links_between_documents_lead_somewhere() -> None:
    for path in (*DOCUMENTS, ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_lines_of_code_that_the_documents_name_exist() -> None:
    """docs/paper.md maps equations to `file.py: name`."""
    text = (ROOT / "docs" / "paper.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", text)
    assert len(named) > 15
    for file, names in named:
        source = (ROOT / "memgen" / file).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            last = name.split(".")[-1]
            assert re.search(rf"(def|class) {last}\b|^\s*(self\.)?{last}\b[^\n]*=|^\s*{last}:", source, re.MULTILINE), (
                f"{file}: {name}"
            )


def test_versions_agree() -> None:
    assert f'version = "{memgen.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {memgen.__version__}" in (ROOT / "CHANGELOG.md").read_text()


PARTS = [path for ending in ("*.c", "*.toml", "*.html") for path in (ROOT / "memgen").rglob(ending)]
"""What a wheel holds beside Python."""


def test_a_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    """Built as pip builds it, unpacked elsewhere, used from there: code, recipes and types are all inside."""
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
    ]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True, cwd=tmp_path)
    wheel = next(tmp_path.glob("memgen_torch-*.whl"))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    names = {path.relative_to(site / "memgen").as_posix() for path in (site / "memgen").rglob("*") if path.is_file()}
    assert {f"recipes/{name}.toml" for name in recipe_names()} | {"py.typed"} <= names
    assert {f"runs/zoo/{name}.safetensors" for name in zoo.names()} <= names
    assert {file.relative_to(ROOT / "memgen").as_posix() for file in PARTS} <= names
    code = """import sys
sys.path.insert(0, sys.argv[1])
import memgen
assert memgen.__file__.startswith(sys.argv[1])
from memgen.cli.main import SECTIONS, group, main
sys.exit(main(["train", "digits-mem-vae", "--out", "r", "--set", "training.epochs=1"]))
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "weights.safetensors").is_file()
