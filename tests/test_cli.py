"""The command line: what it prints, what it writes, and one clear line for bad input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import memgen
from memgen.cli.demonstration import MARK
from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.data import DATASETS
from memgen.recipes import listing
from memgen.runs import scores as scoring
from memgen.runs.run import Run
from memgen.runs.session import choose_execution
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood, log_likelihoods
from memgen.training.execution import execution_path
from memgen.training.fit import Epoch

QUICK = ["--set", "training.epochs=3", "--set", "training.evaluate_every=2", "--set", "training.evaluate_rows=50"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run, to be read only."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits-mem-vae", "--out", str(folder), *QUICK]) == 0
    return folder


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    """The one JSON object that a command prints on stdout."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> str:
    """A command that exits with 2 and one line that has all the words."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    for word in words:
        assert word in captured.err
    return captured.err


def test_train_prints_its_promised_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = told(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), *QUICK])
    assert result["epochs"] == 3
    assert result["run"] == str(tmp_path / "r")
    assert -45 < result["bound"] < -20
    assert result["seconds"] > 0
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert ["train_bound" in line and "valid_bound" in line for line in lines] == [False, True, True]


def test_a_run_folder_describes_itself(run: Path) -> None:
    assert {path.name for path in run.iterdir()} >= {
        "recipe.toml",
        "weights.safetensors",
        "checkpoint.safetensors",
        "metrics.jsonl",
    }
    tensors, about = load_tensors(run / "weights.safetensors")
    assert memgen.Recipe.from_toml(about["recipe"]) == memgen.Recipe.read(str(run / "recipe.toml"))
    assert about["weights"] == "averaged"
    assert all(value.isfinite().all() for value in tensors.values())


def test_evaluate_prints_its_promised_keys_and_agrees_with_the_library(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = told(capsys, ["evaluate", str(run), "--samples", "100"])
    library = memgen.log_likelihood(memgen.load(run), memgen.dataset("digits").fixed("test"), 100)
    assert result["log_likelihood"] == pytest.approx(library.mean, abs=1e-4)
    assert result["standard_error"] == pytest.approx(library.standard_error, rel=1e-4)
    assert result["elbo"] == pytest.approx(float(library.elbo.mean()), abs=1e-4)
    assert result["effective_sample_size"] == pytest.approx(float(library.effective.mean()), rel=1e-3)
    assert (result["samples"], result["examples"]) == (100, 300)
    assert result["elbo"] < result["bounds"]["5"] < result["bounds"]["50"] < result["log_likelihood"]
    assert result["scale"] == "v/16"
    assert "RandomState(1234)" in result["binarisation"]
    assert result["seconds"] > 0


def test_evaluate_goes_on_from_what_it_has_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = told(capsys, ["evaluate", str(run), "--samples", "60", "--limit", "50"])
    assert few["examples"] == 50
    assert main(["evaluate", str(run), "--samples", "60", "--json"]) == 0
    captured = capsys.readouterr()
    assert "50 examples were scored before" in captured.err
    everything = json.loads(captured.out)
    assert everything["examples"] == 300
    fresh = told(capsys, ["evaluate", str(run), "--samples", "60", "--fresh"])
    assert everything["log_likelihood"] == pytest.approx(fresh["log_likelihood"], abs=1e-4)
    again = told(capsys, ["evaluate", str(run), "--samples", "60", "--limit", "50"])
    assert again["log_likelihood"] == pytest.approx(few["log_likelihood"], abs=1e-4)


def test_an_interrupted_evaluation_keeps_what_it_has_and_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C arrives in the fourth batch of eight examples."""
    copy = copied(run, tmp_path)
    arguments = ["evaluate", str(copy), "--samples", "70", "--limit", "60", "--json"]

    def interrupted(*given: Any) -> Iterator[Likelihood]:
        for i, piece in enumerate(log_likelihoods(*given)):
            if i == 3:
                raise KeyboardInterrupt
            yield piece

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "log_likelihoods", interrupted)
        assert main(arguments) == 130
    captured = capsys.readouterr()
    assert (
        captured.err.splitlines()[-1] == "memgen evaluate: 24 of 60 examples scored and kept; the same command goes on"
    )
    assert captured.out == ""
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "24 examples were scored before" in captured.err
    fresh = told(capsys, [*arguments[:-1], "--fresh"])
    assert json.loads(captured.out)["log_likelihood"] == pytest.approx(fresh["log_likelihood"], abs=1e-4)


