"""Signals of child processes."""

from __future__ import annotations

import signal


def default_signals() -> None:
    """Let Ctrl-C and a closed terminal act in a child process (`preexec_fn`). Jobs in the
    background of scripts, and `nohup`, start with these signals ignored, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
