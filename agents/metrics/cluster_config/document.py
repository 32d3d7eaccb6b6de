"""Parts of cc-backend's cluster.json that a node can provide: metrics, hardware, topology.

Source: the JSON schema `cluster` of ClusterCockpit's cc-lib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.metrics.cluster_config.topology import describe_node
from ccagent.agents.metrics.cluster_config.units import NodeSize, schema_unit, thresholds
from ccagent.errors import CcagentError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.meminfo import parse_meminfo

if TYPE_CHECKING:
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.machine.node import Node

_BETWEEN = 0.05
_SCOPES = ("hwthread", "core", "memoryDomain", "socket", "accelerator")


def cluster_config(agent: MetricsAgent, node: Node) -> dict[str, Any]:
    """Return the objects for a cluster of this node alone."""
    step = agent.settings.resolution.seconds
    every = agent.settings.every
    seconds = step or (every.seconds if every is not None else 60.0)
    facts = describe_node(node, agent.settings.accelerators)
    size = NodeSize(len(facts["topology"]["node"]), _memory(node))
    metrics: list[dict[str, Any]] = []
    for name, types in sorted(_types(agent, node).items()):
        output = agent.outputs.get(name)
        if output is None:
            continue
        metric = agent.metrics[name]
        # Without NUMA nodes, for example, only the node has a value.
        smallest = next((scope for scope in _SCOPES if scope in types), "node")
        metrics.append({
            "name": output.name,
            "unit": schema_unit(output.unit),
            "scope": smallest if output.combine is None else "node",
            "aggregation": "sum" if metric.aggregation == "sum" else "avg",
            "timestep": int(seconds),
            **thresholds(name, metric, output, size),
        })  # fmt: skip
    return {
        "name": node.cluster,
        "metricConfig": metrics,
        "subClusters": [{"name": "main", "nodes": node.hostname, **facts}],
    }


def store_config(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the section `metrics` of cc-metric-store's configuration for a cluster."""
    return {
        "metrics": {
            metric["name"]: {
                "frequency": metric["timestep"], "aggregation": metric["aggregation"],
            }
            for metric in cluster["metricConfig"]
        }
    }  # fmt: skip


def _memory(node: Node) -> int:
    try:
        return read_parsed(node, "proc/meminfo", parse_meminfo).get("MemTotal", 0) * 1024
    except CcagentError:
        return 0


def _types(agent: MetricsAgent, node: Node) -> dict[str, set[str]]:
    """Return the types of parts that have values, by metric.

    Everything is read twice: shares of time exist from the second reading on.
    """
    found: dict[str, set[str]] = {}
    for is_second in (False, True):
        if is_second:
            node.clock.sleep(_BETWEEN)
        for reader in agent.readers:
            reader.begin(node)
        for reader in agent.readers:
            try:
                for each in reader.read(node):
                    if not each.scope.stype:
                        found.setdefault(each.metric, set()).add(each.scope.type)
            except CcagentError:
                continue
    for reader in agent.readers:
        for name, scope in reader.list_pending(node).items():
            found.setdefault(name, set()).add(scope)
    _add_custom(agent, node, found)
    return found


def _add_custom(agent: MetricsAgent, node: Node, found: dict[str, set[str]]) -> None:
    agent.custom.begin(node)
    for each in agent.collect_custom(node, waits=True):
        if not each.scope.stype:
            found.setdefault(each.metric, set()).add(each.scope.type)
    for name, find_missing in agent.custom.find_missing(found).items():
        if not find_missing:
            found[name] = {agent.metrics[name].type}
