"""`memgen demo`"""

from __future__ import annotations

import argparse
from typing import Any

from memgen.commands.common import say
from memgen.demo import run_demo


def demo(options: argparse.Namespace) -> dict[str, Any]:
    return run_demo(options.out, options.epochs, lambda text: say(options, text))
