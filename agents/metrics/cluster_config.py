"""The part of cc-backend's cluster.json that this node knows: its metrics and its topology.

Source: ClusterCockpit's JSON schema `cluster`: metricConfig, subClusters[].topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.node import Node

_DIRECTORY = "sys/devices/system/cpu"
_PREFIXES = {"GB": ("G", "B"), "MB/s": ("M", "B/s"), "GB/s": ("G", "B/s"), "MHz": ("M", "Hz"),
             "GFlops/s": ("G", "Flops/s")}  # fmt: skip


def cluster_config(agent: MetricsAgent, node: Node) -> dict[str, Any]:
    """Give the objects for a cluster with this node as its only one."""
    step = agent.settings.time_step.seconds
    every = agent.settings.every
    seconds = step or (every.seconds if every is not None else 60.0)
    metrics: list[dict[str, Any]] = []
    seen: set[str] = set()
    for reader in agent.readers:
        try:
            seen |= {each.metric for each in reader.read(node) if not each.place.stype}
        except CcagentError:
            continue
    for name in sorted(seen):
        sent = agent.sent.get(name)
        if sent is None:
            continue
        metric = agent.metrics[name]
        prefix, base = _PREFIXES.get(sent.unit, ("", sent.unit))
        metrics.append({
            "name": sent.name,
            "unit": {"base": base, "prefix": prefix} if prefix else {"base": base},
            "scope": "node" if sent.combined is not None else metric.type,
            "aggregation": "sum" if metric.aggregation == "sum" else "avg",
            "timestep": int(seconds),
        })  # fmt: skip
    return {
        "name": node.cluster,
        "metricConfig": metrics,
        "subClusters": [
            {"name": "main", "nodes": node.hostname, "topology": topology(node)},
        ],
    }


def topology(node: Node) -> dict[str, Any]:
    """Give the hwthreads of the node, of its sockets, memory domains and cores."""
    sockets: dict[int, list[int]] = {}
    cores: dict[tuple[int, int], list[int]] = {}
    cpus: list[int] = []
    for name in _numbered(node, _DIRECTORY, "cpu"):
        socket = _number(node, f"{_DIRECTORY}/cpu{name}/topology/physical_package_id")
        core = _number(node, f"{_DIRECTORY}/cpu{name}/topology/core_id")
        if socket is None or core is None:
            continue
        cpus.append(name)
        sockets.setdefault(socket, []).append(name)
        cores.setdefault((socket, core), []).append(name)
    domains: list[list[int]] = []
    for number in _numbered(node, "sys/devices/system/node", "node"):
        try:
            text = node.read(f"sys/devices/system/node/node{number}/cpulist")
        except CcagentError:
            continue
        domains.append([cpu for cpu in _cpus(text.decode("ascii", "replace")) if cpu in set(cpus)])
    return {
        "node": cpus,
        "socket": [members for _, members in sorted(sockets.items())],
        "memoryDomain": domains or [cpus],
        "core": [members for _, members in sorted(cores.items())],
    }


def _numbered(node: Node, directory: str, prefix: str) -> list[int]:
    try:
        names = node.list(directory)
    except CcagentError:
        return []
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())


def _number(node: Node, path: str) -> int | None:
    try:
        return int(node.read(path))
    except (CcagentError, ValueError):
        return None


def _cpus(text: str) -> list[int]:
    """Parse a list of cpus: `0-3,8`; empty for anything else."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return []
        found += range(int(first), min(int(last or first), 65_535) + 1)
    return found
