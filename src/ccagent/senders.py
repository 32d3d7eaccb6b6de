"""Counters by sender, in a table of bounded size.

A sender is an identity: a NATS subject or nkey, the subject of a token, a topic, a server, an
address. Senders may choose names, so the table holds the dearest senders only.
"""

from __future__ import annotations

import threading
from typing import Any

_MOST = 1000
_SHOWN = 10
_LONGEST = 200
OTHERS = "others"
"""The sender of everything that was counted for senders that the table has dropped."""


class SenderTable:
    """Counts what each sender has cost: messages, refusals, bytes. Threads may share a table."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._counts: dict[str, dict[str, int]] = {}
        self._others: dict[str, int] = {}
        self._lock = threading.Lock()

    def count(self, sender: str, **amounts: int) -> None:
        """Add amounts to a sender's counters."""
        name = sender[:_LONGEST]
        with self._lock:
            counts = self._counts.get(name)
            if counts is None:
                if len(self._counts) >= self._most:
                    self._drop()
                counts = self._counts[name] = {}
            _add(counts, amounts)

    def dearest(self, most: int = _SHOWN) -> list[dict[str, Any]]:
        """Return the senders with the highest counters, dearest first, and the sum of dropped ones.

        Each has the key `sender` and its counters.
        """
        with self._lock:
            found: list[dict[str, Any]] = [
                {"sender": name, **self._counts[name]} for name in self._ranked()[:most]
            ]
            return [*found, {"sender": OTHERS, **self._others}] if self._others else found

    def _ranked(self) -> list[str]:
        return sorted(self._counts, key=lambda name: -max(self._counts[name].values()))

    def _drop(self) -> None:
        """Add the cheaper half to the others. Halves, so that a new sender costs little."""
        for name in self._ranked()[self._most // 2 :]:
            _add(self._others, self._counts.pop(name))


def _add(counts: dict[str, int], amounts: dict[str, int]) -> None:
    for kind, amount in amounts.items():
        counts[kind] = counts.get(kind, 0) + amount


def describe_sender(counted: dict[str, Any]) -> str:
    """Return a row of `dearest` as text: `fast/agent/n1/task: 12 messages, 3 refused`."""
    amounts = [f"{n} {kind}" for kind, n in counted.items() if kind != "sender"]
    return f"{counted.get('sender', '')}: {', '.join(amounts)}"
