"""Runs to report on."""

from __future__ import annotations

from pathlib import Path

from memgen.cli.reading import image_shape, read_for
from memgen.report.gather import Subject
from memgen.runs.run import Run, read_model
from memgen.runs.session import choose_device


def subject(path: Path, name: str, device: str, data: str | None = None) -> Subject:
    run = Run.open(path)
    saved = read_model(path, choose_device(device))
    loaded = read_for(saved, data)
    return Subject(name, run, saved, loaded.data, image_shape(saved), loaded.other)
