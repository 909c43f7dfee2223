"""NumPy files: never unpickled, and read or refused in one line."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memgen.errors import MemgenError


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or the one of an .npy file under the name x."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return {"x": found} if isinstance(found, np.ndarray) else dict(found)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        # NumPy's own words for a file that is no array advise to unpickle it.
        reason = "it is no such file, or holds Python objects" if "pickle" in str(error) else str(error).splitlines()[0]
        raise MemgenError(f"cannot read {path} as a NumPy array of numbers: {reason}") from None


def name_of_data(path: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Which array holds the rows: x, or the only one."""
    if len(arrays) != 1 and "x" not in arrays:
        raise MemgenError(f"{path} holds {len(arrays)} arrays ({', '.join(arrays)[:80]}); it must hold one, or x")
    return "x" if "x" in arrays else next(iter(arrays))


def check_numbers(path: Path, values: NDArray[Any]) -> None:
    if not (
        np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer) or values.dtype == bool
    ):
        raise MemgenError(f"{path} holds {values.dtype}, not numbers")
