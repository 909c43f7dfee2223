"""`memgen train`: what it prints and writes, and where a run begins and goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memgen
from memgen.cli.demonstration import MARK
from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.runs.session import choose_execution
from memgen.runs.storage import load_tensors
from memgen.training.execution import execution_path
from tests.command import QUICK, refused, told


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


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warming = ["--compile", "--set", "objective.kl_warmup_epochs=1"]
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), *warming], "leave out --compile")
    assert not (tmp_path / "r").exists()
    too_large = ["--set", "training.batch_size=99999", "--set", "training.drop_incomplete=true"]
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / "r"), *too_large], "do not fill a batch")
    refused(
        capsys,
        ["train", "digits-vae", "--out", str(tmp_path / "r"), "--set", "model.hidden=[99999999999, 5]"],
        "at most 100,000,000",
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


@pytest.mark.usefixtures("long_loop")
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
