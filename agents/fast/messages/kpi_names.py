"""Names of the KPIs of the FAST protocol."""

from __future__ import annotations

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

KPIS = {
    APPLICATION_MEMORY: "fast_application_mem",
    APPLICATION_CPU: "fast_application_cpu",
    NODE_MEMORY: "fast_node_mem",
    NODE_MEMORY_BANDWIDTH: "fast_node_mem_bw",
    NODE_CPU: "fast_node_cpu",
    NODE_INTERCONNECT: "fast_node_interconnect",
    COMMUNICATION: "fast_communication_intensity",
    COMPUTE: "fast_compute_intensity",
    INPUT_OUTPUT: "fast_io_intensity",
    ENERGY: "fast_energy_consumption",
    RUNTIME: "fast_expected_runtime",
}
"""Metric names by KPI, in the order of the specification.

`COMPUTE` to `ENERGY` are those of schedulers.
"""

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
