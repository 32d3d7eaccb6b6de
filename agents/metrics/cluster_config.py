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
_PREFIXES = {"GB": ("G", "B"), "MB/s": ("M", "B/s"), "MByte/s": ("M", "B/s"),
             "GB/s": ("G", "B/s"), "MHz": ("M", "Hz"), "GFlops/s": ("G", "Flops/s")}  # fmt: skip
_BETWEEN = 0.05
_LARGEST = 65_535


def cluster_config(agent: MetricsAgent, node: Node) -> dict[str, Any]:
    """Give the objects for a cluster with this node as its only one."""
    step = agent.settings.time_step.seconds
    every = agent.settings.every
    seconds = step or (every.seconds if every is not None else 60.0)
    metrics: list[dict[str, Any]] = []
    for name, types in sorted(_types(agent, node).items()):
        sent = agent.sent.get(name)
        if sent is None:
            continue
        metric = agent.metrics[name]
        # Without NUMA nodes, say, there is the value of the node alone.
        scope = metric.type if metric.type in types and sent.combined is None else "node"
        prefix, base = _PREFIXES.get(sent.unit, ("", sent.unit))
        metrics.append({
            "name": sent.name,
            "unit": {"base": base, "prefix": prefix} if prefix else {"base": base},
            "scope": scope,
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


def _types(agent: MetricsAgent, node: Node) -> dict[str, set[str]]:
    """Read twice, since shares of time are there at the second reading; give types by metric."""
    found: dict[str, set[str]] = {}
    for is_second in (False, True):
        if is_second:
            node.clock.sleep(_BETWEEN)
        for reader in agent.readers:
            try:
                for each in reader.read(node):
                    if not each.place.stype:
                        found.setdefault(each.metric, set()).add(each.place.type)
            except CcagentError:
                continue
    _add_custom(agent, node, found)
    return found


def _add_custom(agent: MetricsAgent, node: Node, found: dict[str, set[str]]) -> None:
    agent.custom.begin(node)
    for each in agent.told(node, waits=True):
        if not each.place.stype:
            found.setdefault(each.metric, set()).add(each.place.type)
    for name, lacking in agent.custom.lacking(found).items():
        if not lacking:
            found[name] = {agent.metrics[name].type}


def topology(node: Node) -> dict[str, Any]:
    """Give the hwthreads of the node, of its sockets, memory domains and cores."""
    sockets: dict[int, list[int]] = {}
    cores: dict[tuple[int, int], list[int]] = {}
    cpus: list[int] = []
    for name in _numbered(node, _DIRECTORY, "cpu"):
        socket = _number(node, f"{_DIRECTORY}/cpu{name}/topology/physical_package_id")
        core = _number(node, f"{_DIRECTORY}/cpu{name}/topology/core_id")
        if socket is None or core is None or socket > _LARGEST:
            continue
        socket = max(0, socket)  # -1: the kernel knows of no sockets.
        cpus.append(name)
        sockets.setdefault(socket, []).append(name)
        cores.setdefault((socket, core), []).append(name)
    known = set(cpus)
    domains: dict[int, list[int]] = {}
    for number in _numbered(node, "sys/devices/system/node", "node"):
        try:
            text = node.read(f"sys/devices/system/node/node{number}/cpulist")
        except CcagentError:
            continue
        members = _cpus(text.decode("ascii", "replace"))
        domains[number] = [cpu for cpu in members if cpu in known]
    return {
        "node": cpus,
        "socket": _by_number(sockets),
        "memoryDomain": _by_number(domains) or [cpus],
        "core": [members for _, members in sorted(cores.items())],
    }


def _by_number(parts: dict[int, list[int]]) -> list[list[int]]:
    """Give the members of each part at the index that is its number, as cc-backend counts them.

    Those of numbers that the kernel leaves out are empty.
    """
    return [parts.get(number, []) for number in range(max(parts, default=-1) + 1)]


def _numbered(node: Node, directory: str, prefix: str) -> list[int]:
    try:
        names = node.list(directory)
    except CcagentError:
        return []
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    found = (int(number) for number in numbers if number.isascii() and number.isdecimal())
    return sorted(number for number in found if number <= _LARGEST)


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
        found += range(int(first), min(int(last or first), _LARGEST) + 1)
    return found
