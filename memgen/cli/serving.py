"""`memgen serve`"""

from __future__ import annotations

import argparse
from typing import Any

from memgen.cli.common import say
from memgen.errors import MemgenError


def serve(options: argparse.Namespace) -> dict[str, Any]:
    try:
        from memgen.web.server import serve as serve_page
    except ImportError:
        raise MemgenError("the page needs starlette, uvicorn and pydantic; pip install 'memgen[web]'") from None
    serve_page(
        options.models,
        runs=options.runs,
        host=options.host,
        port=options.port,
        open_browser=options.open,
        allow_remote=options.allow_remote,
        say=lambda text: say(options, text),
    )
    return {}
