"""Images as PNG files."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from memgen.data.output import write_atomically


def write_png(path: Path, image: Image.Image) -> None:
    content = io.BytesIO()
    image.save(content, "PNG")
    write_atomically(path, content.getvalue())
