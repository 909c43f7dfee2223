"""`memgen features`, `memgen classify`, `memgen inspect`"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memgen.cli.common import check_output, count, image_shape, say
from memgen.cli.reading import data_for
from memgen.data import Dataset
from memgen.data.dataset import SPLITS
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.progress import Progress
from memgen.report.figures.base import make_folder
from memgen.report.figures.memory import memory_figures
from memgen.runs.finite import as_json
from memgen.runs.run import read_model
from memgen.runs.scores import look
from memgen.runs.session import choose_device
from memgen.tasks.classification import GRID, PAPER, choose
from memgen.tasks.classification import classify as classify_features
from memgen.tasks.features import features as find_features
from memgen.tasks.inspection import Inspection, require_memory


def features(options: argparse.Namespace) -> dict[str, Any]:
    saved = read_model(options.path, choose_device(options.device))
    check_output(options.output, ".npz", options.overwrite)
    data = data_for(saved, options.data)
    arrays: dict[str, Any] = {}
    for split in SPLITS:
        if split != "train" and getattr(data, split) is None:
            continue
        found = find_features(saved.model, data.split(split))
        arrays |= {f"{split}_mean": found.mean.numpy(), f"{split}_last": found.last.numpy()}
        if split in data.labels:
            arrays[f"{split}_labels"] = data.labels[split].numpy()
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(options.output, content.getvalue())
    for name, array in arrays.items():
        say(options, f"{name:<14} {' x '.join(f'{n:,}' for n in array.shape)}")
    say(options, f"wrote {options.output}")
    return {"output": str(options.output), "arrays": {name: list(array.shape) for name, array in arrays.items()}}


def classify(options: argparse.Namespace) -> dict[str, Any]:
    saved = read_model(options.path, choose_device(options.device))
    data = data_for(saved, options.data)
    if not data.labels:
        raise MemgenError(f"the data set {data.name} has no labels to classify")
    if len(data.labels["train"].unique()) < 2:
        raise MemgenError(f"the training rows of {data.name} all have the same label: there is nothing to tell apart")
    clock = time.perf_counter()
    x = {split: getattr(find_features(saved.model, data.split(split)), options.features) for split in SPLITS}
    everything = torch.cat([x["train"], x["valid"]]), torch.cat([data.labels["train"], data.labels["valid"]])
    test = x["test"], data.labels["test"]
    with Progress("fitting", len(GRID) + 2, "machine") as progress:
        paper = classify_features(everything, test)
        progress.to(1)
        done = iter(range(2, len(GRID) + 2))
        pairs = (x["train"], data.labels["train"]), (x["valid"], data.labels["valid"])
        best, accuracies = choose(*pairs, tick=lambda: progress.to(next(done)))
        chosen = paper if best == PAPER else classify_features(everything, test, best)
        progress.to(len(GRID) + 2)
    seconds = time.perf_counter() - clock
    what = {"last": "last deterministic layer of Q", "mean": "mean of q(z|x)"}[options.features]
    say(
        options,
        f"linear Crammer-Singer SVM without intercept, {what}, {' x '.join(f'{n:,}' for n in everything[0].shape)}",
    )
    say(options, f"{'regularisation':<30} {'C':>9} {'test accuracy':>16}")
    for name, own in ((f"{PAPER:g}, the paper's", paper), (f"{best:g}, chosen on validation", chosen)):
        note = "" if own.converged else "  (the solver stopped before its tolerance)"
        say(options, f"{name:<30} {own.C:>9.4g} {own.accuracy:>9.2%} +- {own.standard_error:.2%}{note}")
    say(options, f"{seconds:.1f} s")
    return {
        "accuracy": paper.accuracy,
        "standard_error": paper.standard_error,
        "C": paper.C,
        "converged": paper.converged,
        "accuracy_chosen": chosen.accuracy,
        "standard_error_chosen": chosen.standard_error,
        "C_chosen": chosen.C,
        "converged_chosen": chosen.converged,
        "regularisation_chosen": best,
        "validation": {f"{value:g}": accuracy for value, accuracy in accuracies.items()},
        "features": options.features,
        "examples": len(everything[0]),
        "test_examples": len(test[0]),
        "data": data.name,
        "seconds": seconds,
    }


def inspect(options: argparse.Namespace) -> dict[str, Any]:
    saved = read_model(options.path, choose_device(options.device))
    require_memory(saved.model)
    folder: Path = options.out
    if folder.exists() and not folder.is_dir():
        raise MemgenError(f"{folder} is a file; choose another --out")
    data = data_for(saved, options.data, options.split)
    clock = time.perf_counter()
    make_folder(folder)
    found = look(saved.model, data, options.split, options.limit, options.rows, options.samples, options.seed)
    figures = memory_figures(found, data.rows("train"), image_shape(saved))
    written = [path for figure in figures for path in figure.write(folder)]
    summary = summarise(found, data, options.split)
    write_atomically(folder / "summary.json", as_json(summary))
    seconds = time.perf_counter() - clock
    tell(options, found, "pixels" if image_shape(saved) else "values")
    say(
        options,
        f"wrote {count(len(figures), 'figure')} (PNG, PDF, numbers) and summary.json into {folder}, {seconds:.1f} s",
    )
    return summary | {
        "out": str(folder),
        "files": [path.name for path in written] + ["summary.json"],
        "seconds": seconds,
    }


def summarise(found: Inspection, data: Dataset, split: str) -> dict[str, Any]:
    """The numbers in short."""
    return {
        "data": data.name,
        "split": split,
        "rows": found.rows,
        "ablated_rows": found.ablated_rows,
        "samples": found.samples,
        "labels": found.labels,
        "layers": [
            {
                "name": layer.name,
                "slots": len(layer.usage.share),
                "entropy": layer.usage.entropy,
                "effective_slots": float(np.exp(layer.usage.entropy)),
                "dead": layer.usage.dead,
                "most_useful": int(layer.ablation.mean.argmax()),
                "most_useful_nats": float(layer.ablation.mean.max()),
                "most_useful_standard_error": float(layer.ablation.standard_error[layer.ablation.mean.argmax()]),
                "resemblance_to_pixels": layer.pixel_resemblance,
            }
            for layer in found.layers
        ],
    }


def tell(options: argparse.Namespace, found: Inspection, values: str) -> None:
    for layer in found.layers:
        own, slots = layer.usage, len(layer.usage.share)
        best = int(layer.ablation.mean.argmax())
        nats, error = float(layer.ablation.mean[best]), float(layer.ablation.standard_error[best])
        stands = "" if nats > 3 * error else ", which does not stand out"  # it is the best of many
        read = f"as {np.exp(own.entropy):.1f} slots read evenly"
        say(
            options,
            f"{layer.name}: {slots} slots, attention entropy {own.entropy:.2f} nats ({read}), {len(own.dead)} dead",
        )
        say(options, f"{layer.name}: slot {best} adds most to log p(x): {nats:.3f} +- {error:.3f} nats{stands}")
        if layer.pixel_resemblance is not None:
            say(
                options,
                f"{layer.name}: class correlations resemble those of raw {values} by {layer.pixel_resemblance:.2f}",
            )
    if not found.labels:
        say(options, "the data have no labels: no figures of classes")