def test_kept_results_of_other_weights_do_not_count(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    before = told(capsys, ["evaluate", str(copy), "--samples", "40"])
    tensors, about = load_tensors(copy / "weights.safetensors")
    tensors["p.0.head.logits.bias"] += 0.5
    save_tensors(copy / "weights.safetensors", tensors, about)
    assert told(capsys, ["evaluate", str(copy), "--samples", "40"])["log_likelihood"] < before["log_likelihood"] - 0.5


def test_evaluate_for_people(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--samples", "80", "--split", "valid"]) == 0
    out = capsys.readouterr().out
    for words in (
        "200 examples of digits",
        "scale v/16",
        "RandomState(1234)",
        "1 (ELBO)",
        "nats",
        "effective sample size",
        "averaged",
    ):
        assert words in out


def test_sample_writes_a_grid_and_arrays(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid, array = tmp_path / "s.png", tmp_path / "s.npy"
    assert told(capsys, ["sample", str(run), "-n", "10", "-o", str(grid), "--npy"])["output"] == str(grid)
    with Image.open(grid) as image:
        assert image.size[0] > 200
        assert np.asarray(image).std() > 10
    x = np.load(array)
    assert x.shape == (10, 64)
    assert np.allclose(x, memgen.sample(memgen.load(run), 10).numpy())
    assert main(["sample", str(run), "-n", "5", "--draw", "--npy", str(tmp_path / "draws.npy")]) == 0
    assert set(np.unique(np.load(tmp_path / "draws.npy"))) == {0, 1}
    assert not Path("samples.png").exists()  # arrays alone were asked for


def test_show_a_recipe_and_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ["show", "mnist-mem-vae"])["parameters"] == 1_550_084
    shown = told(capsys, ["show", str(run)])
    assert shown["parameters"] == sum(shown["parts"].values()) == memgen.count_parameters(memgen.load(run))
    assert shown["metrics"]["epoch"] == 3
    assert shown["recipe"]["training"]["epochs"] == 3
    assert main(["show", str(run)]) == 0
    out = capsys.readouterr().out
    assert "epoch 3 of 3" in out
    assert "recognition net Q" in out


def test_recipes_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    told_of = told(capsys, ["recipes"])
    assert {entry["name"] for entry in told_of["recipes"]} == set(memgen.recipe_names())
    assert {entry["name"] for entry in told_of["schedules"]} >= {"paper", "fast", "long"}
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out.count("\n") < 50  # on one screen
    listed = told(capsys, ["data", "list"])["datasets"]
    assert [entry["name"] for entry in listed] == list(DATASETS)
    assert list(DATASETS)[:5] == ["digits", "mnist", "mnist-255", "ocr_letters", "frey_faces"]
    assert told(capsys, ["data", "check", "digits"])["good"] is True


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    # TensorBoard's own imports give deprecation warnings; a process of its own keeps them out of these tests.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "memgen",
            "train",
            "digits-vae",
            "--out",
            str(tmp_path / "r"),
            *QUICK,
            "--tensorboard",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["epochs"] == 3
    assert list((tmp_path / "r" / "tensorboard").glob("events*"))


def test_help_is_fast_and_has_examples_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys\nfrom memgen.cli.main import main\nmain(['--help'])\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    for command in (
        "train",
        "evaluate",
        "sample",
        "show",
        "recipes",
        "data",
        "data list",
        "data fetch",
        "data check",
        "demo",
    ):
        assert main([*command.split(), "--help"]) == 0
        assert f"Examples:\n    memgen {command.split()[0]}" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (([], "Train and evaluate:"), (["data"], "fetch")):
        assert main(arguments) == 0
        assert words in capsys.readouterr().out


def test_a_recipe_in_the_place_of_a_run_is_to_be_trained_first(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "digits-vae is a recipe; train it first: memgen train digits-vae --out runs/digits-vae"
    for command in ("evaluate", "sample", "impute", "features", "classify", "inspect", "report"):
        assert refused(capsys, [command, "digits-vae"]) == f"memgen {command}: {advice}\n"


def test_an_unforeseen_error_is_one_line_with_the_place_of_its_trace(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError("one\nby none")

    monkeypatch.setattr(listing, "recipe_groups", broken)
    assert main(["recipes", "--json"]) == 70
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"memgen recipes: .*ZeroDivisionError: one; the full trace is in (\S+)\n", captured.err)
    trace = Path(captured.err.split()[-1])
    assert trace.parent == own_cache / "traces"
    assert "in broken" in trace.read_text()
    own_cache.joinpath("traces").rename(own_cache / "old")
    own_cache.joinpath("traces").write_text("in the way")
    assert main(["recipes"]) == 70
    elsewhere = Path(capsys.readouterr().err.split()[-1])
    assert "in broken" in elsewhere.read_text()
    elsewhere.unlink()


def test_a_place_that_takes_no_file_is_refused_before_the_work(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["sample", str(run), "-o", "/proc/s.png"],
        ["sample", str(run), "--npy", "/proc/s.npy"],
        ["features", str(run), "-o", "/proc/f.npz"],
        ["impute", str(run), "--pattern", "half", "-o", "/proc/i.png"],
        ["impute", str(run), "--input", "x.csv", "--output", "/proc/i.csv"],
        ["report", str(run), "-o", "/proc/r.html"],
    ):
        refused(capsys, arguments, "cannot write into the folder /proc")
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


def test_tab_completes_commands_options_and_recipes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completions(*words: str) -> str:
        monkeypatch.setenv("_MEMGEN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["memgen", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == 0
        return capsys.readouterr().out

    assert "plain,evaluate" in completions("eva")
    assert "plain,--samples" in completions("evaluate", "--sa")
    assert "plain,digits-mem-vae" in completions("train", "digits")


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "r")]
    refused(capsys, ["trian"], "unknown command 'trian'", "did you mean 'train'")
    refused(capsys, ["data", "fetsh", "mnist"], "did you mean 'fetch'")
    refused(capsys, ["train", "mnist-memvae", *out], "did you mean 'mnist-mem-vae'", "mnist-vae-530")
    refused(capsys, ["train", "nothing.toml", *out], "cannot read the recipe nothing.toml")
    refused(capsys, ["train", *out], "which recipe?")
    refused(capsys, ["train", "digits-vae", *out, "--set", "training.epoch=1"], "did you mean 'epochs'")
    refused(capsys, ["train", "digits-mem-vae", *out, "--set", "model.slots=[1]"], "one entry per layer")
    refused(capsys, ["train", "digits-vae", *out, "--device", "cudda"], "no such device")
    refused(
        capsys,
        ["train", "digits-vae", *out, "--ouput"],
        "unknown option '--ouput'; did you mean '--out'",
        "memgen train --help",
    )
    refused(capsys, ["show", "mnist-vae", "please"], "unexpected extra argument (please)", "memgen show --help")
    refused(capsys, ["data", "check", "minst"], "did you mean 'mnist'")
    refused(capsys, ["show", "mnist-mem"], "unknown recipe")
    assert not (tmp_path / "r").exists()


def test_wrong_numbers_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["evaluate", str(run), "--samples", "0"], "at least 1")
    refused(capsys, ["evaluate", str(run), "--samples", "many"], "not a whole number")
    refused(capsys, ["evaluate", str(run), "--limit", "-3"], "at least 1")
    refused(capsys, ["sample", str(run), "-n", "0"], "at least 1")
    refused(capsys, ["evaluate", str(run), "--split", "tset"], "did you mean 'test'")
    refused(capsys, ["evaluate", str(run), "--split", "train+valid"], "Choices: train, valid, test")
    refused(capsys, ["sample", str(run), "-o", "picture.jpg"], ".png")
    refused(capsys, ["sample", str(run), "-o", "no/such/folder/s.png"], "no folder")


def test_an_out_that_holds_something_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "weights.safetensors").read_bytes()
    refused(capsys, ["train", "digits-vae", "--out", str(run)], "already holds a run", "--resume")
    assert (run / "weights.safetensors").read_bytes() == before
    (tmp_path / "diary.txt").write_text("mine")
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path)], "not an empty folder")
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "diary.txt")], "not an empty folder")
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "diary.txt" / "r")], "cannot make the folder")


