"""Good files of every format that the program reads, small, from which the campaign makes bad ones."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import memgen.recipes
from memgen.cli.main import main
from memgen.estimators import MemImputer

ROWS = 40
Corpus = dict[str, list[bytes]]
"""Kind of file -> good ones."""

ENDINGS = {
    "csv": ".csv",
    "tsv": ".tsv",
    "parquet": ".parquet",
    "feather": ".feather",
    "images": ".idx.gz",
    "npy": ".npy",
    "stored": ".npy",
    "npz": ".npz",
    "png": ".png",
    "tiff": ".tif",
    "idx": ".gz",
    "toml": ".toml",
    "model": ".safetensors",
    "checkpoint": ".safetensors",
    "estimator": ".safetensors",
    "shard": ".safetensors",
}
"""Kind of file -> the ending of its name."""
SHARD = ("evaluate", "--samples", "10")
"""The command whose results are divided, without its run; `memgen merge` has the same options."""
LAYERS = Path(memgen.recipes.__file__).with_name("digits-conv-mem-vae.toml")
"""A recipe with a table for every layer."""


def corpus(folder: Path) -> Corpus:
    """Good files of every kind; a run is trained in the folder, which takes a second or two."""
    run = trained(folder)
    return {
        "csv": [text.encode() for text in [table(style) for style in STYLES]],
        "tsv": [table().replace(",", "\t").encode()],
        "parquet": parquets(),
        "feather": feathers(),
        "images": [gzip.compress(idx(), 1, mtime=0)],
        "npy": arrays(),
        "stored": arrays()[::2],
        "npz": archives(),
        "png": images("PNG"),
        "tiff": images("TIFF"),
        "idx": [gzip.compress(idx(), 1, mtime=0)],
        "toml": [(run / "recipe.toml").read_bytes(), LAYERS.read_bytes()],
        "model": [(run / "weights.safetensors").read_bytes()],
        "checkpoint": [(run / "checkpoint.safetensors").read_bytes()],
        "estimator": [estimator(folder)],
        "shard": [shard(run)],
    }


STYLES = ("", "no names", "quotes", "wide", "written")
"""Of tables; the last one has dates, codes with leading zeros, separators and spellings of truth values."""


def table(style: str = "") -> str:
    """Numbers, counts, text and missing cells."""
    random = np.random.default_rng(0)
    rows = [["size", "kind", "visits", "label"]]
    for i, x in enumerate(random.normal(size=ROWS)):
        rows.append([f"{x:.4f}" if i % 7 else "", "äbc"[i % 3], str(i % 4), "yn"[i % 2]])
    if style == "no names":
        rows = [[row[0], row[2]] for row in rows[1:]]
    if style == "quotes":
        rows = [[f'"{cell}"' if i % 2 else cell for i, cell in enumerate(row)] for row in rows]
    if style == "written":
        extra = [["born", "code", "income", "member"]]
        extra += [
            [f"{i % 28 + 1:02}.0{i % 9 + 1}.19{60 + i}", f"0{i % 3}7", f"{i},{i:03}.50", "yYn"[i % 3]]
            for i in range(ROWS)
        ]
        rows = [[f'"{cell}"' for cell in [*row, *more]] for row, more in zip(rows, extra, strict=True)]
    if style == "wide":
        rows = [[cell for _ in range(10) for cell in row[2:3]] for row in rows[1:]]
    end = "\r\n" if style == "quotes" else "\n"
    return end.join(",".join(row) for row in rows) + end


def frame() -> Any:
    import pyarrow

    numbers = pyarrow.array([None if i % 7 == 0 else i / 3 for i in range(ROWS)])
    texts = pyarrow.array(["abc"[i % 3] for i in range(ROWS)])
    return pyarrow.table({"size": numbers, "kind": texts, "coded": texts.dictionary_encode()})


def parquets() -> list[bytes]:
    import pyarrow.parquet

    return [written(pyarrow.parquet.write_table, compression) for compression in ("none", "snappy")]


def feathers() -> list[bytes]:
    import pyarrow.feather

    return [written(pyarrow.feather.write_feather, compression) for compression in ("uncompressed", "lz4", "zstd")]


def written(write: Callable[..., Any], compression: str) -> bytes:
    content = io.BytesIO()
    write(frame(), content, compression=compression)
    return content.getvalue()


def npy(values: object) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(values))
    return content.getvalue()


def arrays() -> list[bytes]:
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    return [npy(x), npy(np.asfortranarray(x.astype(">f4"))), npy(np.zeros((ROWS, 4, 4), np.uint8))]


def archives() -> list[bytes]:
    x, labels = np.random.default_rng(0).normal(size=(ROWS, 3)), np.array(["ant", "cat"] * (ROWS // 2))
    contents = []
    for save in (np.savez, np.savez_compressed):
        content = io.BytesIO()
        save(content, x=x, labels=labels)
        contents.append(content.getvalue())
    return contents


def images(kind: str) -> list[bytes]:
    random = np.random.default_rng(0)
    contents = []
    for mode, channels in (("L", ()), ("RGBA", (4,)), ("RGB", (3,))):
        content = io.BytesIO()
        pixels = random.integers(0, 256, (8, 8, *channels), np.uint8)
        Image.fromarray(pixels, mode).save(content, kind, **({"compression": "tiff_lzw"} if mode == "RGB" else {}))
        contents.append(content.getvalue())
    return contents


def idx() -> bytes:
    return struct.pack(">4B3I", 0, 0, 8, 3, 10, 28, 28) + bytes(7840)


SETTINGS = ("model.hidden=[4]", "model.slots=[4]", "model.latent=2", "training.epochs=1")


def settings(*texts: str) -> list[str]:
    return [part for text in texts for part in ("--set", text)]


def carry_out(*arguments: str) -> None:
    if main(list(arguments)) != 0:
        raise RuntimeError(f"the campaign needs what this makes: memgen {' '.join(arguments)}")


def trained(folder: Path) -> Path:
    """A run of one epoch on a table."""
    data, run = folder / "table.csv", folder / "run"
    data.write_text(table())
    carry_out("train", "--data", str(data), "--out", str(run), *settings(*SETTINGS))
    return run


def shard(run: Path) -> bytes:
    """The second of two parts of an evaluation, the one with rows; both are in the run folder."""
    name, *options = SHARD
    for index in range(2):
        carry_out(name, str(run), *options, "--shard", f"{index}/2")
    (file,) = (run / "shards").glob("*/shard-1-of-2.safetensors")
    return file.read_bytes()


def estimator(folder: Path) -> bytes:
    X = np.random.default_rng(0).normal(size=(ROWS, 3))
    X[::5, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MemImputer(epochs=1, hidden=[4], latent=2, random_state=0).fit(X).save(folder / "estimator.safetensors")
    return (folder / "estimator.safetensors").read_bytes()
