"""Wrong names, numbers and places: one clear line each, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import refused


def test_a_recipe_in_the_place_of_a_run_is_to_be_trained_first(capsys: pytest.CaptureFixture[str]) -> None:
    advice = "digits-vae is a recipe; train it first: memgen train digits-vae --out runs/digits-vae"
    for command in ("evaluate", "sample", "impute", "features", "classify", "inspect", "report"):
        assert refused(capsys, [command, "digits-vae"]) == f"memgen {command}: {advice}\n"


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


def test_a_mistyped_data_folder_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMGEN_DATA", "/no/such/folder")
    refused(capsys, ["data", "list"], "MEMGEN_DATA names /no/such/folder")


def test_very_long_names_and_unreadable_places_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["train", "digits-vae", "--out", str(tmp_path / ("x" * 5000))], "File name too long")
    refused(capsys, ["train", "x" * 5000, "--out", str(tmp_path / "r")], "too long")
    refused(capsys, ["show", "x" * 5000], "too long")
