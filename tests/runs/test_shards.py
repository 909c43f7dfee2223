"""Shards: what they merge to is what one process computes, to the bit; what does not belong together is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.core.model import DGM
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs import scores
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks import density, imputation
from memgen.tasks.imputation import METHODS, imputations
from memgen.tasks.shards import Shard
from memgen.training.statistics import collect_statistics
from tests.command import refused, told

TWO_LEVELS = ["model.hidden=[[12], [8]]", "model.latent=[5, 3]", "model.slots=[[6], [4]]"]
SMALL = ["--samples", "20", "--limit", "60"]
NAME = "evaluate-test-20-seed0-first60"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two levels, whose decoder computes in float32: a bit of a row depends on the size of its batch."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = [*TWO_LEVELS, "training.epochs=2", "training.evaluate_rows=50", "objective.local_reconstruction=[]"]
    sets = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", "digits-mem-vae", "--out", str(folder), *sets]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return "run"


def model_of(levels: int, columns: int = 16) -> DGM:
    settings = TWO_LEVELS if levels == 2 else ["model.hidden=[12]", "model.latent=5", "model.slots=[6]"]
    model = build(Recipe().override(settings), columns)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
    collect_statistics(model, Batch.of(rows(200, columns)))
    return model.eval()


def rows(n: int, columns: int = 16) -> torch.Tensor:
    return (torch.rand(n, columns, generator=torch.Generator().manual_seed(7)) < 0.5).float()


def equal(first: Any, second: Any) -> bool:
    """Whether all tensors of two records have the same bits."""
    pairs = [(getattr(first, field.name), getattr(second, field.name)) for field in fields(first)]
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs if isinstance(a, torch.Tensor))


def test_shards_of_batches_cover_all_rows_once() -> None:
    for n, count in ((1, 1), (60, 3), (61, 7), (5, 4), (800, 100)):
        borders = density.borders(n)
        parts = [Shard(i, count).rows(borders) for i in range(count)]
        assert [row for part in parts for row in part] == list(range(n))
        assert all(part.start in borders for part in parts)
        sizes = [-(-len(part) // density.BATCH_SIZE) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("levels", [1, 2])
def test_likelihoods_of_shards_are_those_of_one_process_to_the_bit(levels: int) -> None:
    model, x = model_of(levels), Batch.of(rows(29))
    whole = density.log_likelihood(model, x, 60)
    for count in (2, 3, 5):
        ranges = [Shard(i, count).rows(density.borders(len(x))) for i in range(count)]
        parts = [
            part
            for where in ranges
            for part in density.log_likelihoods(model, x, 60, start=where.start, stop=where.stop)
        ]
        assert equal(density.join(parts), whole)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].masked])
def test_imputations_of_shards_are_those_of_one_process_to_the_bit(method: str) -> None:
    model, x = model_of(2), rows(31)
    batch = Batch(x, torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.6)
    settings = imputation.Settings(steps=5, keep=3, draws=2, batch_size=10)
    whole = imputation.join(list(imputations(model, batch, method, settings)))
    for count in (2, 6):
        ranges = [Shard(i, count).rows(imputation.borders(31, 10)) for i in range(count)]
        parts = [
            part
            for where in ranges
            for part in imputations(model, batch, method, settings, start=where.start, stop=where.stop)
        ]
        assert equal(imputation.join(parts), whole)


def kept(run: str, samples: int = 20) -> dict[str, torch.Tensor]:
    return load_tensors(Path(run) / "likelihood" / f"test-{samples}-seed0.safetensors")[0]


def shards_of(run: str, count: int, *options: str) -> None:
    for i in reversed(range(count)):
        assert main(["evaluate", run, *SMALL, "--shard", f"{i}/{count}", *options]) == 0


@pytest.mark.parametrize("count", [1, 3, 11])
def test_merged_evaluation_is_that_of_one_process(count: int, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers and the file with those of every row. With 11 shards of 8 batches, some have no rows."""
    whole = told(capsys, ["evaluate", run, *SMALL])
    expected = kept(run)
    shutil.rmtree(Path(run) / "likelihood")
    shards_of(run, count)
    assert f"memgen merge evaluate {run}" in capsys.readouterr().out
    merged = told(capsys, ["merge", "evaluate", run, *SMALL])
    assert whole | {"seconds": 0} == merged | {"seconds": 0}
    actual = kept(run)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert main(["evaluate", run, *SMALL]) == 0  # what was merged is used
    assert "60 examples were scored before" in capsys.readouterr().err


