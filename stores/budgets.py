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
    """Amounts by key in the present hour, or in the present number of hours. Thread-safe.

    most: of a key in this time. now: returns seconds since 1970.
    """

    def __init__(self, most: int, now: Callable[[], float], hours: int = 1) -> None:
        self.most = most
        self._seconds = hours * _HOUR
        self._now = now
        self._taken: dict[Hashable, int] = {}
        self._period = 0
        self._lock = threading.Lock()

    def take(self, key: Hashable, amount: int = 1) -> bool:
        """Take an amount from a key's budget. Return False if less is left."""
        with self._lock:
            taken = self._of(key) + amount
            if taken > self.most:
                return False
            self._taken[key] = taken
            return True

    def take_some(self, key: Hashable, wanted: int) -> int:
        """Take up to an amount from a key's budget. Return how much was left of it."""
        with self._lock:
            taken = self._of(key)
            amount = max(0, min(wanted, self.most - taken))
            if amount:
                self._taken[key] = taken + amount
            return amount

    def give_back(self, key: Hashable, amount: int = 1) -> None:
        """Return an amount that was taken and not used."""
        with self._lock:
            if key in self._taken:
                self._taken[key] = max(0, self._taken[key] - amount)

    def _of(self, key: Hashable) -> int:
        """Return what was taken from a key's budget in the present period."""
        period = int(self._now()) // self._seconds
        if period != self._period:
            self._period = period
            self._taken.clear()
        return self._taken.get(key, 0)

    def seconds_left(self) -> int:
        """Return the seconds until all budgets are whole again."""
        return self._seconds - int(self._now()) % self._seconds


def format_label(name: str, value: str) -> str:
    """Return a label in Prometheus' text format."""
    return f'{name}="{value.translate(_ESCAPED)}"'


def sender_label(sender: str) -> str:
    """Return the label of a sender in Prometheus' text format."""
    return format_label("sender", printable(sender))
