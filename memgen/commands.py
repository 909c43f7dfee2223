"""What each command of the command line does; every function returns what --json prints."""

from __future__ import annotations

import argparse
import io
import math
import shlex
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memgen.data import DATASETS, Dataset, source
from memgen.data.files import Source
from memgen.errors import MemgenError, unknown
from memgen.figures import grid
from memgen.layers import MemoryLayer
from memgen.model import DGM, count_parameters
from memgen.progress import Progress
from memgen.recipe import Recipe, build, recipe_names
from memgen.run import RECIPE, Run, Saved, Scores, read_model, write_png
from memgen.session import Session, choose_device
from memgen.storage import write_atomically
from memgen.tasks.density import Likelihood, join, log_likelihoods
from memgen.tasks.sampling import sample as draw_samples
from memgen.train import as_read_by, steps_per_epoch, training_rows

FEW = 10
"""Effective samples below which a person is told that the estimate is too low."""
KEEP_EVERY = 60.0
"""Seconds between writes of an evaluation's results so far."""


def say(options: argparse.Namespace, text: str = "") -> None:
    """A line for people: on stdout, or with --json on stderr."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def load_data(name: str) -> Dataset:
    """A data set, fetched first if it is nowhere on this machine."""
    home = source(name)
    if home.files and home.find() is None:
        fetch(name, home, None)
    return home.load()


def fetch(name: str, home: Source, origin: Path | None) -> Path:
    with Progress(f"fetching {name}", 0, "byte") as progress:
        return home.fetch(origin, lambda done, total: progress.to(done, total=total))


def train(options: argparse.Namespace) -> dict[str, Any]:
    choose_device(options.device)
    recipe, resumed = choose_run(options)
    # Before a new folder is made: what fails here leaves nothing behind.
    data = load_data(recipe.data.name)
    model = build(recipe, data.train.shape[1])
    training_rows(model, as_read_by(model, data), recipe)
    steps_per_epoch(data, recipe)
    run = Run.open(options.out) if resumed else Run.create(options.out, recipe)
    with run.locked(), Session(run, model, data, options.device, options.checkpoint_every) as session:
        if session.state.epoch == recipe.training.epochs:
            say(options, f"{run.folder} is finished")
        elif session.state.epoch or session.state.step:
            epochs = f"{session.state.epoch} of {recipe.training.epochs} epochs"
            say(options, f"going on with {run.folder} after {epochs} and {session.state.step} steps")
        metrics = session.train(tensorboard=options.tensorboard)
    last = metrics[-1]
    say(options, f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(options, f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
    return {"epochs": last["epoch"], "bound": last["bound"], "seconds": last["seconds"], "run": str(run.folder)} | {
        key: last[key] for key in ("train_bound", "valid_bound") if key in last
    }


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def choose_run(options: argparse.Namespace) -> tuple[Recipe, bool]:
    """The recipe to train, and whether the run folder holds it already."""
    if options.recipe is None and not options.resume:
        raise MemgenError(f"which recipe? Choices: {', '.join(recipe_names())}; or a TOML file")
    if options.recipe is None:
        recipe = Run.open(options.out).recipe.override(options.set)
    else:
        recipe = Recipe.read(options.recipe).override(options.set)
    if not (options.resume and (options.out / RECIPE).is_file()):
        Run.refuse_taken(options.out)
        if options.resume:
            say(options, f"nothing to resume in {options.out}: starting anew")
        return recipe, False
    if changed := Run.open(options.out).recipe.differences(recipe):
        raise MemgenError(
            f"{options.out} was started with other settings ({'; '.join(changed)}); a resumed run keeps its settings: "
            "leave them out, or choose another --out"
        )
    return recipe, True


def describe(metrics: dict[str, Any]) -> str:
    text = f"training bound {metrics['bound']:.2f} nats"
    if "train_bound" in metrics:
        text += f"; on fixed rows: train {metrics['train_bound']:.2f}"
    if "valid_bound" in metrics:
        text += f", valid {metrics['valid_bound']:.2f}"
    return text


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    run = Run.open(options.path)
    saved = read_model(options.path, choose_device(options.device))
    x, data = rows_to_score(saved, options.split, options.limit)
    result, seconds = score(run, saved, x, options)
    if not bool(result.log_p.isfinite().all()):
        bad = int((~result.log_p.isfinite()).sum())
        raise MemgenError(f"log p(x) is not finite for {bad:,} of {len(x):,} examples: these weights cannot be used")
    smallest, median = float(result.effective.min()), float(result.effective.median())
    examples = count(len(x), "example")
    say(options, f"{options.path}, {options.split}: {examples} of {data.name}, scale {data.scale}, {data.binarisation}")
    say(options, f"weights: {saved.weights}, after {count(saved.epoch, 'epoch')}; noise seed {options.seed}")
    for line in ladder(result):
        say(options, line)
    say(options, f"effective sample size: median {median:.1f}, smallest {smallest:.1f} of {result.samples:,}")
    if median < FEW:
        say(options, f"fewer than {FEW} samples carry the estimate: log p(x) may be higher; try more --samples")
    say(options, f"{seconds:.1f} s")
    return {
        "log_likelihood": result.mean,
        "standard_error": result.standard_error if len(x) > 1 else None,
        "samples": result.samples,
        "examples": len(x),
        "elbo": float(result.elbo.mean()),
        "effective_sample_size": float(result.effective.mean()),
        "effective_sample_size_smallest": smallest,
        "bounds": {str(K): float(values.mean()) for K, values in result.bounds.items()},
        "seconds": seconds,
        "split": options.split,
        "seed": options.seed,
        "data": data.name,
        "scale": data.scale,
        "binarisation": data.binarisation,
        "weights": saved.weights,
        "weights_sha256": saved.sha256,
        "epochs": saved.epoch,
    }


def ladder(result: Likelihood) -> list[str]:
    """The bound at growing K, up to the estimate."""
    error = "" if len(result.log_p) == 1 else f" +- {result.standard_error:.3f}"
    rungs = {1: result.elbo, **result.bounds} if result.samples > 1 else {}
    lines = [f"{'1 (ELBO)' if K == 1 else f'{K:,}':>12}  {values.mean():.3f}" for K, values in rungs.items()]
    last = f"{result.samples:>12,}  {result.mean:.3f}{error} nats (standard error over examples)"
    return [f"{'K':>12}  log p(x) >=", *lines, last]


def rows_to_score(saved: Saved, split: str, limit: int | None) -> tuple[torch.Tensor, Dataset]:
    recipe = saved.recipe
    if split == "valid" and recipe.data.train_on == "train+valid":
        raise MemgenError("this run trained on train+valid, so its validation rows are not held out; use --split test")
    if split not in ("train", "valid", "test"):
        raise unknown("split", split, ("train", "valid", "test"))
    data = as_read_by(saved.model, load_data(recipe.data.name))
    return data.fixed(split, limit), data


def score(run: Run, saved: Saved, x: torch.Tensor, options: argparse.Namespace) -> tuple[Likelihood, float]:
    """log p(x) of every row, going on from what an earlier evaluation has kept; and the seconds that it took."""
    scores = run.scores(options.split, options.samples, options.seed, saved.sha256)
    kept, seconds = (None, 0.0) if options.fresh else scores.read()
    parts = [] if kept is None else [kept]
    before = done = sum(len(part.log_p) for part in parts)
    if before:
        print(f"{min(before, len(x)):,} examples were scored before; --fresh scores them again", file=sys.stderr)
    clock = time.perf_counter() - seconds
    kept_at = time.monotonic()
    pieces = log_likelihoods(saved.model, x, options.samples, before, options.seed)
    with Progress("scoring", len(x), "example", before) as progress, closing(pieces) as stream:
        try:
            for piece in stream:
                parts.append(piece)
                done += len(piece.log_p)
                progress.to(done)
                if time.monotonic() - kept_at > KEEP_EVERY:
                    kept_at = time.monotonic()
                    keep(scores, parts, time.perf_counter() - clock)
        except KeyboardInterrupt:
            where = keep(scores, parts, time.perf_counter() - clock)
            raise KeyboardInterrupt(f"{done:,} of {len(x):,} examples scored {where}") from None
    seconds = time.perf_counter() - clock
    if done > before:
        keep(scores, parts, seconds)
    return first(join(parts), len(x)), seconds * len(x) / done


def keep(scores: Scores, parts: list[Likelihood], seconds: float) -> str:
    """Write results so far into the run, where that is possible; says how it went."""
    try:
        if parts:
            scores.write(join(parts), seconds)
    except MemgenError as error:
        print(f"results per example are not kept: {error}", file=sys.stderr)
        return "but not kept"
    return "and kept; the same command goes on"


def first(result: Likelihood, n: int) -> Likelihood:
    """The first n examples."""
    bounds = {K: values[:n] for K, values in result.bounds.items()}
    return Likelihood(result.samples, result.log_p[:n], result.elbo[:n], result.effective[:n], bounds)


def sample(options: argparse.Namespace) -> dict[str, Any]:
    saved = read_model(options.path, choose_device(options.device))
    output = options.output or (None if options.npy else Path("samples.png"))
    arrays = None if options.npy is None else Path(options.npy or (output or Path("samples.png")).with_suffix(".npy"))
    for path in (output, arrays):
        if path is not None and not path.parent.is_dir():
            raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")
    if output is not None and output.suffix.lower() != ".png":
        raise MemgenError(f"-o {output}: a grid is a PNG, give it a name that ends in .png (arrays: --npy)")
    shape = DATASETS[saved.recipe.data.name].shape
    if output is not None and math.prod(shape) != saved.model.likelihood.columns:
        columns = saved.model.likelihood.columns
        raise MemgenError(f"this model has {columns} columns, which are no {shape[0]} x {shape[1]} images; use --npy")
    x = draw_samples(saved.model, options.n, seed=options.seed, draw=options.draw)
    if output is not None:
        write_png(output, grid(x, shape))
        say(options, f"wrote {output}")
    if arrays is not None:
        content = io.BytesIO()
        np.save(content, x.numpy(), allow_pickle=False)
        write_atomically(arrays, content.getvalue())
        say(options, f"wrote {arrays}")
    return {
        "samples": options.n,
        "seed": options.seed,
        "draw": options.draw,
        "output": None if output is None else str(output),
        "npy": None if arrays is None else str(arrays),
    }


def parts(model: DGM) -> dict[str, int]:
    """Parameters by part: the nets, and what P's layers have for their memory."""
    layers = [module for module in model.p.modules() if isinstance(module, MemoryLayer)]
    memory = {
        "attention": sum(count_parameters(layer.attention) for layer in layers),
        "memory": sum(count_parameters(layer.memory) for layer in layers),
        "composition": sum(count_parameters(layer.composition) for layer in layers),
    }
    p = count_parameters(model.p) - sum(memory.values())
    return {"recognition net Q": count_parameters(model.q), "generative net P": p, **memory}


