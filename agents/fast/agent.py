"""The agent `fast`: KPIs of the node and its applications, for a FAST scheduler and for sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ccagent.agents.base import Agent
from ccagent.agents.fast.settings import FastSettings, check_settings
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.agents.fast.applications import Applications, MonitoredApplication
    from ccagent.agents.fast.kpis import KpiReader
    from ccagent.agents.fast.protocol import FastProtocol
    from ccagent.agents.fast.runtime import FastRuntime
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format
    from ccagent.records.points import Point

_FIRST_INTERVAL = 1.0


class FastAgent(Agent[FastSettings]):
    """Samples KPIs of the node, jobs and virtual machines; serves a FAST scheduler over MQTT."""

    name = "fast"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = FastSettings

    def __init__(self, settings: FastSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        check_settings(settings)
        self._reader: KpiReader | None = None
        self._applications: Applications | None = None
        self._runtime: FastRuntime | None = None

    def prepare(self, node: Node) -> float:
        """Take a first reading for rates. In the daemon also start the session."""
        from ccagent.agents.fast.applications import Applications
        from ccagent.agents.fast.kept_state import KeptState
        from ccagent.agents.fast.kpis import KpiReader

        self._reader = KpiReader(self.settings)
        self._applications = Applications(KeptState(), self.settings)
        if self.settings.url and not self.is_only_sample and self._runtime is None:
            from ccagent.agents.fast.runtime import FastRuntime

            self._runtime = FastRuntime(node, self.settings)
            self._runtime.start()
        self._reader.read(node, self._monitored(node))
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Point]:
        """Read the KPIs once. Yield their points, and those of KPIs that applications sent."""
        from ccagent.agents.fast.kpis import kpi_points

        if self._reader is None:
            self.prepare(node)
        if self._reader is None:
            return
        kpis = self._reader.read(node, self._monitored(node))
        self.is_blind = not kpis.node and not kpis.applications
        if self.is_blind:
            logger.warning("agent fast: can't read any KPI")
        yield from kpi_points(node, kpis)
        if (protocol := self._protocol) is not None:
            yield from protocol.relay.take(node)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of the sources of the node's KPIs, and of the bandwidth reference."""
        from ccagent.agents.fast.kpis import NodeKpis

        yield from NodeKpis().checks(node)
        if self.settings.mmbwmon:
            from ccagent.agents.fast.bandwidth import check_reference

            yield check_reference(node, self.settings.state_directory)

    @classmethod
    def has_own_peer(cls, table: Mapping[str, object]) -> bool:
        """Return whether a broker is configured."""
        return bool(table.get("url"))

    def describe(self) -> dict[str, Any]:
        """Return the configuration in force, the last KPIs and the monitored applications."""
        return self._runtime.describe() if self._runtime is not None else {}

    def close(self) -> None:
        """Log off from the broker, and close all open files."""
        if self._runtime is not None:
            self._runtime.close()
        if self._reader is not None:
            self._reader.close()

    def _monitored(self, node: Node) -> list[MonitoredApplication]:
        if (protocol := self._protocol) is not None:
            return protocol.list_monitored()
        return self._applications.list_monitored(node) if self._applications is not None else []

    @property
    def _protocol(self) -> FastProtocol | None:
        return self._runtime.protocol if self._runtime is not None else None
