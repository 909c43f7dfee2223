"""Image files: opened, or refused in one line that names the file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from memgen.errors import MemgenError

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}

# What Pillow raises for files that are damaged, cut off or something else.
DAMAGE = (
    UnidentifiedImageError,
    OSError,
    SyntaxError,
    EOFError,
    ValueError,
    LookupError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class ImageReadError(MemgenError):
    """A file that is no image, or a damaged one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = path, reason


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """An image with 8 bits per pixel and channel; what goes wrong while it is decoded is an error that names it."""
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise MemgenError(f"{path} has more than 8 bits per pixel (mode {image.mode}); save it with 8")
            yield image
    except MemgenError:
        raise
    except DAMAGE as error:
        raise ImageReadError(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from None
