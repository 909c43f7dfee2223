"""Metrics for TensorBoard, an optional extra."""

from __future__ import annotations

from memgen.errors import MemgenError
from memgen.runs.run import Run
from memgen.training.fit import Epoch


class Writer:
    """Metrics for TensorBoard, an optional extra."""

    def __init__(self, run: Run, epochs: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MemgenError(
                "--tensorboard needs an extra; in a clone of memgen: pip install '.[tensorboard]'"
            ) from None
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=epochs + 1)

    def add(self, epoch: Epoch) -> None:
        for key, value in epoch._asdict().items():
            if isinstance(value, float):
                self.writer.add_scalar(key, value, epoch.epoch)
        self.writer.flush()
