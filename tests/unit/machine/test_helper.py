"""The separate process of a library: how its end is described."""

from __future__ import annotations

import os
import signal

import pytest

from ccagent.errors import ProgramError
from ccagent.machine.helper import Helper

WITHOUT_A_NAME = signal.SIGRTMIN + 1


def die(_: int, number: str) -> None:
    """End this process by a signal, in place of answering."""
    os.kill(os.getpid(), int(number))


def ask(helper: Helper) -> None:
    helper.ask(b"read")
    helper.answer(60.0)


@pytest.mark.parametrize(
    ("number", "described"),
    [(signal.SIGSEGV, "killed by SIGSEGV"), (WITHOUT_A_NAME, f"killed by signal {WITHOUT_A_NAME}")],
)
def test_the_signal_of_a_killed_process_is_named(number: int, described: str) -> None:
    helper = Helper("NVML", f"{__name__}:die", (str(int(number)),), time_limit=60.0)
    with pytest.raises(ProgramError, match=f"NVML: {described}"):
        ask(helper)
