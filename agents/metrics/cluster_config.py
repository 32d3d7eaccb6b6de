"""Parts of cc-backend's cluster.json that a node can provide: metrics, hardware, topology.

Source: the JSON schema `cluster` of ClusterCockpit's cc-lib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import CcagentError, ConfigurationError, UnparsableError
from ccagent.machine.cpus import (
    CPUS,
    read_cpus,
    read_first_sibling,
    read_model,
    read_topology_id,
)
from ccagent.machine.gpu.vendor import is_any_present
from ccagent.machine.hostlist import compact, expand
from ccagent.machine.parsed import parse_or, read_parsed
from ccagent.machine.procfs.system import LARGEST_CPU, parse_cpu_list, parse_meminfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.outputs import Output
    from ccagent.agents.metrics.readers.accelerators import AcceleratorsSettings
    from ccagent.agents.metrics.readers.base import Metric
    from ccagent.machine.node import Node


_BASES = {"B": "B", "B/s": "B/s", "Byte/s": "B/s", "Flops/s": "F/s", "Hz": "Hz", "W": "W",
          "J": "J", "degC": "°C"}  # fmt: skip
_PREFIXES = {"": "", "K": "K", "k": "K", "M": "M", "G": "G", "T": "T"}
_UTILISED = ("cpu_user", "acc_utilization")


class NodeSize(NamedTuple):
    """Size of a node: number of hwthreads, and bytes of memory."""

    hwthreads: int
    memory: int


def schema_unit(unit: str) -> dict[str, str]:
    """Return base and prefix of a unit. A unit unknown to the schema has an empty base."""
    for name, base in _BASES.items():
        if unit.endswith(name) and unit.removesuffix(name) in _PREFIXES:
            prefix = _PREFIXES[unit.removesuffix(name)]
            return {"base": base, "prefix": prefix} if prefix else {"base": base}
    return {"base": ""}


def thresholds(
    name: str, metric: Metric, output: Output, size: NodeSize
) -> dict[str, float | bool]:
    """Return peak, normal, caution and alert, in the unit of the output.

    Low utilisation, high memory use and high load are bad. 0 is an unknown limit.
    """
    peak, normal, caution, alert, is_low_better = 0.0, 0.0, 0.0, 0.0, False
    if name in _UTILISED:
        peak, normal, caution, alert = 100, 50, 20, 10
    elif metric.unit == "%" and metric.aggregation == "mean":
        peak, normal, caution, alert, is_low_better = 100, 10, 50, 90, True
    elif name == "cpu_load":
        peak, normal, caution, alert = (size.hwthreads * each for each in (1, 1, 0.5, 0.1))
    elif name == "mem_used":
        peak, normal, caution, alert = (size.memory * each for each in (1, 0.5, 0.9, 0.95))
        is_low_better = True
    found: dict[str, float | bool] = {
        key: round(value * output.factor, 3)
        for key, value in zip(
            ("peak", "normal", "caution", "alert"), (peak, normal, caution, alert), strict=True
        )
    }
    return found | ({"lowerIsBetter": True} if is_low_better else {})


_NODES = "sys/devices/system/node"
_VENDORS = {"NVIDIA": "Nvidia GPU", "AMD": "AMD GPU"}
_FLOPS = {"base": "F/s", "prefix": "G"}


def describe_node(node: Node, settings: AcceleratorsSettings) -> dict[str, Any]:
    """Return the fields of a subcluster in the schema, without name and nodes.

    Peak rates are 0: the kernel does not provide them.
    """
    failures: list[CcagentError] = []
    cpus = read_cpus(node, failures)
    of_node = topology(node)
    accelerators = list_accelerators(node, settings)
    if accelerators:
        of_node["accelerators"] = accelerators
    return {
        "processorType": read_model(node, failures) or "unknown",
        "socketsPerNode": cpus.sockets if cpus else 1,
        "coresPerSocket": cpus.cores_per_socket if cpus else max(1, len(of_node["core"])),
        "threadsPerCore": cpus.threads_per_core if cpus else 1,
        "flopRateScalar": {"unit": _FLOPS, "value": 0},
        "flopRateSimd": {"unit": _FLOPS, "value": 0},
        "memoryBandwidth": {"unit": {"base": "B/s", "prefix": "G"}, "value": 0},
        "topology": of_node,
    }


def list_accelerators(node: Node, settings: AcceleratorsSettings) -> list[dict[str, str]]:
    """Return the cards by address, without instances."""
    if not is_any_present(node, settings.vendors):
        return []
    from ccagent.machine.gpu.gpus import Gpus

    gpus = Gpus(node, settings.vendors, settings.time_limit.seconds)
    try:
        gpus.ask("describe")
        cards = gpus.descriptions([])
    finally:
        gpus.close()
    found: dict[str, dict[str, str]] = {}
    for card in cards:
        vendor = _VENDORS.get(card.manufacturer)
        if vendor is not None and card.address:
            model = card.model or "unknown"
            found.setdefault(card.address, {"id": card.address, "type": vendor, "model": model})
    return [found[address] for address in sorted(found)]


def topology(node: Node) -> dict[str, Any]:
    """Return the online hwthreads of the node, and of its sockets, memory domains and cores."""
    sockets: dict[int, list[int]] = {}
    cores: dict[int, tuple[int, int, list[int]]] = {}
    cpus: list[int] = []
    online = parse_or(node, f"{CPUS}/online", parse_cpu_list, list[int]())
    for name in _list_numbers(node, CPUS, "cpu"):
        if online and name not in online:
            continue
        try:
            socket = read_topology_id(node, name, "physical_package_id")
            core = read_topology_id(node, name, "core_id")
        except CcagentError:
            continue
        if socket > LARGEST_CPU:
            continue
        socket = max(0, socket)  # -1: the kernel has no socket numbers.
        cpus.append(name)
        sockets.setdefault(socket, []).append(name)
        first = read_first_sibling(node, name)
        cores.setdefault(first, (socket, core, []))[2].append(name)
    known = set(cpus)
    domains: dict[int, list[int]] = {}
    for number in _list_numbers(node, _NODES, "node"):
        try:
            members = read_parsed(node, f"{_NODES}/node{number}/cpulist", parse_cpu_list)
        except UnparsableError:
            members = []
        except CcagentError:
            continue
        domains[number] = [cpu for cpu in members if cpu in known]
    return {
        "node": cpus,
        "socket": _by_number(sockets),
        "memoryDomain": _by_number(domains) or [cpus],
        "core": [members for _, _, members in sorted(cores.values())],
    }


def _by_number(parts: dict[int, list[int]]) -> list[list[int]]:
    """Return the members of each part, indexed by the number of the part.

    cc-backend expects this. Numbers that the kernel skips have no members.
    """
    return [parts.get(number, []) for number in range(max(parts, default=-1) + 1)]


def _list_numbers(node: Node, directory: str, prefix: str) -> list[int]:
    numbers = [
        each.removeprefix(prefix) for each in node.list_names(directory) if each.startswith(prefix)
    ]
    found = (int(number) for number in numbers if number.isascii() and number.isdecimal())
    return sorted(number for number in found if number <= LARGEST_CPU)


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
    return parse_or(node, "proc/meminfo", parse_meminfo, dict[str, int]()).get("MemTotal", 0) * 1024


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


_LIMITS = ("peak", "normal", "caution", "alert")


def merge_clusters(clusters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the merged cluster. Raise ConfigurationError for contradictions.

    A metric that a subcluster lacks is removed there. Different limits are set per subcluster.
    """
    names = {cluster["name"] for cluster in clusters}
    if len(names) != 1:
        raise ConfigurationError(f"the files are of several clusters: {', '.join(sorted(names))}")
    groups: list[tuple[dict[str, Any], dict[str, dict[str, Any]], set[str]]] = []
    for cluster in clusters:
        metrics = {metric["name"]: metric for metric in cluster["metricConfig"]}
        if len(cluster["subClusters"]) != 1:
            raise ConfigurationError(
                "a file has several subclusters; merge the outputs of all nodes at once"
            )
        (subcluster,) = cluster["subClusters"]
        facts = _without(subcluster, "name", "nodes")
        hosts = set(expand(subcluster["nodes"]))
        for known, of_known, nodes in groups:
            if known == facts and of_known == metrics:
                nodes.update(hosts)
                break
        else:
            groups.append((facts, metrics, hosts))
    subclusters = [
        {"name": "main" if len(groups) == 1 else f"part{number}",
         "nodes": ",".join(compact(nodes)), **facts}
        for number, (facts, _, nodes) in enumerate(groups, 1)
    ]  # fmt: skip
    parts = {
        each["name"]: metrics for each, (_, metrics, _) in zip(subclusters, groups, strict=True)
    }
    every = sorted({name for metrics in parts.values() for name in metrics})
    return {
        "name": names.pop(),
        "metricConfig": [_merge_metric(name, parts) for name in every],
        "subClusters": subclusters,
    }


def _merge_metric(name: str, parts: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return a metric of all subclusters, with the differences of each subcluster."""
    first = next(metrics[name] for metrics in parts.values() if name in metrics)
    own: list[dict[str, Any]] = []
    for part, metrics in parts.items():
        metric = metrics.get(name)
        if metric is None:
            own.append({"name": part, "remove": True})
            continue
        for key in ("unit", "timestep", "aggregation"):
            if metric[key] != first[key]:
                raise ConfigurationError(
                    f"{name}: nodes differ in {key}: {metric[key]} and {first[key]}; a cluster has"
                    " one, so configure them alike"
                )
        limits = {key: metric[key] for key in _LIMITS}
        if limits != {key: first[key] for key in _LIMITS}:
            own.append({"name": part, **limits})
    return first | ({"subClusters": own} if own else {})


def _without(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}
