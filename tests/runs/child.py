"""What a child process of the tests runs; a module of its own, so that a child imports little."""

from __future__ import annotations

import os
import resource
import signal

import torch


def child(arguments: list[str], log: str, limit: int | None = None) -> None:
    """The command line in a process of its own, with its output in a file."""
    os.setsid()  # Ctrl-C in the terminal is for the tests alone
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    from memgen.cli.main import main

    os._exit(main(arguments))
