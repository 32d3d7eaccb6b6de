"""Facts of a subcluster that a node knows: processors, topology, accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import CcagentError
from ccagent.machine.cpus import read_cpus, read_model
from ccagent.machine.gpu.presence import is_any_present
from ccagent.machine.gpu.settings import GpuSettings

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.accelerators import AcceleratorsSettings
    from ccagent.machine.node import Node

_DIRECTORY = "sys/devices/system/cpu"
_LARGEST = 65_535
_VENDORS = {"NVIDIA": "Nvidia GPU", "AMD": "AMD GPU"}
_FLOPS = {"base": "F/s", "prefix": "G"}


def describe_node(node: Node, settings: AcceleratorsSettings) -> dict[str, Any]:
    """Return what the schema wants of a subcluster, but its name and its nodes.

    Peak rates are 0: no file of the kernel has them.
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
    """Return the cards by address; instances of a card are not among them."""
    if not is_any_present(node, settings.vendors):
        return []
    from ccagent.machine.gpu.gpus import Gpus

    gpus = Gpus(node, GpuSettings(gpu_vendors=settings.vendors, gpu_time_limit=settings.time_limit))
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
    """Return the hwthreads of the node, of its sockets, memory domains and cores."""
    sockets: dict[int, list[int]] = {}
    cores: dict[tuple[int, int], list[int]] = {}
    cpus: list[int] = []
    for name in _list_numbers(node, _DIRECTORY, "cpu"):
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
    for number in _list_numbers(node, "sys/devices/system/node", "node"):
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


def _list_numbers(node: Node, directory: str, prefix: str) -> list[int]:
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
