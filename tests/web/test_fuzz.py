"""Anything at all is answered in one line."""

from __future__ import annotations

import asyncio
import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memgen.web import application, work
from memgen.web.models import Served
from memgen.web.runs import Runs
from memgen.web.safety import Access
from tests.web.served import (
    TOKEN,
    client,
    post,
)

FUZZ = int(os.environ.get("MEMGEN_FUZZ", "120"))
"""Requests; `make fuzz` queries for 5,000."""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
codes = st.lists(st.floats(-50, 50), min_size=5, max_size=7)
fields: dict[str, st.SearchStrategy[Any]] = {
    "model": st.integers(-1, 3),
    "z": codes,
    "a": codes,
    "b": codes,
    "seed": st.integers(-1, 2**31),
    "n": st.integers(-1, 101),
    "row": st.integers(-1, 2000),
    "first": st.integers(-1, 3000),
    "pixels": st.text("0123456789abcdef", max_size=130),
    "hidden": st.text("01", min_size=60, max_size=66),
    "steps": st.integers(0, 40),
    "place": st.integers(-1, 3),
    "slot": st.integers(-2, 9),
    "draw": st.booleans(),
    "hold": st.integers(-1, 3),
    "label": st.sampled_from(["3", "x", ""]),
    "pattern": st.sampled_from(["half", "rect-3", "rand-0.5", "rect-99", "rand-x", "half-top"]),
    "changes": st.lists(
        st.fixed_dictionaries(
            {"place": st.integers(-1, 3), "slot": st.integers(-2, 9)},
            optional={"factor": st.floats(-1, 21), "other": st.integers(-1, 9)},
        ),
        max_size=3,
    ),
    "text": st.text(string.printable, max_size=80) | st.just("town,age\nBern,\n,3\n"),
    "given": st.dictionaries(st.sampled_from(["town", "age", "x"]), st.text(max_size=6), max_size=2),
}


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    """For every name: fields that it knows, each likely to be right, or anything at all."""

    def of(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
        known = {key: fields[key] for key in application.ANSWERS[name][0].model_fields if key in fields}
        right = st.fixed_dictionaries({}, optional=known)
        wrong = st.dictionaries(st.sampled_from([*known, "x"]), json_values, max_size=4)
        bodies = st.one_of(right, right, right, wrong).map(lambda body: json.dumps(body).encode())
        return st.tuples(st.just(name), bodies | st.binary(max_size=40))

    return st.one_of([of(name) for name in application.ANSWERS])


@pytest.mark.usefixtures("long_loop")
def test_no_request_breaks_the_server(served: list[Served], tmp_path: Path) -> None:
    workers = work.Workers()
    app = application.application(served, Runs(), Access(TOKEN), workers)
    loop = asyncio.new_event_loop()
    own = client(app)

    @settings(
        max_examples=FUZZ, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(requests())
    def ask(request: tuple[str, bytes]) -> None:
        name, body = request
        answer = loop.run_until_complete(asyncio.wait_for(own.post(f"/api/{name}", content=body), 30))
        assert answer.status_code in (200, 400), (name, body, answer.text)
        found = answer.json()
        if answer.status_code == 400:
            assert found["error"]
            assert "\n" not in found["error"]

    ask()
    loop.run_until_complete(own.aclose())
    loop.close()
    workers.close()


def test_what_is_for_images_alone_says_so(app: Any) -> None:
    for name, body in (
        ("complete", {"row": 0, "hidden": "00"}),
        ("pattern", {"pattern": "half"}),
        ("encode", {"pixels": "00"}),
    ):
        assert post(app, name, 400, model=1, **body)["error"]
