"""Access control of the server: which requests are accepted, their largest size, and the security headers."""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 2_000_000
"""Bytes of a request."""
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
WITH_TOKEN = ("/api/", "/report/")
"""Paths that need the token. All other paths are files of the page, which are public."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Access:
    """The conditions that a request must meet to be answered."""

    token: str
    remote: bool = False
    """Whether other machines may send requests."""

    def refuse(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal; None if the request is accepted."""
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        if not self.is_known(host := headers.get("host", "")):
            return 403, "this server is not known by that name (Host)"
        if not self._same_site(headers, host):
            return 403, "requests from other sites are refused (Origin)"
        if scope["path"].startswith(WITH_TOKEN) and not self._shows_token(scope, headers):
            return 401, "the token is missing or wrong; open the address that memgen serve printed"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > LARGEST_BODY:
            return 413, f"a request may have up to {LARGEST_BODY:,} bytes"
        return None

    def is_known(self, host: str) -> bool:
        """Whether a Host header is accepted: loopback, or, if other machines may ask, any numeric address.

        Other names are refused, because a foreign site could make them resolve to this machine (DNS rebinding).

        >>> [Access("").is_known(host) for host in ("localhost:8765", "[::1]:8765", "evil.example", "10.0.0.7:8765")]
        [True, True, False, False]
        >>> Access("", remote=True).is_known("10.0.0.7:8765")
        True
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in LOOPBACK or (self.remote and is_address(name))

    def _same_site(self, headers: MutableMapping[str, str], host: str) -> bool:
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return False
        origin = headers.get("origin")
        return origin is None or origin == f"http://{host}"

    def _shows_token(self, scope: Scope, headers: MutableMapping[str, str]) -> bool:
        shown = headers.get("x-memgen-token", "")
        if scope["path"].startswith("/report/"):  # opened in a tab of its own, where no header can be set
            shown = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return hmac.compare_digest(shown.encode(), self.token.encode())


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware: refuses what `Access` refuses, limits the size of a body, and adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        if (reason := self.access.refuse(scope)) is not None:
            await refuse(send, *reason)
            return
        await self.app(scope, _counted(receive), _with_headers(send))


def _counted(receive: Receive) -> Receive:
    """Limits bodies whose Content-Length is missing or false: they are cut off at LARGEST_BODY."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > LARGEST_BODY else message

    return limited


def _with_headers(send: Send) -> Send:
    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {key.lower() for key, _ in message["headers"]}
            extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return named


async def refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers: Any = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
