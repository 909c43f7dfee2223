"""The user's own images: a folder of files, or an array of bytes, as pictures of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps

from memgen.data.pictures import PICTURES, ImageReadError, open_picture
from memgen.errors import MemgenError

BYTE = 255
EXACT = 1e-3
"""A fraction of a byte's largest level that differs by less from a whole level is that level."""
DARKEST = 63
"""Arrays and images whose largest pixel is at most this may have fewer levels than 256."""
NAMED = 3
"""How many unreadable files a message names."""

Pixels = UInt8[NDArray[np.uint8], "height width ..."]
Missing = Bool[NDArray[np.bool_], "height width"]


@dataclass(frozen=True)
class RawImages:
    """Images of one size, grey (N, height, width) or with colours (N, height, width, 3)."""

    pixels: UInt8[NDArray[np.uint8], "N height width *channels"]
    missing: Bool[NDArray[np.bool_], "N height width"] | None = None
    """Which pixels are missing, where some are."""
    labels: Shaped[NDArray[Any], " N"] | None = None
    rounded: bool = False
    """Whether the pixels were fractions that lie between the levels of a byte."""

    def __len__(self) -> int:
        return len(self.pixels)

    def has_only(self, *levels: int) -> bool:
        """Whether every pixel that is not missing has one of these levels."""
        allowed = np.isin(np.arange(BYTE + 1), levels)
        others = ~allowed[self.pixels]
        if self.missing is not None:
            others &= ~_over_channels(self.missing, self.pixels)
        return not bool(others.any())

    def rows(self, levels: int) -> Shaped[NDArray[np.float32], "N D"]:
        """v/levels, NaN where a pixel is missing."""
        x = (np.arange(256) / levels).astype(np.float32)[self.pixels]
        if self.missing is not None:
            x[self.missing] = np.nan
        return x.reshape(len(x), -1)


def levels_of(images: RawImages, given: int) -> int:
    """The largest level of a pixel: the given one; else the upper one of two levels, or 255 where the largest pixel is
    not so dark that its levels might be 0 ... 15, say."""
    largest = int(images.pixels.max())
    if given:
        if largest > given:
            raise MemgenError(f"the largest pixel is {largest}, above --levels {given} (in a recipe: data.levels)")
        return given
    if images.has_only(0, largest):
        return largest if largest else BYTE
    if largest <= DARKEST:
        raise MemgenError(
            f"the largest pixel is {largest} of {BYTE}. If the levels are 0 to {largest}, say --levels {largest}; if "
            f"these are dark images of 8 bits, say --levels {BYTE} (in a recipe: data.levels)"
        )
    return BYTE


