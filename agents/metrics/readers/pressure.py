"""Reader of pressure stall information: waiting time for CPU, memory, I/O and interrupts."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.cgroup.pressure import parse_pressure
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_PERCENT = 100 / 1e6
"""Factor from microseconds per second to percent."""

_RESOURCES = {
    "cpu": "a CPU",
    "memory": "memory",
    "io": "a disk or file system",
    "irq": "the end of interrupts",
}
_EXTENTS = {"some": "at least one task waits", "full": "all tasks are stalled, waiting"}
_UNTOLD = ("irq", "some")


def _metrics() -> dict[str, Metric]:
    """Return the metrics, see Documentation/accounting/psi.rst of Linux."""
    metrics: dict[str, Metric] = {}
    for resource, what in _RESOURCES.items():
        for extent, who in _EXTENTS.items():
            if (resource, extent) == _UNTOLD:
                continue
            # cpu full is meaningless for the node as a whole: 0 since Linux 5.18, noise before.
            is_default = (resource, extent) != ("cpu", "full")
            description = f"share of time in which {who} for {what}"
            metrics[f"pressure_{resource}_{extent}"] = Metric(
                unit="%",
                type="node",
                description=description,
                source=f"/proc/pressure/{resource}, {extent}: total",
                aggregation="mean",
                scale=_PERCENT,
                is_default=is_default,
            )
            metrics[f"pressure_{resource}_{extent}_avg10"] = Metric(
                unit="%",
                type="node",
                description=f"{description}, over the last ten seconds",
                source=f"/proc/pressure/{resource}, {extent}: avg10",
                aggregation="mean",
                is_default=is_default,
            )
    return metrics


class PressureReader(Reader[ReaderSettings]):
    """Pressure of CPU, memory, I/O (since Linux 4.20) and interrupts (since 6.1)."""

    name = "pressure"
    metrics: ClassVar[dict[str, Metric]] = _metrics()

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read /proc/pressure. Raise NotHereError for a kernel without it."""
        self.errors = []
        found: list[Gauge | Count] = []
        missing: list[NotHereError] = []
        for resource in _RESOURCES:
            try:
                pressures = read_parsed(node, f"proc/pressure/{resource}", parse_pressure)
            except NotHereError as error:
                missing.append(error)
            except CcagentError as error:
                self.errors.append(str(error))
            else:
                for extent, pressure in pressures.items():
                    if (resource, extent) != _UNTOLD:
                        metric = f"pressure_{resource}_{extent}"
                        found.append(Count(metric, pressure.total))
                        found.append(Gauge(f"{metric}_avg10", pressure.avg10))
        if len(missing) == len(_RESOURCES):
            raise missing[0]
        return found
