"""Checks of a checkpoint. Who can write its checksum can write anything into it, so every field is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from memgen.core.batch import BlockRows, Rows
from memgen.errors import MemgenError
from memgen.training.order import SEEDS

FREE = {"generator", "order", "log"}
"""Tensors whose shape depends on the progress, or that torch checks itself."""
BEST, SPARSE = "best.", "rows."
"""The beginnings of names: the best weights so far; the touched rows of a row-sparse parameter."""


def check_tensors(tensors: Mapping[str, Tensor], fresh: Mapping[str, Tensor], lengths: Mapping[str, int]) -> None:
    """Compare the tensors of a checkpoint with those of a state of the same recipe that has just begun.

    Names, types and shapes must be equal. Of row-sparse parameters, whose `lengths` are given, a checkpoint holds any
    ascending choice of rows.
    """
    best = {name for name in tensors if name.startswith(BEST)}
    _check_names(tensors.keys() - best, fresh.keys())
    for name, length in lengths.items():
        _check_rows(name, tensors[SPARSE + name], length)
    for name, value in fresh.items():
        if name not in FREE:
            rows = tensors.get(SPARSE + name.partition(".")[2])
            shape = value.shape if rows is None else (len(rows), *value.shape[1:])
            _check_form(name, tensors[name], value.dtype, shape)
    t = int(tensors["steps"])
    _require(t >= 0, f"steps is {t}")
    for name in lengths:
        last = tensors[f"last.{name}"]
        _require(bool(((last >= 0) & (last <= t)).all()), f"last.{name} has a step that was never done")


def check_best(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """The best weights so far, if there are any, must be weights of the same model."""
    best = {name.removeprefix(BEST): value for name, value in tensors.items() if name.startswith(BEST)}
    if best:
        _check_names(best.keys(), weights.keys())
        for name, value in weights.items():
            _check_form(BEST + name, best[name], value.dtype, value.shape)
        epoch, bound = tensors["kept"].tolist()
        _require(epoch >= 1 and float(epoch).is_integer() and not math.isnan(bound), "kept is no epoch with a score")


def check_progress(
    counts: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[Sequence[int]], epochs: Sequence[int]
) -> None:
    """The counts must be possible: `sizes` has the rows in each step of an epoch, `epochs` the length, of every stage.

    In the middle of an epoch `order` is a permutation of all rows, and `log` has a line for every step.
    """
    stage, epoch, step, seconds = (counts[key] for key in ("stage", "epoch", "step", "seconds"))
    _require(0 <= stage < len(sizes), f"there is no stage {stage}")
    steps = len(sizes[stage])
    _require(0 <= epoch <= epochs[stage], f"stage {stage} has no epoch {epoch}")
    _require(0 <= step <= steps, f"an epoch has no step {step}")
    _require(0 <= seconds < math.inf, "seconds is no time")
    t = int(tensors["steps"])
    _require(t == epoch * steps + step, f"{t} steps are not {epoch} epochs and {step} steps")
    if any(name.startswith(BEST) for name in tensors):
        _require(float(tensors["kept"][0]) <= epoch, "the best epoch is yet to come")
    if step:
        log = tensors["log"]
        _require(log.shape == (steps, 3) and log.is_floating_point(), f"log has no line for each of {steps} steps")


def check_order(order: Tensor, rows: Rows) -> None:
    """The order of an epoch's rows must be a permutation: an index beyond them would read other memory. Of rows of a
    file it is a seed."""
    n = len(rows)
    if isinstance(rows, BlockRows):
        seed = order.dtype == torch.int64 and order.shape == (1,) and 0 <= int(order) < SEEDS
        _require(seed, "order is no seed")
        return
    whole = order.dtype == torch.int64 and order.shape == (n,)
    _require(whole and order.sort().values.equal(torch.arange(n)), f"order is no permutation of {n:,} rows")


def _check_names(actual: Any, expected: Any) -> None:
    for name in sorted(actual ^ expected):
        raise MemgenError(f"it {'lacks' if name in expected else 'has an unknown'} tensor {name}")


def _check_rows(name: str, rows: Tensor, length: int) -> None:
    ascending = rows.dtype == torch.int64 and rows.ndim == 1 and bool((rows[1:] > rows[:-1]).all())
    inside = ascending and (len(rows) == 0 or 0 <= int(rows[0]) <= int(rows[-1]) < length)
    _require(inside, f"{SPARSE}{name} is no ascending choice of {length:,} rows")


def _check_form(name: str, value: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    _require(value.dtype == dtype, f"{name} is {value.dtype}, not {dtype}")
    _require(tuple(value.shape) == tuple(shape), f"{name} has shape {tuple(value.shape)}, not {tuple(shape)}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise MemgenError(message)
