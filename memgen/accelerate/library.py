"""Compile the C sources once for this machine, keep the result in the cache, and load it.

Without a compiler memgen uses plain torch. Compiling takes about two seconds, once. MEMGEN_NATIVE=0 switches it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import warnings
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from memgen.accelerate.operations import OPERATIONS, c_source
from memgen.data.cache import cache_folder

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-fPIC")
"""Without -ffast-math, with which the compiler may assume that there is no NaN: training checks for NaN."""
COMPILER_TIMEOUT = 120.0
KINDS = ("model name", "flags", "Features", "CPU")
"""The lines of /proc/cpuinfo that distinguish kinds of processor."""
SOURCES = ("program.c", "kernels.c", "products.c")
"""The first file includes the others and operations.h, which operations.py generates."""

pointer, number = ctypes.c_void_p, ctypes.c_long
OTHERS: dict[str, tuple[type, ...]] = {
    "use_blas": (pointer, pointer),
    "run": (pointer, pointer, number, pointer, number, pointer, pointer, number),
}
"""Functions that only program.py calls, with the types of their arguments."""


class UnusableError(Exception):
    """The reason why the library cannot be used."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled operations, or None if they are not available; a mistake of the user gives one warning."""
    if os.environ.get("MEMGEN_NATIVE") == "0" or platform.system() != "Linux":
        return None
    try:
        compiler = _compiler()
        return None if compiler is None else _typed(_load(compiler))
    except UnusableError as error:
        reason = str(error)
    except subprocess.TimeoutExpired:
        reason = "the C compiler did not end in time"
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        reason = f"the C compiler failed: {last}"
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        reason = " ".join(str(error).split())
    warnings.warn(f"memgen runs plain torch, which is slower: {reason}", stacklevel=2)
    return None


def _compiler() -> list[str] | None:
    """The compiler with its options from CC, by default cc; None if there is none and CC is not set."""
    setting = os.environ.get("CC") or ""
    try:
        words = shlex.split(setting)
    except ValueError as error:
        raise UnusableError(f"CC={setting!r} cannot be read: {error}") from None
    if not words:
        return ["cc"] if shutil.which("cc") else None
    if shutil.which(words[0]) is None:
        raise UnusableError(f"CC names {words[0]!r}, which cannot be run")
    return words


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    wrappers = {f"call_{name}": (pointer, pointer) for name in OPERATIONS}
    for name, arguments in {**wrappers, **OTHERS}.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return loaded


def _load(compiler: list[str]) -> ctypes.CDLL:
    """Load the library. It shares torch's OpenMP, which is loaded already under the same name, and its threads."""
    path = _compiled(compiler)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # perhaps compiled for another C library: compile it again
        path.unlink()
        return ctypes.CDLL(str(_compiled(compiler)))


def sources() -> dict[str, bytes]:
    """name -> text of all files that the compiler reads."""
    files = {name: (resources.files("memgen.accelerate") / name).read_bytes() for name in SOURCES}
    return {**files, "operations.h": c_source().encode()}


def _compiled(compiler: list[str]) -> Path:
    """The file of the library in the cache; it is compiled if it does not exist."""
    texts = sources()
    machine = "\n".join([*compiler, *FLAGS, _processor(), *platform.libc_ver(), torch.__version__])
    name = hashlib.sha256(b"".join(texts.values()) + machine.encode()).hexdigest()[:16]
    folder = private_folder(private_folder(cache_folder()) / "native")
    path = folder / f"kernels-{name}.so"
    if not _whole(path):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name, source in texts.items():
                (Path(scratch) / name).write_bytes(source)
            made = Path(scratch) / path.name
            command = [*compiler, *FLAGS, "-shared", str(Path(scratch) / SOURCES[0]), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILER_TIMEOUT)
            made.replace(path)  # atomic, so that two processes may compile at the same time
            path.with_suffix(".sha256").write_text(_digest(path))
    return path


def private_folder(path: Path) -> Path:
    """A folder from which code may be loaded: it belongs to this user, and no other user can write to it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise UnusableError(f"the cache folder {path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnusableError(f"others can write to the cache folder {path}; chmod go-w would close it")
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _whole(path: Path) -> bool:
    """Whether the file is as the compiler wrote it; loading a damaged file could end the process."""
    check = path.with_suffix(".sha256")
    return path.exists() and check.exists() and check.read_text() == _digest(path)


def _processor() -> str:
    """The kind of processor, on which -march=native depends: a cache on a shared disk may serve several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(KINDS)}))


def serves(*tensors: Tensor) -> bool:
    """Whether the library supports the tensors: contiguous float32 on the CPU, not in torch.compile or torch.func."""
    return (
        all(t.dtype is torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None  # torch.func cannot transform C code
        and library() is not None
    )
