"""Senders of the stores: budgets of an hour, and their label in metrics."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_HOUR = 3600
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class HourlyBudget:
    """Amounts by key in the present hour. Thread-safe.

    most: of a key in an hour. now: returns seconds since 1970.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self.most = most
        self._now = now
        self._taken: dict[Hashable, int] = {}
        self._hour = 0
        self._lock = threading.Lock()

    def take(self, key: Hashable) -> bool:
        """Take one from a key's budget. Return False if nothing is left."""
        with self._lock:
            hour = int(self._now()) // _HOUR
            if hour != self._hour:
                self._hour = hour
                self._taken.clear()
            taken = self._taken.get(key, 0)
            if taken >= self.most:
                return False
            self._taken[key] = taken + 1
            return True

    def give_back(self, key: Hashable) -> None:
        """Return one that was taken and not used."""
        with self._lock:
            if self._taken.get(key, 0) > 0:
                self._taken[key] -= 1

    def seconds_left(self) -> int:
        """Return the seconds until all budgets are whole again."""
        return _HOUR - int(self._now()) % _HOUR


def sender_label(sender: str) -> str:
    """Return the label of a sender in Prometheus' text format."""
    return f'sender="{printable(sender).translate(_ESCAPED)}"'
