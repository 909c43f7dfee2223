"""Run folders and model files that are damaged or incomplete: refused in one line, or repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import memgen
from memgen.cli.main import main
from memgen.runs.run import Run
from memgen.runs.storage import load_tensors, save_tensors
from memgen.training.fit import Epoch
from tests.command import copied, refused


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
    copy = copied(run, tmp_path)
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


def test_a_damaged_checkpoint_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = copied(run, tmp_path)
    file = copy / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    refused(capsys, ["train", "--resume", "--out", str(copy)], "checkpoint.safetensors", "corrupt")


def test_a_file_that_is_not_a_memgen_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tensors(tmp_path / "other.safetensors", {"w": torch.ones(3)}, {})
    refused(capsys, ["sample", str(tmp_path / "other.safetensors")], "not a memgen model")