def show(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(options.what)
    run = Run.open(folder) if folder.is_dir() else None
    if run is not None:
        recipe = run.recipe
    elif folder.suffix == ".safetensors":
        recipe = read_model(folder).recipe
    else:
        recipe = Recipe.read(options.what)
    metrics = [] if run is None else run.metrics()
    model = build(recipe)
    counts = parts(model)
    say(options, recipe.to_toml().rstrip())
    say(options)
    for name, count in counts.items():
        say(options, f"{name:>20}  {count:>9,}")
    say(options, f"{'parameters':>20}  {count_parameters(model):>9,}")
    if metrics:
        evaluated = {key: line[key] for line in metrics for key in ("train_bound", "valid_bound") if key in line}
        say(options, f"\nepoch {metrics[-1]['epoch']} of {recipe.training.epochs}: {describe(metrics[-1] | evaluated)}")
    elif run is not None:
        say(options, "\nnot one epoch finished yet")
    return {
        "parameters": count_parameters(model),
        "parts": counts,
        "recipe": recipe.to_dict(),
        "metrics": metrics[-1] if metrics else None,
    }


def recipes(options: argparse.Namespace) -> dict[str, Any]:
    found = {name: Recipe.named(name) for name in recipe_names()}
    width = max(map(len, found))
    for name, recipe in found.items():
        say(options, f"{name:<{width}}  {recipe.about}")
    return {"recipes": [{"name": name, "about": recipe.about} for name, recipe in found.items()]}


def data_list(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name, home in DATASETS.items():
        found = home.find() if home.files else None
        where = str(found) if found else f"not here yet: memgen data fetch {name}"
        where = where if home.files else "comes with scikit-learn"
        rows.append({"name": name, "about": home.about, "where": where, "available": not home.files or bool(found)})
    for row in rows:
        say(options, f"{row['name']:<12} {row['about']}\n{'':<12} {row['where']}")
    return {"datasets": rows}


def data_fetch(options: argparse.Namespace) -> dict[str, Any]:
    folder = fetch(options.name, source(options.name), options.origin)
    say(options, f"{options.name} is in {folder}, its content checked")
    return {"name": options.name, "folder": str(folder)}


def data_check(options: argparse.Namespace) -> dict[str, Any]:
    home = source(options.name)
    if home.files and home.find() is None:
        raise MemgenError(f"{options.name} is not on this machine; bring it with: memgen data fetch {options.name}")
    data = home.load()
    counts = {split: len(data.rows(split)) for split in ("train", "valid", "test")}
    sizes = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    say(
        options,
        f"{options.name}: {sizes} rows of {data.train.shape[1]} columns, scale {data.scale}, {data.binarisation}; good",
    )
    return {"name": options.name, **counts, "columns": data.train.shape[1], "scale": data.scale, "good": True}


def demo(options: argparse.Namespace) -> dict[str, Any]:
    from memgen.demo import run_demo

    return run_demo(options.out, options.epochs, lambda text: say(options, text))
