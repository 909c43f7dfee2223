"""Who is let in, how much, and what is told."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from memgen.cli.main import main
from memgen.errors import MemgenError
from memgen.tasks import sampling
from memgen.web import queries, safety, server
from tests.web.served import (
    HOST,
    TOKEN,
    client,
    get,
    image_model,
    page_of,
    post,
)


def test_only_this_machine_with_the_token_gets_in(app: Any) -> None:
    assert get(app, "/api/about").status_code == 200
    assert get(app, "/api/about", **{"x-memgen-token": "wrong"}).status_code == 401
    assert get(app, "/report/0").status_code == 401
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"):
        assert get(app, "/api/about", host=host).status_code == 403, host
        assert get(app, "/", host=host).status_code == 403, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://{HOST}"):
        assert get(app, "/api/about", origin=origin).status_code == 403, origin
    assert get(app, "/api/about", origin=f"http://{HOST}").status_code == 200
    assert get(app, "/api/about", **{"sec-fetch-site": "cross-site"}).status_code == 403


def test_every_answer_carries_the_policy(app: Any) -> None:
    for path in ("/", "/app.js", "/api/about", "/nowhere", "/api/samples"):
        headers = get(app, path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'"), path
        assert headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in get(app, "/").headers


def test_no_path_reaches_the_file_system(app: Any, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one" / "report.html").write_text("<p>report</p>")
    for path in (
        "/../queries.py",
        "/..%2fasks.py",
        "/static/../../queries.py",
        "//etc/passwd",
        "/report/-1",
        "/report/99999999999999999999",
    ):
        assert get(app, path).status_code in (400, 401, 404), path
    asyncio.run(_looked(app))
    answer = get(app, f"/report/0?token={TOKEN}")
    assert answer.text == "<p>report</p>"
    assert "sandbox" in answer.headers["content-security-policy"]


async def _looked(app: Any) -> None:
    await anext(aiter(page_of(app)._changes()))


def test_requests_that_are_too_large_are_refused(app: Any) -> None:
    async def go(content: Any) -> int:
        async with client(app) as own:
            return (await own.post("/api/fill", content=content)).status_code

    async def endless() -> Any:
        for _ in range(40):
            yield b"x" * 100_000

    assert asyncio.run(go(b"x" * (safety.LARGEST_BODY + 1))) == 413
    assert asyncio.run(go(endless())) == 413
    rows = "\n".join(["town,age"] + ["Bern,1"] * (queries.MOST_ROWS + 1))
    assert "1,000 rows" in post(app, "fill", 400, model=1, text=rows)["error"]


def test_errors_are_one_line_and_tell_nothing_of_this_machine(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (
        ("decode", {"z": [1.0]}),
        ("examples", {"model": 9}),
        ("decode", {"z": "x"}),
        ("fill", {"text": "a"}),
    ):
        error = post(app, name, 400, **body)["error"]
        assert error
        assert "\n" not in error
        assert "/tmp" not in error

    def broken(*anything: Any) -> None:
        raise RuntimeError("secret /path")

    monkeypatch.setattr(sampling, "sample_with_codes", broken)
    assert "secret" not in post(app, "samples", 500)["error"]


def test_other_machines_are_let_in_only_if_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(MemgenError, match="--allow-remote"):
        server.serve(host="0.0.0.0")
    with pytest.raises(MemgenError, match="in numbers"):
        server.serve(host="example.org", allow_remote=True)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(image_model(tmp_path)), "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err
    assert main(["serve", "zoo:nothing"]) == 2
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert main(["serve", "--runs", str(tmp_path / "nowhere")]) == 2


def test_answers_are_sent_at_once() -> None:
    """asyncio turns Nagle's algorithm off only where the socket names its protocol; with it an answer waits 40 ms."""
    with server.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