def _over_channels(missing: NDArray[np.bool_], pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return missing[..., None] if pixels.ndim > missing.ndim else missing


def has_images(folder: Path) -> bool:
    """Whether there is an image in a folder or in its sub-folders."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    return any(not any(part.startswith(".") for part in name.parts) for name in names)


def find_images(folder: Path) -> list[Path]:
    """The images in a folder and in its sub-folders, in the order of their names; hidden ones are left out."""
    candidates = {path.relative_to(folder): path for path in folder.rglob("*") if path.suffix.lower() in PICTURES}
    visible = {name: path for name, path in candidates.items() if not any(part.startswith(".") for part in name.parts)}
    paths = [path for name, path in sorted(visible.items(), key=lambda pair: pair[0].as_posix()) if path.is_file()]
    if not paths:
        raise MemgenError(f"there are no images in {folder} (endings: {' '.join(sorted(PICTURES))})")
    return paths


def classes_of(folder: Path, paths: Sequence[Path]) -> NDArray[Any] | None:
    """The sub-folder of each image, if all images lie in sub-folders and these are at least two."""
    parts = [path.relative_to(folder).parts for path in paths]
    names = [part[0] for part in parts]
    if any(len(part) == 1 for part in parts) or len(set(names)) < 2:
        return None
    return np.array(names, dtype=object)


def read_folder(folder: Path, size: tuple[int, int] | None, report: Callable[[int, int], None]) -> RawImages:
    """Every image of a folder; with `size` = (height, width), cut to that shape around the centre, then resized."""
    paths = find_images(folder)
    images: list[tuple[Pixels, Missing | None]] = []
    failures: list[ImageReadError] = []
    for done, path in enumerate(paths, 1):
        try:
            images.append(read_image(path, size))
        except ImageReadError as error:
            failures.append(error)
        report(done, len(paths))
    if failures:
        raise _unreadable(failures)
    _check_sizes(paths, [pixels.shape[:2] for pixels, _ in images])
    return RawImages(*_stack(images), classes_of(folder, paths))


def _unreadable(failures: Sequence[ImageReadError]) -> MemgenError:
    if len(failures) == 1:
        return failures[0]
    names = ", ".join(f"{error.path} ({error.reason})" for error in failures[:NAMED])
    rest = f" and {len(failures) - NAMED} more" if len(failures) > NAMED else ""
    return MemgenError(f"cannot read {len(failures)} images: {names}{rest}; repair or remove them")


def _check_sizes(paths: Sequence[Path], sizes: Sequence[tuple[int, ...]]) -> None:
    for path, (height, width) in zip(paths, sizes, strict=True):
        if (height, width) != sizes[0]:
            raise MemgenError(
                f"the images differ in size: {paths[0]} is {sizes[0][1]} pixels wide and {sizes[0][0]} high, {path} is "
                f"{width} wide and {height} high; say --size HEIGHTxWIDTH (such as --size 28x28) to make them equal"
            )


def _stack(
    images: Sequence[tuple[Pixels, Missing | None]],
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """One array of all; if one image has colours, all have three channels."""
    colour = any(pixels.ndim == 3 for pixels, _ in images)
    alike = [np.dstack([p, p, p]) if colour and p.ndim == 2 else p for p, _ in images]
    if all(missing is None for _, missing in images):
        return np.stack(alike), None
    nowhere = np.zeros(images[0][0].shape[:2], bool)
    return np.stack(alike), np.stack([nowhere if missing is None else missing for _, missing in images])


def read_image(path: Path, size: tuple[int, int] | None = None) -> tuple[Pixels, Missing | None]:
    """The bytes of an image, and which pixels are missing; (height, width) if it is grey, else (height, width, 3).

    A pixel with alpha 0 is missing; any other alpha is ignored, as `memgen impute` does.
    """
    with open_picture(path) as image:
        upright = ImageOps.exif_transpose(image)  # cameras write how they were held
        if upright.mode in ("1", "L") and "transparency" not in upright.info:
            return _sized(upright.convert("L"), size), None
        channels = np.asarray(upright.convert("RGBA"))
    missing = channels[..., 3] == 0
    if not missing.any():
        return _grey(_sized(Image.fromarray(channels[..., :3]), size)), None
    if size is not None and missing.shape != size:
        raise MemgenError(f"{path} has missing pixels (alpha 0), so it cannot be resized; do that beforehand")
    return _grey(np.where(missing[..., None], np.uint8(0), channels[..., :3])), missing


def _sized(image: Image.Image, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Cut around the centre to the shape of `size`, then resized."""
    if size is not None and (image.height, image.width) != size:
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One channel, where the three are the same."""
    return pixels if bool((pixels != pixels[..., :1]).any()) else pixels[..., 0]


def images_of_array(
    path: Path, values: NDArray[Any], labels: NDArray[Any] | None, size: tuple[int, int] | None
) -> RawImages:
    """(N, height, width), (N, height, width, 1) or (N, height, width, 3) bytes, fractions from 0 to 1, where NaN is
    missing, or two levels of any type."""
    missing = np.isnan(values)
    known = np.where(missing, np.nanmin(values) if not missing.all() else 0, values) if missing.any() else values
    pixels = _as_bytes(path, known)
    fractions = np.issubdtype(values.dtype, np.floating) and bool((known <= 1).all())
    rounded = fractions and len(np.unique(known)) > 2 and bool((np.abs(known * BYTE - pixels) > EXACT).any())
    absent = (missing.any(-1) if missing.ndim == 4 else missing) if missing.any() else None
    if absent is not None and size is not None and values.shape[1:3] != size:
        raise MemgenError(f"{path} has missing pixels, so it cannot be resized; do that beforehand")
    return replace(images_of_bytes(path, pixels, labels, size), missing=absent, rounded=rounded)


def images_of_bytes(
    path: Path, values: UInt8[NDArray[np.uint8], "..."], labels: NDArray[Any] | None, size: tuple[int, int] | None
) -> RawImages:
    if values.ndim == 4 and values.shape[3] == 1:
        values = values[..., 0]
    if values.ndim == 4 and values.shape[3] != 3:
        raise MemgenError(f"{path} has shape {values.shape}; images are (N, height, width) or (N, height, width, 3)")
    if size is not None and values.shape[1:3] != size:
        values = np.stack([_sized(Image.fromarray(image), size) for image in values])
    return RawImages(np.ascontiguousarray(values), None, labels)


def _as_bytes(path: Path, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels as bytes: two levels of any type become 0 and 255, unless they are bytes of which the lower one is 0."""
    low, high = values.min(), values.max()
    if values.dtype == np.uint8 and low == 0:
        return values
    if low < high and bool(((values == low) | (values == high)).all()):
        return np.where(values == high, np.uint8(BYTE), np.uint8(0))
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(BYTE)
    if low >= 0 and high <= BYTE and bool((values == np.floor(values)).all()):
        return values.astype(np.uint8)
    if low >= 0 and high <= 1:
        return np.round(values * BYTE).astype(np.uint8)
    raise MemgenError(
        f"{path} has shape {values.shape} and type {values.dtype}, with values from {low:g} to {high:g}; images must "
        f"be whole numbers from 0 to {BYTE} or fractions from 0 to 1, or have two levels"
    )
