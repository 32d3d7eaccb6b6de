"""Counting and logging of records that can't be encoded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.counters import AgentCounters
    from ccagent.errors import EncodingError

_PERIOD = 3600.0
_MOST_REASONS = 10


class UnencodableRecords:
    """Counts an agent's records that can't be encoded, and logs each reason once per hour.

    At most ten reasons are logged per hour, because users control the content of some records.
    """

    def __init__(
        self, agent: str, counters: AgentCounters, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._agent = agent
        self._counters = counters
        self._monotonic = monotonic
        self._logged: set[str] = set()
        self._began = -_PERIOD

    def add(self, record: str, error: EncodingError) -> None:
        """Count an omitted record, and log the reason."""
        self._counters.unencodable += 1
        now = self._monotonic()
        if now - self._began >= _PERIOD:
            self._logged.clear()
            self._began = now
        reason = str(error)
        if reason in self._logged or len(self._logged) >= _MOST_REASONS:
            return
        self._logged.add(reason)
        logger.warning(
            "agent %s: %s can't be encoded and is left out: %s", self._agent, record, reason
        )
