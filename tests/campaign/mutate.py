"""Bad files from good ones: bytes at random, and changes that know the format well enough to get past its checksums."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from memgen.runs.storage import load_tensors, save_tensors
from tests.campaign.corpus import Corpus

LARGEST = 1 << 16
"""Bytes of an input: small files are to do no harm."""
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
TOKENS = [
    *(b'"', b"'", b",", b";", b"\t", b"\n", b"\r", b"\r\n\n", b"\0", b"[", b"]", b"{", b"}", b"=", b".", b"\\", b"#"),
    *(b"nan", b"inf", b"-1e999", b"1_000", b"0x10", b"-0", b"9" * 400, b"9" * 5000, b"true", b"null", b"1e-400"),
    *(b"[" * 900, b"a." * 900, b"{" * 900, b"(" * 900, b"," * 3000, b"\n" * 3000, b'""' * 500, b"'''", b'"""'),
    *("é".encode(), "€".encode(), "\U0001f600".encode(), b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800"),
]
Mutation = Callable[[random.Random, bytes], bytes]


def place(chance: random.Random, content: bytes) -> int:
    return chance.randrange(len(content) + 1)


def span(chance: random.Random, content: bytes) -> tuple[int, int]:
    start = place(chance, content)
    return start, min(len(content), start + int(2 ** chance.uniform(0, 10)))


def flip(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def edge(chance: random.Random, content: bytes) -> bytes:
    """A number at the edge of its range, where a length may stand."""
    size = chance.choice((1, 2, 4, 8))
    order: Literal["little", "big"] = "little" if chance.random() < 0.5 else "big"
    value = chance.choice(EDGES) & ((1 << 8 * size) - 1)
    start = place(chance, content)
    return content[:start] + value.to_bytes(size, order) + content[start + size :]


def truncate(chance: random.Random, content: bytes) -> bytes:
    return content[: place(chance, content)]


def delete(chance: random.Random, content: bytes) -> bytes:
    start, end = span(chance, content)
    return content[:start] + content[end:]


def repeat(chance: random.Random, content: bytes) -> bytes:
    start, end = span(chance, content)
    return content[:start] + content[start:end] * chance.choice((2, 3, 100, 10_000)) + content[end:]


def insert(chance: random.Random, content: bytes) -> bytes:
    start = place(chance, content)
    return content[:start] + chance.randbytes(chance.choice((1, 4, 64))) + content[start:]


def token(chance: random.Random, content: bytes) -> bytes:
    start, end = span(chance, content)
    return content[:start] + chance.choice(TOKENS) + content[start if chance.random() < 0.5 else end :]


def move(chance: random.Random, content: bytes) -> bytes:
    start, end = span(chance, content)
    rest = content[:start] + content[end:]
    other = place(chance, rest)
    return rest[:other] + content[start:end] + rest[other:]


def number(chance: random.Random, content: bytes) -> bytes:
    """A decimal digit, where there is one, as another number."""
    digits = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if not digits:
        return flip(chance, content)
    start = chance.choice(digits)
    return content[:start] + chance.choice((b"0", b"-1", b"99999", b"1e9", b"4294967296", b"")) + content[start + 1 :]


PLAIN: tuple[Mutation, ...] = (flip, edge, truncate, delete, repeat, insert, token, move, number)


def plainly(chance: random.Random, content: bytes) -> bytes:
    """One to four changes that know nothing of the format."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        content = chance.choice(PLAIN)(chance, content)[:LARGEST]
    return content


# ---- with checksums that are right


def text(chance: random.Random, content: bytes) -> bytes:
    """Text that stays text: rows and cells out of place, and characters at random."""
    if chance.random() < 0.4:
        return plainly(chance, content).decode("utf-8", "replace").encode()
    lines = content.splitlines(keepends=True)
    for _ in range(chance.choice((1, 2, 5))):
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        separator = chance.choice((b",", b"\t", b" = ", b"."))
        cells = lines[i].split(separator)
        cells[chance.randrange(len(cells))] = chance.choice((*TOKENS[-13:-5], *TOKENS[17:26], b"", lines[j].strip()))
        lines[i] = chance.choice((separator.join(cells), lines[j], b"", b"\n", lines[i] * 50))
    return b"".join(lines)[:LARGEST].decode("utf-8", "replace").encode()


def png(chance: random.Random, content: bytes) -> bytes:
    """Within a chunk, whose checksum is made to agree."""
    chunks, start = [], 8
    while start + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, start)
        chunks.append(content[start + 4 : start + 8 + length])
        start += 12 + length
    chosen = chance.randrange(len(chunks))
    body = chunks[chosen][4:]
    if chunks[chosen][:4] == b"IDAT":
        body = zlib.compress(plainly(chance, zlib.decompress(body)), 1)
    else:
        body = plainly(chance, body)
    chunks[chosen] = chunks[chosen][:4] + body
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return content[:8] + b"".join(parts)


def npz(chance: random.Random, content: bytes) -> bytes:
    """Within a member, of an archive that is whole."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = chance.choice(sorted(members))
    members[chosen] = plainly(chance, members[chosen])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member, zipfile.ZIP_DEFLATED)  # without the time of day
    return out.getvalue()


def idx(chance: random.Random, content: bytes) -> bytes:
    return gzip.compress(plainly(chance, gzip.decompress(content)), 1, mtime=0)


def tensors(chance: random.Random, content: bytes) -> bytes:
    """Metadata or tensors that lie, in a file whose checksum is right."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        values, about = load_tensors(path)
        if chance.random() < 0.6:
            key = chance.choice(sorted(about))
            about[key] = lie(chance, about[key])
        else:
            key = chance.choice(sorted(values))
            values[key] = bend(chance, values[key])
        save_tensors(path, values, about)
        return path.read_bytes()


def lie(chance: random.Random, text: str) -> str:
    """Another text; where it is JSON, often JSON again, with one value replaced."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and found and chance.random() < 0.6:
        key = chance.choice(sorted(found))
        found[key] = chance.choice((None, -1, 0, 1.5, 10**30, 10**400, "x", "", [], {}, [found[key]], True, [[]] * 9))
        return json.dumps(found)
    return plainly(chance, text.encode()).decode("utf-8", "replace")


def bend(chance: random.Random, value: Tensor) -> Tensor:
    """A tensor of another shape, of another type, or with other values."""
    ways: list[Callable[[], Tensor]] = [
        lambda: torch.zeros(0),
        lambda: value.reshape(-1)[:-1].clone(),
        lambda: value[None].clone(),
        lambda: torch.full_like(value, -1 if value.dtype != torch.uint8 else 255),
        lambda: torch.full(value.shape, float("nan")),
        lambda: value.to(torch.int64) + 1_000_000,
        lambda: value.to(torch.bool),
    ]
    return chance.choice(ways)()


KNOWING: dict[str, Mutation] = {
    **dict.fromkeys(("csv", "tsv", "toml"), text),
    "png": png,
    "npz": npz,
    "idx": idx,
    "images": idx,
    "model": tensors,
    "checkpoint": tensors,
    "estimator": tensors,
    "shard": tensors,
}


def mutated(kind: str, good: Corpus, chance: random.Random) -> bytes:
    """One bad file of a kind."""
    content = chance.choice(good[kind])
    if kind in KNOWING and chance.random() < 0.6:
        return KNOWING[kind](chance, content)
    if chance.random() < 0.1:
        other = chance.choice(good[chance.choice(sorted(good))])
        content = content[: place(chance, content)] + other[place(chance, other) :]
    return plainly(chance, content)
