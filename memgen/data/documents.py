"""JSON from untrusted sources: metadata of model files, the files of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memgen.errors import MemgenError


def parse_json(text: str, where: object, what: str = "JSON") -> Any:
    """The value of a JSON text; anything else is an error that names `where` it came from.

    Numbers of thousands of digits and brackets nested hundreds deep, on which Python's parser raises other errors, are
    no JSON here.

    >>> parse_json('{"epoch": 3}', "data.json")
    {'epoch': 3}
    >>> parse_json("[" * 10_000, "data.json")
    Traceback (most recent call last):
    memgen.errors.MemgenError: data.json is no JSON: it is nested too deeply
    """
    try:
        value = json.loads(text)
        if "\\u" in text:  # refuses a lone surrogate, which UTF-8 cannot encode
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise MemgenError(f"{where} is no {what}: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise MemgenError(f"{where} is no {what}: it has text that is no Unicode") from None
    except ValueError:
        raise MemgenError(f"{where} is no {what}: it is not JSON, or has a number that is too long") from None


def parse_record(text: str, kinds: Mapping[str, type | tuple[type, ...]], where: object) -> dict[str, Any]:
    """A JSON object that has every one of these entries, each of its type; a truth value is not a whole number.

    >>> parse_record('{"epoch": 3, "more": []}', {"epoch": int}, "data.json")
    {'epoch': 3, 'more': []}
    >>> parse_record('{"epoch": true}', {"epoch": int}, "data.json")
    Traceback (most recent call last):
    memgen.errors.MemgenError: data.json is damaged: its entry epoch is not what it must be
    """
    record = parse_json(text, where)
    if not isinstance(record, dict):
        raise MemgenError(f"{where} is damaged: it is not an object with names")
    for key, kind in kinds.items():
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if type(record.get(key)) not in allowed:
            raise MemgenError(f"{where} is damaged: its entry {key} is not what it must be")
    return record


def parse_whole(text: str | None, where: object, least: int = 0, most: int = 1 << 53) -> int:
    """A whole number that stands alone, as in the metadata of a model file.

    >>> parse_whole("12", "model.safetensors (epoch inside)")
    12
    """
    number = int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= number <= most:
        raise MemgenError(f"{where} is damaged: it is not a whole number from {least:,} to {most:,}")
    return number
