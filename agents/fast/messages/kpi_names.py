"""Names of the KPIs of the FAST protocol."""

from __future__ import annotations

from typing import Literal

KpiScope = Literal["node", "application"]
APPLICATION_MEMORY = "Application/VM memory usage"
APPLICATION_CPU = "Application/VM Cpu usage"
NODE_MEMORY = "Node memory usage"
NODE_MEMORY_BANDWIDTH = "Node memory bandwidth"
NODE_CPU = "Node Cpu usage"
NODE_INTERCONNECT = "Node Network Interconnect bandwidth"
COMMUNICATION = "communication intensity (network)"
COMPUTE = "compute intensity"
INPUT_OUTPUT = "IO intensity"
ENERGY = "energy consumption"
RUNTIME = "expected runtime"

KPIS: dict[str, KpiScope] = {
    APPLICATION_MEMORY: "application",
    APPLICATION_CPU: "application",
    NODE_MEMORY: "node",
    NODE_MEMORY_BANDWIDTH: "node",
    NODE_CPU: "node",
    NODE_INTERCONNECT: "node",
    COMMUNICATION: "node",
    COMPUTE: "node",
    INPUT_OUTPUT: "node",
    ENERGY: "node",
    RUNTIME: "application",
}
"""All KPIs, in the order of the specification; `COMPUTE` to `ENERGY` are those of schedulers."""

_KNOWN = {" ".join(name.casefold().split()): name for name in KPIS} | {
    "vm memory usage": APPLICATION_MEMORY,
    "application memory usage": APPLICATION_MEMORY,
    "vm cpu usage": APPLICATION_CPU,
    "application cpu usage": APPLICATION_CPU,
    "node network bandwidth": NODE_INTERCONNECT,
    "node interconnect bandwidth": NODE_INTERCONNECT,
    "communication intensity": COMMUNICATION,
}


def find_kpi(name: str) -> str | None:
    """Return the KPI of a name, ignoring case and spaces; None if unknown."""
    return _KNOWN.get(" ".join(name.casefold().split()))
