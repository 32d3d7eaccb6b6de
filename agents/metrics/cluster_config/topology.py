"""Facts of a subcluster from a node: processors, topology, accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.cpus import read_cpus, read_model
from ccagent.machine.gpu.presence import is_any_present
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import LARGEST_CPU, parse_cpu_list, parse_topology_id

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.accelerators import AcceleratorsSettings
    from ccagent.machine.node import Node

_DIRECTORY = "sys/devices/system/cpu"
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
    """Return the hwthreads of the node, and of its sockets, memory domains and cores."""
    sockets: dict[int, list[int]] = {}
    cores: dict[tuple[int, int], list[int]] = {}
    cpus: list[int] = []
    for name in _list_numbers(node, _DIRECTORY, "cpu"):
        directory = f"{_DIRECTORY}/cpu{name}/topology"
        try:
            socket = read_parsed(node, f"{directory}/physical_package_id", parse_topology_id)
            core = read_parsed(node, f"{directory}/core_id", parse_topology_id)
        except CcagentError:
            continue
        if socket > LARGEST_CPU:
            continue
        socket = max(0, socket)  # -1: the kernel has no socket numbers.
        cpus.append(name)
        sockets.setdefault(socket, []).append(name)
        cores.setdefault((socket, core), []).append(name)
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
        "core": [members for _, members in sorted(cores.items())],
    }


def _by_number(parts: dict[int, list[int]]) -> list[list[int]]:
    """Return the members of each part, indexed by the number of the part.

    cc-backend expects this. Numbers that the kernel skips have no members.
    """
    return [parts.get(number, []) for number in range(max(parts, default=-1) + 1)]


def _list_numbers(node: Node, directory: str, prefix: str) -> list[int]:
    try:
        names = node.list(directory)
    except CcagentError:
        return []
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    found = (int(number) for number in numbers if number.isascii() and number.isdecimal())
    return sorted(number for number in found if number <= LARGEST_CPU)
