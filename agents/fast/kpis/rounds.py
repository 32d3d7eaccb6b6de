"""Periodic rounds of KPIs for the scheduler, on a steady clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ccagent.agents.fast.kpis.kpi_reading import KpiReader
from ccagent.agents.fast.messages.encoding import encode_fast
from ccagent.agents.fast.messages.structures import KpiReport
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.agents.fast.kpis.kpi_reading import KpiRound
    from ccagent.agents.fast.protocol import FastProtocol
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node

_PAUSE_AFTER_FAILURE = 5.0


class KpiRounds:
    """Reads and reports KPIs every `repeat` seconds of the configuration in force."""

    def __init__(
        self,
        node: Node,
        settings: FastSettings,
        protocol: FastProtocol,
        report: Callable[[bytes], object],
    ) -> None:
        self.last: KpiRound | None = None
        """The last reported round."""
        self.skipped = 0
        """Rounds skipped because the previous one took too long."""
        self._node = node
        self._protocol = protocol
        self._report = report
        self._reader = KpiReader(settings)
        self._changed = threading.Condition()
        self._generation = 0
        self._closing = False

    def look(self) -> None:
        """Apply a changed configuration."""
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Stop `run`, without waiting for its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def run(self) -> None:
        """Report until `close`."""
        while not self._closing:
            try:
                self._follow_configuration()
            except Exception:  # noqa: BLE001 - the rounds continue
                logger.exception("agent fast: a round of KPIs failed; retrying")
                self._wait(_PAUSE_AFTER_FAILURE, self._generation)
        self._reader.close()

    def _follow_configuration(self) -> None:
        """Report by the current configuration until it changes."""
        generation = self._generation
        configuration = self._protocol.configuration
        if configuration is None:
            self._wait(None, generation)
            return
        clock, repeat = self._node.clock, float(configuration.repeat)
        self._read(configuration.categories)
        due = clock.monotonic() + repeat
        while not self._wait(max(0.0, due - clock.monotonic()), generation):
            found = self._read(configuration.categories)
            self.last = found
            for payload in reports(self._node.hostname, found):
                self._report(payload)
            due += repeat
            late = clock.monotonic() - due
            if late >= 0:
                missed = int(late // repeat) + 1
                self.skipped += missed
                due += missed * repeat

    def _read(self, categories: tuple[str, ...]) -> KpiRound:
        return self._reader.read(self._node, self._protocol.list_monitored(), categories)

    def _wait(self, seconds: float | None, generation: int) -> bool:
        """Wait; return True if the configuration has changed or `close` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._generation != generation, seconds)
            return self._closing or self._generation != generation


def reports(source: str, found: KpiRound) -> Iterator[bytes]:
    """Yield one report per application, with the node's KPIs; one report without applications."""
    if not found.applications:
        yield encode_fast(KpiReport(source=source, values=found.node))
    for application, values in found.applications:
        yield encode_fast(
            KpiReport(
                source=source,
                values=values | found.node,
                job_id=application.job_id,
                process_id=application.process_id,
                vm_name=application.vm_name,
            )
        )
