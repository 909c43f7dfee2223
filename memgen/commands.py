"""What each command of the command line does; every function returns what --json prints."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memgen.data import DATASETS, Dataset, dataset
from memgen.data.files import Source
from memgen.errors import MemgenError, unknown
from memgen.figures import grid
from memgen.layers import MemoryLayer
from memgen.model import DGM, count_parameters
from memgen.progress import Progress
from memgen.recipe import Recipe, build, recipe_names
from memgen.run import RECIPE, Run, Saved, read_model, write_png
from memgen.session import Session
from memgen.storage import write_atomically
from memgen.tasks.density import Likelihood, join, log_likelihoods
from memgen.tasks.sampling import sample as draw_samples
from memgen.train import as_read_by

KEEP_EVERY = 60.0
"""Seconds between writes of an evaluation's results so far."""


def say(options: argparse.Namespace, text: str = "") -> None:
    """A line for people: on stdout, or with --json on stderr."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise MemgenError(f"--device {name}: there is no such device here; use cpu, or auto") from None
    return device


def load_data(name: str) -> Dataset:
    """A data set, fetched first if it is nowhere on this machine."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    source = DATASETS[name]
    if source.files and source.find() is None:
        fetch(name, source, None)
    return dataset(name)


def fetch(name: str, source: Source, origin: Path | None) -> Path:
    with Progress(f"fetching {name}", 0, "byte") as progress:
        return source.fetch(origin, lambda done, total: progress.to(done, total=total))


def train(options: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(options.device)
    recipe, resumed = choose_run(options)
    data = load_data(recipe.data.name)  # before a new folder is made: what fails here leaves nothing behind
    run = Run.open(options.out) if resumed else Run.create(options.out, recipe)
    with run.locked(), Session(run, data, device, options.checkpoint_every) as session:
        if session.state.epoch or session.state.step:
            epochs = f"{session.state.epoch} of {recipe.training.epochs} epochs"
            say(options, f"going on with {run.folder} after {epochs} and {session.state.step} steps")
        metrics = session.train(tensorboard=options.tensorboard)
    last = metrics[-1]
    say(options, f"trained {last['epoch']} epochs in {last['seconds']:.1f} s: {describe(last)}")
    say(options, f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
    return {"epochs": last["epoch"], "bound": last["bound"], "seconds": last["seconds"], "run": str(run.folder)} | {
        key: last[key] for key in ("train_bound", "valid_bound") if key in last
    }


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
    saved = read_model(options.path, str(choose_device(options.device)))
    x, data = rows_to_score(saved, options.split, options.limit)
    result, seconds = score(run, saved, x, options)
    smallest, median = float(result.effective.min()), float(result.effective.median())
    say(
        options,
        f"{options.path}, {options.split}: {len(x):,} examples of {data.name}, scale {data.scale}, {data.binarisation}",
    )
    say(options, f"weights: {saved.weights}, after {saved.epoch} epochs; noise seed {options.seed}")
    say(options, f"{'K':>12}  log p(x) >=")
    say(options, f"{'1 (ELBO)':>12}  {result.elbo.mean():.3f}")
    for K, values in result.bounds.items():
        say(options, f"{K:>12,}  {values.mean():.3f}")
    say(
        options,
        f"{result.samples:>12,}  {result.mean:.3f} +- {result.standard_error:.3f} nats (standard error over examples)",
    )
    say(options, f"effective sample size: median {median:.1f}, smallest {smallest:.1f} of {result.samples:,}")
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


def rows_to_score(saved: Saved, split: str, limit: int | None) -> tuple[torch.Tensor, Dataset]:
    recipe = saved.recipe
    if split == "valid" and recipe.data.train_on == "train+valid":
        raise MemgenError("this run trained on train+valid, so its validation rows are not held out; use --split test")
    if split == "train+valid":
        raise MemgenError("score one split at a time: train, valid or test")
    data = as_read_by(saved.model, load_data(recipe.data.name))
    return data.fixed(split, limit), data


def score(run: Run, saved: Saved, x: torch.Tensor, options: argparse.Namespace) -> tuple[Likelihood, float]:
    """log p(x) of every row, going on from what an earlier evaluation has kept."""
    scores = run.scores(options.split, options.samples, options.seed, saved.sha256)
    kept, seconds = (None, 0.0) if options.fresh else scores.read()
    parts = [] if kept is None else [kept]
    done = sum(len(part.log_p) for part in parts)
    if done:
        print(f"{min(done, len(x)):,} examples were scored before; --fresh scores them again", file=sys.stderr)
    clock = time.perf_counter() - seconds
    kept_at = time.monotonic()
    pieces = log_likelihoods(saved.model, x, options.samples, done, options.seed)
    with Progress("scoring", len(x), "example") as progress, closing(pieces) as stream:
        try:
            for piece in stream:
                parts.append(piece)
                done += len(piece.log_p)
                progress.to(done)
                if time.monotonic() - kept_at > KEEP_EVERY:
                    kept_at = time.monotonic()
                    scores.write(join(parts), time.perf_counter() - clock)
        except KeyboardInterrupt:
            scores.write(join(parts), time.perf_counter() - clock)
            raise KeyboardInterrupt(
                f"{done:,} of {len(x):,} examples scored and kept; the same command goes on"
            ) from None
    result = join(parts)
    seconds = time.perf_counter() - clock if done > (0 if kept is None else len(kept.log_p)) else seconds
    scores.write(result, seconds)
    return first(result, len(x)), seconds


def first(result: Likelihood, n: int) -> Likelihood:
    """The first n examples."""
    bounds = {K: values[:n] for K, values in result.bounds.items()}
    return Likelihood(result.samples, result.log_p[:n], result.elbo[:n], result.effective[:n], bounds)


def sample(options: argparse.Namespace) -> dict[str, Any]:
    saved = read_model(options.path, str(choose_device(options.device)))
    output = options.output or (None if options.npy else Path("samples.png"))
    arrays = None if options.npy is None else Path(options.npy or (output or Path("samples.png")).with_suffix(".npy"))
    for path in (output, arrays):
        if path is not None and not path.parent.is_dir():
            raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")
    if output is not None and output.suffix.lower() != ".png":
        raise MemgenError(f"-o {output}: a grid is a PNG, give it a name that ends in .png (arrays: --npy)")
    x = draw_samples(saved.model, options.n, seed=options.seed, draw=options.draw)
    if output is not None:
        write_png(output, grid(x, DATASETS[saved.recipe.data.name].shape))
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
    recipe = Recipe.read(options.what) if run is None else run.recipe
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
    for name, source in DATASETS.items():
        found = source.find() if source.files else None
        where = "comes with scikit-learn" if not source.files else str(found) if found else "not here yet"
        rows.append({"name": name, "about": source.about, "where": where, "available": not source.files or bool(found)})
        say(options, f"{name:<12} {source.about}\n{'':<12} {where}")
    return {"datasets": rows}


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def data_fetch(options: argparse.Namespace) -> dict[str, Any]:
    folder = fetch(options.name, _source(options.name), options.origin)
    say(options, f"{options.name} is in {folder}, its content checked")
    return {"name": options.name, "folder": str(folder)}


def data_check(options: argparse.Namespace) -> dict[str, Any]:
    source = _source(options.name)
    if source.files and source.find() is None:
        raise MemgenError(f"{options.name} is not on this machine; bring it with: memgen data fetch {options.name}")
    data = source.load()
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
