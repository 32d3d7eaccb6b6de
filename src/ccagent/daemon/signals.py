"""Signals at the start and at the end of the program, when no command handles them."""

from __future__ import annotations

import signal

_OF_THE_DAEMON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit statuses: what a shell shows for a program that such a signal has ended."""


def allow_interrupts() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, so that commands can clean up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def release_blocked() -> None:
    """Deliver the signals that were kept waiting since the program started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_DAEMON)


def ignore_signals() -> None:
    """Ignore signals from now on: the daemon has ended, and so does the process."""
    for number in _OF_THE_DAEMON:
        signal.signal(number, signal.SIG_IGN)
