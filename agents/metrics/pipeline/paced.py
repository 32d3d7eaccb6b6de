"""A reader with its interval, and the rates of its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.metrics.readers.base import Count
from ccagent.errors import CcagentError, NotHereError
from ccagent.log import logger
from ccagent.machine.counters import Rates

if TYPE_CHECKING:
    from ccagent.agents.metrics.pipeline.outputs import Value
    from ccagent.agents.metrics.readers.base import Metric, Reader, Scope
    from ccagent.machine.node import Node


class PacedReader:
    """Reads with every sample, or at the interval `every` of the reader."""

    def __init__(self, reader: Reader[Any]) -> None:
        self.reader = reader
        self._rates: Rates[Scope] = Rates()
        self._every: float = 0.0 if reader.has_own_pace else reader.settings.every.seconds
        self._slot: int | None = None

    def is_due(self, now: float) -> bool:
        """Return whether a sample at `now` (seconds since 1970) is the first of its time slot."""
        if not self._every:
            return True
        slot = int(now // self._every)
        is_first, self._slot = slot != self._slot, slot
        return is_first

    def values(self, node: Node, metrics: dict[str, Metric]) -> list[Value]:
        """Return the values of a reading. Log errors, rate-limited; failed metrics are omitted."""
        values: list[Value] = []
        counts: list[Count] = []
        name = self.reader.name
        is_known = True
        wanted = self.reader.wanted
        try:
            for each in self.reader.read(node):
                # Skip the rates of unused metrics: NFS alone counts about 90 operations.
                if wanted is not None and each.metric not in wanted:
                    continue
                if isinstance(each, Count):
                    counts.append(each)
                else:
                    values.append(each)
        except NotHereError as error:
            logger.debug("agent metrics: %s: %s", name, error)
        except CcagentError as error:
            logger.warning("agent metrics: %s: %s", name, error)
            is_known = False
        except Exception:  # noqa: BLE001 - a failing reader must not stop others
            logger.exception("agent metrics: %s: unforeseen error", name)
            is_known = False
        for problem in self.reader.errors:
            logger.warning("agent metrics: %s: %s", name, problem)
        # A reading without counters also sets the start of the next interval.
        if counts or is_known:
            values += self._rates.of(counts, metrics, node.clock.monotonic())
        return values
