"""`memgen serve`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import FILE, Whole
from memgen.errors import MemgenError


@click.command(
    "serve",
    cls=Command,
    epilog=examples(
        "memgen serve --open", "memgen serve runs/digits zoo:mnist-vae", "memgen serve runs/table --runs runs"
    ),
)
@click.argument("models", metavar="[RUN]...", nargs=-1)
@click.option("--runs", type=FILE, metavar="FOLDER", help="Show the curves of all runs in this folder.")
@click.option("--port", type=Whole(0), default=8765, help="Default 8765; 0: any that is free.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Default 127.0.0.1, this machine alone.")
@click.option("--allow-remote", is_flag=True, help="Let other machines in, with --host 0.0.0.0.")
@click.option("--open", "open_browser", is_flag=True, help="Open the browser.")
def command(
    models: tuple[str, ...], runs: Path | None, port: int, host: str, allow_remote: bool, open_browser: bool
) -> dict[str, Any]:
    """Open a page in the browser: play with models, complete images, look inside the memory.

    RUN is a run folder, a model file or zoo:NAME; without one, a MEM-VAE and a VAE of the zoo. The page is served to
    this machine alone, and asks nothing of any other.
    """
    try:
        from memgen.web.server import serve
    except ImportError:
        raise MemgenError("the page needs starlette, uvicorn and pydantic; pip install '.[web]'") from None
    serve(models, runs=runs, host=host, port=port, open_browser=open_browser, allow_remote=allow_remote, say=say)
    return {}