def test_resume_with_a_changed_setting_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "digits-mem-vae", "--out", str(run), "--resume", *QUICK]
    refused(capsys, [*arguments, "--set", "training.rate=0.5"], "training.rate", "0.5")
    refused(capsys, ["train", "--resume", "--out", str(run), "--set", "training.epochs=9"], "training.epochs")
    refused(capsys, ["train", "digits-vae", "--resume", "--out", str(run), *QUICK], "model.slots")
    assert main(arguments) == 0


def test_a_missing_or_half_written_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("evaluate", "sample"):
        refused(
            capsys, [command, str(tmp_path / "nowhere")], "no run at" if command == "evaluate" else "there is no run"
        )
    refused(capsys, ["evaluate", str(tmp_path)], "is not a run")
    refused(capsys, ["sample", str(tmp_path)], "is not a run")
    refused(capsys, ["train", "--resume", "--out", str(tmp_path / "nowhere")], "there is no run at")
    (tmp_path / "recipe.toml").write_text(memgen.Recipe.named("digits-vae").to_toml())
    refused(capsys, ["evaluate", str(tmp_path)], "no weights yet", "--resume")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "nonsense", "shape", "lacking", "foreign"])
def test_weights_that_are_damaged_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    file = copy / "weights.safetensors"
    content = file.read_bytes()
    tensors, about = load_tensors(file)
    word = "corrupt"
    if damage == "truncated":
        file.write_bytes(content[:-1000])
    elif damage == "flipped":
        file.write_bytes(content[:-1000] + bytes([content[-1000] ^ 16]) + content[-999:])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "nonsense":
        file.write_bytes(b"PK\x03\x04 this was never a model" * 100)
    elif damage == "shape":
        name = "p.0.layers.0.memory.M"
        save_tensors(file, {**tensors, name: tensors[name][:-1]}, about)
        word = f"{name} has shape (14, 200), not (15, 200)"
    elif damage == "lacking":
        del tensors["p.0.head.logits.bias"]
        save_tensors(file, tensors, about)
        word = "lacks tensor p.0.head.logits.bias"
    else:
        recipe = memgen.Recipe.named("digits-vae")
        memgen.save(memgen.build(recipe), file, recipe)
        word = "another model"
    for command in ("evaluate", "sample"):
        refused(capsys, [command, str(copy)], str(file), word)


