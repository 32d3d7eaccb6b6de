"""Points of KPIs: those of a round, and those that applications publish."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.kpi_names import KPIS
from ccagent.log import logger
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.fast.kpis.kpi_reading import KpiRound, KpiValues
    from ccagent.machine.node import Node

_LEVELS = {"low": 1.0, "medium": 2.0, "high": 3.0}
"""Numbers for low, medium and high."""

_MOST_VALUES = 10_000
_MOST_JOBS = 1000
_LONGEST_NAME = 64
_OTHERS = re.compile(r"[^a-z0-9]+")


def kpi_points(node: Node, kpis: KpiRound) -> Iterator[Point]:
    """Yield the points of a round: of the node, and of each job (`stype=job`) or machine (`vm`)."""
    tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
    yield from _points(Tags(tags), kpis.node, kpis.time)
    for application, values in kpis.applications:
        if application.job_id:
            more = {"stype": "job", "stype-id": application.job_id}
        else:
            more = {"stype": "vm", "stype-id": application.vm_name}
        yield from _points(Tags(tags | more), values, kpis.time)


def _points(tags: Tags, values: KpiValues, time: float) -> Iterator[Point]:
    for name, value in values.items():
        number = _LEVELS.get(value) if isinstance(value, str) else value
        if number is not None:
            yield Point(KPIS[name], tags, number, time)


def metric_name(kpi: str) -> str:
    """Return the metric name for an application's KPI; empty if no valid character is left."""
    name = _OTHERS.sub("_", kpi.casefold()).strip("_")[:_LONGEST_NAME]
    return f"fast_app_{name}" if name else ""


class ApplicationRelay:
    """Holds the messages of applications until the next sample."""

    def __init__(self) -> None:
        self.statuses: dict[str, fast.ApplicationStatus] = {}
        """Last statuses of applications, by job; replaced, never changed: threads iterate it."""
        self._values: dict[tuple[str, str], tuple[float, float]] = {}
        self._lock = threading.Lock()

    def add(
        self, message: fast.ApplicationStatus | fast.ApplicationKpis, job: str, time: float
    ) -> None:
        """Accept a message for the job of its topic; refuse a message for another job."""
        if message.job != job:
            logger.warning(
                "agent fast: job %s sends a message for job %s; refused", job, message.job,
                key="fast message for another job",
            )  # fmt: skip
            return
        with self._lock:
            if isinstance(message, fast.ApplicationStatus):
                others = [known for known in self.statuses.items() if known[0] != job]
                self.statuses = dict([*others[1 - _MOST_JOBS :], (job, message)])
                return
            for kpi, value in message.values.items():
                name = metric_name(kpi)
                if name and not isinstance(value, str) and len(self._values) < _MOST_VALUES:
                    self._values[job, name] = (value, time)

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget the statuses of all other jobs."""
        with self._lock:
            here = {*jobs}
            self.statuses = {job: status for job, status in self.statuses.items() if job in here}

    def take(self, node: Node) -> list[Point]:
        """Return and forget the latest values since the last call."""
        with self._lock:
            values, self._values = self._values, {}
        tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
        return [
            Point(name, tags | {"stype": "job", "stype-id": job}, value, time)
            for (job, name), (value, time) in values.items()
        ]
