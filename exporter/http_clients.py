"""Clients that the exporter has stopped: counts by reason, and one log line an hour for each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, get_args

from ccagent.log import logger
from ccagent.net.urls import network

if TYPE_CHECKING:
    from collections.abc import Iterator

StopReason = Literal["evicted", "malformed", "refused", "slow"]

_TEXTS: dict[StopReason, str] = {
    "evicted": "connection closed for a client of another address: too many at once",
    "malformed": "request refused: malformed or too large",
    "refused": "connection refused: too many at once",
    "slow": "connection closed: slower than client-timeout",
}
_NAMED = 20
"""Maximum of addresses in the log per hour and reason. All others share a line."""
_PERIOD = 3600.0


class StoppedClients:
    """Counters of stopped clients, by reason.

    An address is named in the log once per hour and reason; the log counts its repetitions. Only
    the thread of the server writes.
    """

    def __init__(self) -> None:
        self._counts: dict[StopReason, int] = dict.fromkeys(get_args(StopReason), 0)
        self._named: set[tuple[StopReason, str]] = set()
        self._since = time.monotonic()

    def note(self, peer: str, reason: StopReason) -> None:
        """Count a stopped client and log it. peer: its address; "" for a local socket."""
        self._counts[reason] += 1
        now = time.monotonic()
        if now > self._since + _PERIOD:
            self._named.clear()
            self._since = now
        named = (reason, network(peer))
        if named not in self._named:
            if sum(each == reason for each, _ in self._named) >= _NAMED:
                logger.warning("exporter: further addresses: %s", _TEXTS[reason])
                return
            self._named.add(named)
        logger.warning("exporter: %s: %s", named[1] or "local socket", _TEXTS[reason])

    def rows(self) -> Iterator[tuple[tuple[str], int]]:
        """Return reason and count of stopped clients since the start."""
        for reason, count in self._counts.items():
            yield (reason,), count