def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_altered_metadata_is_noticed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copied(run, tmp_path) / "weights.safetensors"
    content = file.read_bytes()
    assert b'"epoch":"3"' in content
    file.write_bytes(content.replace(b'"epoch":"3"', b'"epoch":"9"'))
    refused(capsys, ["evaluate", str(file.parent)], "checksum")


def test_a_lost_checkpoint_does_not_start_a_run_anew(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    (copy / "checkpoint.safetensors").unlink()
    weights = (copy / "weights.safetensors").read_bytes()
    refused(capsys, ["train", "--resume", "--out", str(copy)], "lost its checkpoint.safetensors")
    assert (copy / "weights.safetensors").read_bytes() == weights


@pytest.mark.parametrize("damaged", [False, True])
def test_lost_weights_of_a_finished_run_are_made_again(run: Path, tmp_path: Path, damaged: bool) -> None:
    copy = copied(run, tmp_path)
    before, _ = load_tensors(copy / "weights.safetensors")
    content = (copy / "weights.safetensors").read_bytes()
    (copy / "weights.safetensors").unlink()
    if damaged:
        (copy / "weights.safetensors").write_bytes(content[:-100])
    assert main(["train", "--resume", "--out", str(copy)]) == 0
    after, _ = load_tensors(copy / "weights.safetensors")
    assert all(before[name].equal(after[name]) for name in before)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"3\n", b"", None, b'{"epoch": 1}\n', b'{"epoch": "1", "bound": -3}\n']
)
def test_altered_metrics_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    copy = copied(run, tmp_path)
    metrics = copy / "metrics.jsonl"
    metrics.unlink()
    if content is None:
        metrics.mkdir()
    else:
        metrics.write_bytes(content)
    refused(capsys, ["train", "--resume", "--out", str(copy)], "metrics.jsonl")


def test_metrics_on_a_full_disk_are_one_line(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(memgen.MemgenError, match="No space left on device"):
        Run.open(copy).log(Epoch(1, 1.0, -1.0, 0.1, 1.0))


def test_a_start_that_was_killed_leaves_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".memgen-0123456789abcdef.tmp").write_text("[mod")
    assert main(["train", "digits-vae", "--out", str(folder), *QUICK, "--resume"]) == 0


