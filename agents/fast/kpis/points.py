"""Points of KPIs, for sites without a FAST scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.fast.messages import kpi_names
from ccagent.records.line_protocol.encoding import Tags
from ccagent.records.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.fast.kpis.kpi_reading import KpiRound, KpiValues
    from ccagent.machine.node import Node

METRICS = {
    kpi_names.APPLICATION_MEMORY: "fast_application_mem",
    kpi_names.APPLICATION_CPU: "fast_application_cpu",
    kpi_names.NODE_MEMORY: "fast_node_mem",
    kpi_names.NODE_MEMORY_BANDWIDTH: "fast_node_mem_bw",
    kpi_names.NODE_CPU: "fast_node_cpu",
    kpi_names.NODE_INTERCONNECT: "fast_node_interconnect",
    kpi_names.COMMUNICATION: "fast_communication_intensity",
    kpi_names.RUNTIME: "fast_expected_runtime",
}
"""Metric names by KPI."""

LEVELS = {"low": 1.0, "medium": 2.0, "high": 3.0}
"""Numbers for low, medium and high."""


def kpi_points(node: Node, found: KpiRound) -> Iterator[Point]:
    """Yield the points of a round: of the node, and of each job (`stype=job`) or machine (`vm`)."""
    tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
    yield from _points(Tags(tags), found.node, found.time)
    for application, values in found.applications:
        if application.job_id:
            more = {"stype": "job", "stype-id": application.job_id}
        else:
            more = {"stype": "vm", "stype-id": application.vm_name}
        yield from _points(Tags(tags | more), values, found.time)


def _points(tags: Tags, values: KpiValues, time: float) -> Iterator[Point]:
    for name, value in values.items():
        number = LEVELS.get(value) if isinstance(value, str) else value
        if number is not None:
            yield Point(METRICS[name], tags, number, time)
