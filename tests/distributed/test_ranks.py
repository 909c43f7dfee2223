"""`memgen train` on several processes: one run folder, one voice, and every rank ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from memgen.cli.main import main
from memgen.runs.storage import load_tensors
from tests.distributed import ranks

SETTINGS = ["model.hidden=[8]", "model.latent=3", "model.slots=[5]", "objective.local_reconstruction=[0.1]"]
SETTINGS += ["training.evaluate_every=3", "training.evaluate_rows=20", "training.batch_size=200"]


def command(out: str, *more: str, epochs: int = 3) -> list[str]:
    sets = [word for text in (*SETTINGS, f"training.epochs={epochs}") for word in ("--set", text)]
    return ["train", "digits-mem-vae", "--out", out, *sets, *more]


MANY = 60
"""Epochs that take longer than the test."""


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_tensors(Path(folder) / "weights.safetensors")[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line(result: ranks.Ended) -> str:
    """The one line that all ranks say together."""
    # The processes of the tests are forked after torch has read TORCH_CPP_LOG_LEVEL.
    lines = [text for text in result.text.splitlines() if text and not text.startswith("[W")]
    assert len(lines) == 1, result
    return lines[0]


def test_two_ranks_train_the_model_of_one_process(tmp_path: Path) -> None:
    """Rank 1 neither speaks nor needs the run folder."""
    result = ranks.run([command("two"), command("elsewhere/none")], tmp_path)
    assert result.codes == [0, 0], result
    assert result.text.count("saved in two") == 1
    assert not Path("elsewhere").exists()
    assert main(command("one")) == 0
    one, two = weights("one"), weights("two")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=2e-3, atol=2e-4, msg=name)


def test_a_signal_to_one_rank_stops_all_and_one_process_goes_on(tmp_path: Path) -> None:
    """The state is saved at the same step; the number of ranks may change."""
    processes = ranks.start([command("run", epochs=MANY), command("run", epochs=MANY)], tmp_path)
    ranks.wait_until(Path("run/metrics.jsonl").exists)
    ranks.wait_until(lambda: Path("run/metrics.jsonl").read_text())
    os.kill(processes[1].pid or 0, signal.SIGTERM)
    result = ranks.ended(processes, tmp_path)
    assert result.codes == [130, 130], result
    assert "and saved; go on with" in result.text
    alone = ranks.run([["train", "--resume", "--out", "run"]], tmp_path)
    assert alone.codes == [0], alone
    assert "started on the path 'plain, ranks: 2'" in alone.text


def test_ranks_that_do_not_agree_are_told_once(tmp_path: Path) -> None:
    result = ranks.run([command("run"), command("run", "--set", "training.rate=0.5")], tmp_path)
    assert result.codes == [2, 2]
    assert "the ranks do not agree: --set training.rate is not given on rank 0 and 0.5 on rank 1" in line(result)
    assert not Path("run").exists()


def test_ranks_with_other_data_are_told_once(tmp_path: Path) -> None:
    """The path may differ among machines, the content may not."""
    for name, rows in (("a.npy", 300), ("b.npy", 310)):
        np.save(name, np.random.default_rng(0).normal(size=(rows, 4)))
    commands = [["train", "--data", name, "--out", "run"] for name in ("a.npy", "b.npy")]
    result = ranks.run(commands, tmp_path)
    assert 2 in result.codes
    assert 0 not in result.codes
    assert "do not agree" in line(result)
    assert not Path("run").exists()


def test_a_rank_without_the_data_says_so(tmp_path: Path) -> None:
    np.save("a.npy", np.random.default_rng(0).normal(size=(300, 4)))
    commands = [["train", "--data", name, "--out", "run"] for name in ("a.npy", "none.npy")]
    result = ranks.run(commands, tmp_path)
    assert result.codes[1] == 2
    assert result.codes[0] != 0
    assert "none.npy" in line(result)
    assert not Path("run").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    Path("file").touch()
    result = ranks.run([command("file/run"), command("file/run")], tmp_path)
    assert result.codes[0] == 2
    assert result.codes[1] != 0
    assert "cannot make the folder file/run" in line(result)


def test_a_step_that_cannot_be_divided_is_one_line(tmp_path: Path) -> None:
    settings = ["--set", "training.batch_size=1", "--set", "model.norm=layer"]
    result = ranks.run([command("run", *settings)] * 2, tmp_path)
    assert 2 in result.codes
    assert 0 not in result.codes
    assert "a step of 1 rows, which cannot be divided among 2 ranks" in line(result)
    assert not Path("run").exists()


def test_ranks_that_never_meet_end_after_the_timeout(tmp_path: Path) -> None:
    result = ranks.run([command("run", "--timeout", "2")], tmp_path, size=2)
    assert result.codes == [2]
    assert "rank 0 has waited 2 s for rank 1; start all ranks" in line(result)


def test_a_rank_that_hangs_ends_the_others_after_the_timeout(tmp_path: Path) -> None:
    processes = ranks.start([command("run", "--timeout", "5", epochs=MANY)] * 2, tmp_path)
    ranks.wait_until(Path("run/metrics.jsonl").exists)
    ranks.wait_until(lambda: Path("run/metrics.jsonl").read_text())
    os.kill(processes[1].pid or 0, signal.SIGSTOP)
    result = ranks.ended(processes[:1], tmp_path)
    os.kill(processes[1].pid or 0, signal.SIGKILL)
    processes[1].join()
    assert result.codes == [1]
    assert "waited longer than --timeout" in result.text
    assert "go on with --resume" in result.text


def test_ranks_evaluate_their_parts_and_rank_0_merges_them(tmp_path: Path) -> None:
    """To the bit what one process computes."""
    assert main(command("run", epochs=1)) == 0
    evaluate = ["evaluate", "run", "--samples", "20", "--limit", "40"]
    scores = Path("run/likelihood/test-20-seed0.safetensors")
    result = ranks.run([[*evaluate, "--timeout", "100"]] * 2, tmp_path)
    assert result.codes == [0, 0], result
    merged = load_tensors(scores)[0]
    assert main([*evaluate, "--fresh"]) == 0
    assert all(torch.equal(merged[name], value) for name, value in load_tensors(scores)[0].items())
