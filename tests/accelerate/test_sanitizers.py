"""What the compiler and its sanitizers say about the C code, and what it does without memory."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from memgen.accelerate.library import FLAGS, library, sources
from memgen.accelerate.operations import OPERATIONS
from tests.accelerate.native import compiler, needs_library


def compile_with(options: list[str], folder: Path) -> str:
    """What the compiler says."""
    for name, text in sources().items():
        (folder / name).write_bytes(text)
    command = [*compiler(), *FLAGS, *options, "-shared", str(folder / "program.c"), "-o", str(folder / "k.so"), "-lm"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stderr


@needs_library
@pytest.mark.parametrize("options", [[], ["-mno-avx512f"], ["-mno-avx512f", "-mno-fma"]])
def test_the_compiler_has_nothing_to_say(options: list[str], tmp_path: Path) -> None:
    if options and platform.machine() != "x86_64":
        pytest.skip("the options are those for x86")
    assert compile_with(["-Wall", "-Wextra", *options], tmp_path) == ""


WITHOUT_MEMORY = """
from memgen.accelerate.calls import bind
from memgen.accelerate.operations import OPERATIONS
from memgen.accelerate.program import Plan, Program, blas
from tests.accelerate.operands import operands
blas()
refused = []
for name, operation in OPERATIONS.items():
    try:
        bind(name, *operands(operation))()
    except MemoryError:
        refused.append(name)
plan = Plan()
plan.add("gather", *operands(OPERATIONS["gather"]))
try:
    Program([plan], []).run()
except MemoryError:
    refused.append("program")
print(*refused)
"""


@needs_library
def test_where_there_is_no_memory_there_is_a_memory_error(tmp_path: Path) -> None:
    environment = os.environ | {"MEMGEN_CACHE": str(tmp_path), "CC": f"{shlex.join(compiler())} -DNO_MEMORY_AT_ALL"}
    answer = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    asking = ["gather", "normalise_sums", "mlp_backward", "keys_backward", "sort_slots", "bernoulli_backward", "weigh"]
    assert set(answer.stdout.split()) == {*asking, "squares", "program"}


def sanitizer() -> str | None:
    """The compiler's address sanitizer, which must be in a process before all else; None where there is none."""
    if library() is None or platform.system() != "Linux":
        return None
    found = subprocess.run([*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if Path(found).is_absolute() else None


needs_sanitizer = pytest.mark.skipif(
    sanitizer() is None, reason="the C compiler has no libasan.so, so nothing watches its memory"
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that ends at the first byte beside a matrix."""
    options = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"
    return os.environ | {
        "MEMGEN_CACHE": str(tmp_path_factory.mktemp("watched")),
        "CC": f"{shlex.join(compiler())} {options}",
        "LD_PRELOAD": str(sanitizer()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }


STEP = """
import torch
from tests.accelerate.operands import run_all
from memgen.accelerate.step import PlannedStep
from tests.accelerate.cases import CASES, case, rows
print(run_all())
for name in ("with memory", "several samples", "product keys, dreg", "Gaussian rows with a floor"):
    model, recipe = case(CASES[name])
    step, K = PlannedStep(model, recipe.objective, recipe.objective.samples, 11), recipe.objective.samples
    for workers in (1, 2):
        step.compile(workers)
        assert step(rows(model), model.noise(K, 11, torch.Generator().manual_seed(2))).isfinite().all()
"""
BEYOND = """
import ctypes, torch
from memgen.accelerate.calls import bind
call = bind("sum_rows", torch.zeros(8, 64), False, torch.zeros(64))
call.structure.operands[1].n = 9  # a row more than there is
call()
"""


@needs_sanitizer
def test_all_operations_run_under_the_address_and_undefined_behaviour_sanitizers(watched: dict[str, str]) -> None:
    """Each with several sizes, and whole steps."""
    answer = subprocess.run([sys.executable, "-c", STEP], env=watched, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert int(answer.stdout) >= len(OPERATIONS)


@needs_sanitizer
def test_the_sanitizer_sees_a_read_beyond_a_matrix(watched: dict[str, str]) -> None:
    """Else the test before this one would prove nothing."""
    answer = subprocess.run([sys.executable, "-c", BEYOND], env=watched, capture_output=True, text=True)
    assert answer.returncode != 0
    assert "heap-buffer-overflow" in answer.stderr