def test_a_resumed_run_stays_on_its_device_and_notes_another_torch(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = execution_path()
    kept = {"device": "cpu", "threads": torch.get_num_threads(), "torch": "1.0", "path": path}
    with pytest.warns(UserWarning, match=r"started with torch 1\.0"):
        assert choose_execution("auto", kept) == kept
    with pytest.raises(memgen.MemgenError, match="stays there"):
        choose_execution("cuda", kept)
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), "--device", "meta"], "no such device")


def test_a_grid_of_a_model_that_has_no_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = memgen.Recipe.named("digits-vae").override(["model.norm=none"])
    memgen.save(memgen.build(recipe, 6), tmp_path / "m.safetensors", recipe)
    refused(capsys, ["sample", str(tmp_path / "m.safetensors"), "-o", str(tmp_path / "s.png")], "6 columns", "--npy")
    assert main(["sample", str(tmp_path / "m.safetensors"), "-n", "5", "--npy", str(tmp_path / "s.npy")]) == 0
    assert np.load(tmp_path / "s.npy").shape == (5, 6)


def test_a_model_file_is_scored_like_its_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "weights.safetensors", tmp_path / "m.safetensors")
    more = ["--samples", "5", "--limit", "7", "--fresh"]
    alone = told(capsys, ["evaluate", str(tmp_path / "m.safetensors"), *more])
    assert alone["log_likelihood"] == told(capsys, ["evaluate", str(run), *more])["log_likelihood"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    refused(capsys, ["evaluate", str(tmp_path / "nothing")], "there is no run at")


def test_a_run_begins_with_the_weights_of_another(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a rate of almost nothing, the weights that it ends with are those that it began with."""
    still = ["--set", "training.rate=1e-30", "--set", "training.ema=0", "--set", "objective.samples=3"]
    out = tmp_path / "on"
    start = ["train", "digits-mem-vae", "--out", str(out), *QUICK, *still]
    assert main([*start, "--start", str(run)]) == 0
    own, other = memgen.load(run), memgen.load(out)
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters(), strict=True))
    about = json.loads((out / "start.json").read_text())
    assert about["weights_sha256"] == load_tensors(run / "weights.safetensors")[1]["sha256"]
    assert (about["name"], about["stages"]) == (str(run), 0)
    assert main(["train", "--resume", "--out", str(out)]) == 0
    refused(capsys, ["train", "--resume", "--out", str(out), "--start", str(run)], "has begun", "--start")
    wider = ["train", "digits-vae", "--out", str(tmp_path / "b"), "--start", str(run)]
    refused(capsys, wider, "the model to start from", "does not fit")
    assert not (tmp_path / "b").exists()


def test_results_that_cannot_be_kept_are_still_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    shutil.rmtree(copy / "likelihood", ignore_errors=True)
    (copy / "likelihood").write_text("in the way")
    assert main(["evaluate", str(copy), "--samples", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert "not kept" in captured.err
    assert json.loads(captured.out)["examples"] == 300


def test_weights_that_are_not_finite_give_no_number(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    tensors, about = load_tensors(copy / "weights.safetensors")
    tensors["p.0.head.logits.bias"][3] = torch.inf
    save_tensors(copy / "weights.safetensors", tensors, about)
    refused_last(capsys, ["evaluate", str(copy), "--samples", "5", "--json"], "not finite for 300 of 300 examples")


def refused_last(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Exit code 2, nothing on stdout, the words in the last line of stderr (there is progress before it)."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warming = ["--compile", "--set", "objective.kl_warmup_epochs=1"]
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), *warming], "leave out --compile")
    assert not (tmp_path / "r").exists()
    too_large = ["--set", "training.batch_size=99999", "--set", "training.drop_incomplete=true"]
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), *too_large], "do not fill a batch")
    refused(
        capsys,
        ["train", "digits-vae", "--out", str(tmp_path / "r"), "--set", "model.hidden=[99999999999, 5]"],
        "cannot",
    )
    assert not (tmp_path / "r").exists()


def test_what_a_newcomer_gets_wrong_in_python(run: Path, tmp_path: Path) -> None:
    model, x = memgen.load(run), memgen.dataset("digits").fixed("test").x[:6]
    reference = memgen.log_likelihood(model, Batch.of(x), 20).log_p
    for same in (x.double(), x.int(), x.numpy()):
        assert memgen.log_likelihood(model, Batch.of(same), 20).log_p.equal(reference)
    recipe = memgen.Recipe.named("digits-vae").override("training.epochs=1")
    assert recipe.training.epochs == 1
    with pytest.raises(memgen.MemgenError, match="does not fit its recipe"):
        memgen.save(model, tmp_path / "m.safetensors", recipe)
    whole = memgen.Dataset("ints", torch.randint(0, 2, (30, 64)))
    assert len(list(memgen.fit(memgen.build(recipe), whole, recipe))) == 1
    assert "tensor" not in repr(whole)


def test_a_mistyped_data_folder_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMGEN_DATA", "/no/such/folder")
    refused(capsys, ["data", "list"], "MEMGEN_DATA names /no/such/folder")


def test_small_things_people_see(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["--json", "recipes"], "--json comes after the command")
    assert main(["evaluate", str(run), "--samples", "1", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "nan" not in out
    assert "1 example of digits" in out
    assert "fewer than 10 samples carry the estimate" in out
    assert main(["show", str(run / "weights.safetensors")]) == 0
    assert "141,749" in capsys.readouterr().out
    assert main(["train", "--resume", "--out", str(run)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_very_long_names_and_unreadable_places_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / ("x" * 5000))], "File name too long")
    refused(capsys, ["train", "x" * 5000, "--out", str(tmp_path / "r")], "too long")
    refused(capsys, ["show", "x" * 5000], "too long")


def test_a_damaged_checkpoint_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    file = copy / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    refused(capsys, ["train", "--resume", "--out", str(copy)], "checkpoint.safetensors", "corrupt")


def test_validation_rows_that_were_trained_on_cannot_be_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "r")
    assert main(["train", "digits-vae", "--out", folder, *QUICK, "--set", "data.train_on=train+valid"]) == 0
    refused(capsys, ["evaluate", folder, "--split", "valid"], "train+valid")


def test_a_file_that_is_not_a_memgen_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tensors(tmp_path / "other.safetensors", {"w": torch.ones(3)}, {})
    refused(capsys, ["sample", str(tmp_path / "other.safetensors")], "not a memgen model")


def test_library_save_and_load_give_the_same_model(tmp_path: Path) -> None:
    recipe = memgen.Recipe.named("digits-mem-vae").override(["training.epochs=1"])
    data, model = memgen.dataset("digits"), memgen.build(recipe)
    list(memgen.fit(model, data, recipe))
    memgen.save(model, tmp_path / "m.safetensors", recipe)
    again = memgen.load(tmp_path / "m.safetensors")
    x = data.fixed("test").x[:20]
    assert memgen.log_likelihood(again, Batch.of(x), 50).log_p.equal(
        memgen.log_likelihood(model, Batch.of(x), 50).log_p
    )
    assert memgen.sample(again, 4).equal(memgen.sample(model, 4))


def test_demo_prints_a_table_and_writes_its_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    (out / "digits-vae").mkdir(parents=True)
    for name in (MARK, "metrics.jsonl"):  # of an earlier demo, which may be made again
        (out / "digits-vae" / name).write_text('{"epoch": 7}\n')
    assert main(["demo", "--out", str(out), "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    words = ("MEM-VAE minus VAE, paired over images, one seed", "141,749", "120,104", "nats", "+-", "report.html")
    assert all(word in said for word in words)
    assert (out / "report.html").read_text().count("<img") > 20
    assert memgen.load(out / "digits-vae").latent == (20,)
    assert len((out / "digits-vae" / "metrics.jsonl").read_text().splitlines()) == 2
    shutil.copytree(run, tmp_path / "taken" / "digits-vae")
    refused(capsys, ["demo", "--out", str(tmp_path / "taken")], "no demo", "--out")
    (tmp_path / "file").write_text("")
    refused(capsys, ["demo", "--out", str(tmp_path / "file")], "cannot make the folder")


def test_a_bar_is_drawn_on_a_terminal() -> None:
    """Through a pseudo-terminal: a bar there, plain lines in a pipe."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = "from memgen.runs.progress import Progress\nwith Progress('work', 3, 'step') as p:\n"
    code += "  for i in (1, 2, 3): p.to(i, 'note')"
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True)
    os.close(slave)
    drawn = os.read(master, 10_000)
    assert b"\r" in drawn
    assert b"3/3" in drawn
    os.close(master)
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stderr.splitlines() == ["work: 3/3 steps, 0 s  note"]


def test_output_into_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{sys.executable}' -m memgen recipes | head -1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("digits:")
    assert "Traceback" not in done.stderr