class Killed(BaseException):
    """Like SIGKILL: nothing of the program handles it."""


def die_after(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scoring write what it has after every batch, and die after n of them."""
    monkeypatch.setattr(scores, "KEEP_EVERY", -1.0)
    real = density.log_likelihoods

    def dying(*args: Any, **options: Any) -> Iterator[density.Likelihood]:
        for i, part in enumerate(real(*args, **options)):
            if i == n:
                raise Killed
            yield part

    monkeypatch.setattr(scores, "log_likelihoods", dying)


def test_a_killed_shard_goes_on_where_it_was(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shards_of(run, 2)
    assert main(["merge", "evaluate", run, *SMALL]) == 0
    expected = kept(run)
    shutil.rmtree(Path(run) / "shards")
    with pytest.MonkeyPatch.context() as monkeypatch:
        die_after(2, monkeypatch)
        with pytest.raises(Killed):
            main(["evaluate", run, *SMALL, "--shard", "1/2"])
    assert main(["evaluate", run, *SMALL, "--shard", "0/2"]) == 0
    refused(capsys, ["merge", "evaluate", run, *SMALL], "shard-1-of-2", "16 of 28 rows", "--shard 1/2")
    assert main(["evaluate", run, *SMALL, "--shard", "1/2"]) == 0
    assert "16 examples were scored before" in capsys.readouterr().err
    assert main(["merge", "evaluate", run, *SMALL]) == 0
    assert all(torch.equal(values, expected[name]) for name, values in kept(run).items())


def test_an_evaluation_goes_on_at_a_border_of_batches(run: str) -> None:
    """After the first 20 rows, rows 17 to 24 are scored together, as if there had been no limit before."""
    assert main(["evaluate", run, *SMALL]) == 0
    expected = kept(run)
    shutil.rmtree(Path(run) / "likelihood")
    assert main(["evaluate", run, "--samples", "20", "--limit", "20"]) == 0
    assert main(["evaluate", run, *SMALL]) == 0
    assert all(torch.equal(values, expected[name]) for name, values in kept(run).items())


def test_shards_that_do_not_belong_are_refused_by_name(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    merge = ["merge", "evaluate", run, *SMALL, "--shards", "parts"]
    refused(capsys, merge, "there are no shards in parts", "--shard 0/4")
    shards_of(run, 3, "--shards", "parts")
    parts = Path("parts")
    first, second = parts / "shard-0-of-3.safetensors", parts / "shard-1-of-3.safetensors"
    whole = {file: file.read_bytes() for file in (first, second)}
    second.unlink()
    refused(capsys, merge, "1 shard is missing in parts: 1/3", f"memgen evaluate {run}", "--shard 1/3")
    shutil.copy(first, second)
    refused(capsys, merge, str(first), str(second), "are both shard 0/3")
    second.write_bytes(whole[second][:-9])
    refused(capsys, merge, str(second), "corrupt")
    for changes, words in CHANGES.items():
        tensors, about = load_tensors(first)
        task = json.loads(about["task"]) | dict([changes])
        save_tensors(second, tensors, about | {"task": json.dumps(task)})
        refused(capsys, merge, str(second), *words)
    save_tensors(second, {"log_p": torch.zeros(8)}, load_tensors(first)[1] | {"shard": "1/3"})
    refused(capsys, merge, str(second), "damaged")
    second.write_bytes(whole[second])
    shutil.copy(first, parts / "shard-0-of-2.safetensors")
    assert main(["evaluate", run, *SMALL, "--shards", "parts", "--shard", "0/2"]) == 2
    (parts / "shard-0-of-2.safetensors").unlink()
    assert main(["evaluate", run, *SMALL, "--shards", "parts", "--shard", "0/2"]) == 0
    refused(capsys, merge, "shard-0-of-2", "shard-0-of-3", "do not belong together")
    assert not (Path(run) / "likelihood").exists()


CHANGES = {
    ("weights", "0"): ("other weights",),
    ("rows", "0"): ("other rows",),
    ("seed", 1): ("seed 1, and this is seed 0",),
    ("samples", 21): ("samples 21, and this is samples 20",),
}


def test_a_shard_of_other_weights_or_settings_is_not_replaced(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shard = ["evaluate", run, *SMALL, "--shards", "parts", "--shard", "0/2"]
    assert main(shard) == 0
    before = Path("parts/shard-0-of-2.safetensors").read_bytes()
    refused(capsys, [*shard, "--seed", "1"], "shard-0-of-2", "seed 0, and this is seed 1")
    assert Path("parts/shard-0-of-2.safetensors").read_bytes() == before
    assert main([*shard, "--seed", "1", "--fresh"]) == 0
    assert Path("parts/shard-0-of-2.safetensors").read_bytes() != before


@pytest.mark.parametrize("shard", ["3/3", "4/3", "0/0", "-1/3", "a/b", "1", "1/2/3", "0/99999999"])
def test_a_shard_that_does_not_exist_is_one_line(shard: str, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["evaluate", run, f"--shard={shard}"], "memgen evaluate:", shard)


def test_places_without_room_for_shards_are_one_line(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["evaluate", f"{run}/weights.safetensors", "--shard", "0/2"], "--shards FOLDER")
    Path("file").touch()
    refused(capsys, ["evaluate", run, "--shard", "0/2", "--shards", "file/in"], "cannot make the folder file/in")
    refused(capsys, ["merge", run], "memgen merge evaluate run")
    assert main(["evaluate", f"{run}/weights.safetensors", *SMALL, "--shard", "0/1", "--shards", "parts"]) == 0
    assert main(["merge", "evaluate", f"{run}/weights.safetensors", *SMALL, "--shards", "parts"]) == 0


@pytest.mark.parametrize("method", ["importance", "paper"])
def test_merged_imputation_of_a_pattern_is_that_of_one_process(
    method: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the paper's method with batch statistics, which has batches of its own."""
    command = ["impute", run, "--pattern", "half", "--method", method, "--steps", "4"]
    whole = told(capsys, [*command, "--npz", "one.npz"])
    for i in range(2):
        assert told(capsys, [*command, "--shard", f"{i}/2"]) == {"shard": f"{i}/2"}
        if i == 0:
            refused(capsys, ["merge", *command], "1 shard is missing", "1/2")
    merged = told(capsys, ["merge", *command, "--npz", "merged.npz"])
    different = {"seconds", "npz"}
    assert {key: whole[key] for key in whole.keys() - different} == {
        key: merged[key] for key in whole.keys() - different
    }
    with np.load("one.npz") as one, np.load("merged.npz") as many:
        assert all(np.array_equal(one[name], many[name], equal_nan=True) for name in one)


def test_merged_imputation_of_own_data_is_that_of_one_process(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = rows(260, 64).numpy()
    x[np.random.default_rng(0).random(x.shape) < 0.3] = np.nan
    np.save("incomplete.npy", x)
    command = ["impute", run, "--input", "incomplete.npy", "--steps", "4", "--draws", "2", "--mean"]
    assert main([*command, "--output", "one.npy"]) == 0
    for i in range(2):
        assert main([*command, "--shard", f"{i}/2"]) == 0
    assert not Path("many.npy").exists()
    assert main(["merge", *command, "--output", "many.npy"]) == 0
    for suffix in ("", "-1", "-2"):
        assert Path(f"one{suffix}.npy").read_bytes() == Path(f"many{suffix}.npy").read_bytes()
    np.save("incomplete.npy", x[:259])
    refused(capsys, ["merge", *command, "--output", "other.npy"], "other rows")
    refused(capsys, [*command, "--shard", "0/2"], "other rows")
