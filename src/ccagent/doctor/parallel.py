"""Parallel tasks, each in a thread that is abandoned if it hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def run_all(tasks: Sequence[Callable[[], T]], seconds: float) -> list[T | CcagentError]:
    """Return the result or exception of each task; ProgramError for a hanging task."""
    deadline = time.monotonic() + seconds
    calls = [BackgroundCall(task, "check") for task in tasks]
    outcomes: list[T | CcagentError] = []
    for call in calls:
        try:
            if not call.wait(deadline - time.monotonic()):
                raise ProgramError(f"not finished after {seconds:g} s")
            outcomes.append(call.checked_result())
        except CcagentError as error:
            outcomes.append(error)
    return outcomes
