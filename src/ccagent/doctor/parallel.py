"""Tasks side by side, each in a thread that is abandoned if it hangs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from ccagent.errors import CcagentError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def run_all(tasks: Sequence[Callable[[], T]], seconds: float) -> list[T | CcagentError]:
    """Return what each task returned or raised, ProgramError for one that hangs."""
    deadline = time.monotonic() + seconds
    threads = [_Task(task) for task in tasks]
    return [thread.wait(deadline, seconds) for thread in threads]


class _Task(Generic[T]):
    def __init__(self, task: Callable[[], T]) -> None:
        self._task = task
        self._outcome: T | CcagentError | None = None
        self._thread = threading.Thread(target=self._run, name="check", daemon=True)
        self._thread.start()

    def wait(self, deadline: float, seconds: float) -> T | CcagentError:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() or self._outcome is None:
            return ProgramError(f"not finished after {seconds:g} s")
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = self._task()
        except CcagentError as error:
            self._outcome = error
        except Exception as error:  # noqa: BLE001 - agents and transports of others come here
            self._outcome = ProgramError(f"{type(error).__name__}: {error}")
