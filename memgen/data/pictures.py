"""Image files: opened, or refused with a one-line error that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from memgen.errors import MemgenError, reason

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}

MOST_PIXELS = 1 << 26
"""The largest image: 67 megapixels. The header of a file of a few kilobytes may state many more."""


class ImageReadError(MemgenError):
    """A file that is no image, or a damaged one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = path, reason


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """An image with 8 bits per pixel and channel; any failure of its decoder is an error that names the file."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:  # known before a pixel is decoded
                raise MemgenError(
                    f"{path} is {image.width} pixels wide and {image.height} high; an image may have at most "
                    f"{MOST_PIXELS:,} pixels: make it smaller"
                )
            if image.mode.startswith(("I", "F")):
                raise MemgenError(f"{path} has more than 8 bits per pixel (mode {image.mode}); save it with 8")
            yield image
    except MemgenError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them into
        raise ImageReadError(path, reason(error)) from None
