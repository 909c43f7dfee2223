"""memgen, whose rank 1 is killed by SIGKILL after STEP steps of its first attempt; test_hosts.py starts it by torchrun.

python tests/distributed/dying_rank.py STEP train ...
"""

from __future__ import annotations

import os
import signal
import sys

from memgen.cli.main import main
from memgen.runs.signals import Signals


def dying(step: int) -> None:
    """Let this process be killed after some steps."""
    steps = iter(range(1, step + 1))
    real = Signals.stop

    def stop(self: Signals) -> bool:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self)

    Signals.stop = stop  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dying(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
