"""Compile program.c, which includes the other sources, once for this machine, keep it in the cache, and load it;
without a compiler there is plain torch.

The compiler takes about two seconds, once. Set MEMGEN_NATIVE=0 to do without.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from memgen.data.cache import cache_folder

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fopenmp", "-fPIC")
"""No -ffast-math: it would let the compiler assume that there is no NaN, and training looks for them."""
COMPILER_TIMEOUT = 120.0
KINDS = ("model name", "flags", "Features", "CPU")
"""The lines of /proc/cpuinfo that tell one kind of processor from another."""

pointer, number = ctypes.c_void_p, ctypes.c_long
SIGNATURES: dict[str, tuple[type, ...]] = {
    "moments": (pointer, number, number, pointer, pointer),
    "batch_norm_relu": (pointer, number, number, pointer, pointer, ctypes.c_float, pointer, pointer),
    "normalise_backward": (pointer, pointer, number, number, *[pointer] * 5),
    "mlp": (pointer, pointer, number, number, pointer, pointer),
    "mlp_backward": (pointer, pointer, pointer, number, number, *[pointer] * 3, ctypes.c_int, pointer),
    "standardise": (pointer, number, number, number, ctypes.c_float, pointer, pointer),
    "standardise_backward": (pointer, pointer, pointer, number, number, number, pointer, pointer),
    "reparameterise": (pointer, pointer, pointer, number, number, number, pointer, pointer),
    "reparameterise_backward": (*[pointer] * 4, number, number, number, pointer, pointer),
    "add_bias_relu": (pointer, number, number, pointer),
    "bernoulli": (pointer, pointer, pointer, number, number, number, pointer),
    "bernoulli_backward": (*[pointer] * 4, number, number, number, pointer, ctypes.c_int, pointer),
    "squares": (pointer, pointer, number),
    "adam": (pointer, pointer, number, pointer),
    "adam_rows": (*[pointer] * 7, number, number, pointer),
    "read_rows": (pointer, pointer, pointer, number, number, number, pointer),
    "read_rows_backward_weights": (pointer, pointer, pointer, number, number, number, pointer),
    "read_rows_backward_slots": (*[pointer] * 4, number, number, number, pointer),
    "largest_sums": (pointer, pointer, pointer, *[number] * 5, pointer, pointer),
    "largest_sums_backward": (pointer, pointer, *[number] * 3, pointer, pointer),
    "sort_slots": (pointer, number, pointer, pointer, pointer),
    "use_blas": (pointer, pointer),
    "use_own_products": (ctypes.c_int,),
    "own_products_done": (),
    "run": (pointer, pointer, number, pointer, number, pointer, pointer, number),
    "apart": (number,),
    "flush_denormals": (ctypes.c_int,),
    "flushing": (),
}


SOURCES = ("program.c", "kernels.c", "products.c")
"""The first includes the others."""


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be had."""
    if os.environ.get("MEMGEN_NATIVE") == "0" or platform.system() != "Linux":
        return None
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return None
    try:
        loaded = _load(compiler)
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: there is no home folder
        return None
    for name, arguments in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = ctypes.c_double if name in ("squares", "apart") else ctypes.c_int
    return loaded


def _load(compiler: list[str]) -> ctypes.CDLL:
    """torch has loaded its OpenMP already; a library that asks for the same name shares it, and with it its threads."""
    path = _compiled(compiler)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # made against another C library, perhaps: once more
        path.unlink()
        return ctypes.CDLL(str(_compiled(compiler)))


def _compiled(compiler: list[str]) -> Path:
    """The file of the kernels in the cache, made if it is not there."""
    sources = {name: (resources.files("memgen.accelerate") / name).read_bytes() for name in SOURCES}
    about = "\n".join([*compiler, *FLAGS, _processor(), *platform.libc_ver(), torch.__version__])
    name = hashlib.sha256(b"".join(sources.values()) + about.encode()).hexdigest()[:16]
    folder = cache_folder() / "native"
    path = folder / f"kernels-{name}.so"
    if not _whole(path):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for name, source in sources.items():
                (Path(scratch) / name).write_bytes(source)
            made = Path(scratch) / path.name
            command = [*compiler, *FLAGS, "-shared", str(Path(scratch) / SOURCES[0]), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILER_TIMEOUT)
            made.replace(path)  # at once, so that two processes may do this side by side
            path.with_suffix(".sha256").write_text(_digest(path))
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _whole(path: Path) -> bool:
    """Whether it is the file that the compiler made: loading a damaged one could end the process."""
    check = path.with_suffix(".sha256")
    return path.exists() and check.exists() and check.read_text() == _digest(path)


def _processor() -> str:
    """What -march=native stands for: a cache on a shared disk may serve several kinds of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(KINDS)}))


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """For a kernel that takes many tensors; None becomes a null pointer."""
    return (pointer * len(tensors))(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels can take these: float32, on the CPU, row by row. torch.compile cannot look into them."""
    return (
        all(t.dtype is torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None  # torch.func wants formulas that it can transform
        and library() is not None
    )


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, numbers below 1e-38 count as zero: on all threads if there are kernels, else on this one.

    The normalised weights of most of K samples are of the order e^-100, so that the gradients which they scale are
    denormal, and a processor multiplies those many times more slowly.
    """
    kernels, before = library(), bool((torch.tensor([1e-30]) * 1e-10 == 0).all())
    _flush(kernels, True)
    try:
        yield
    finally:
        _flush(kernels, before)


def _flush(kernels: ctypes.CDLL | None, on: bool) -> None:
    """torch sets the thread that calls it, the kernels all others."""
    torch.set_flush_denormal(on)
    if kernels is not None:
        kernels.flush_denormals(int(on))
