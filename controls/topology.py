"""The topology of a machine from /sys, in cc-node-controller's JSON format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.controls.control import list_names, read_integer, read_word
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node


DIRECTORY = "sys/devices/system/cpu"

_CPU = re.compile(r"cpu([0-9]{1,6})", re.ASCII)
_MODEL = re.compile(rb"^(vendor_id|cpu family|model)\s*:\s*(\S+)$", re.MULTILINE)
_PART = 4096


class Processor(NamedTuple):
    """Vendor, family and model of x86; empty and 0 on other architectures."""

    vendor: str = ""
    family: int = 0
    model: int = 0


def parse_processor(content: bytes) -> Processor:
    """Parse the start of /proc/cpuinfo. The result is empty for other architectures."""
    fields: dict[bytes, bytes] = {}
    for name, value in _MODEL.findall(content):
        fields.setdefault(name, value)
    try:
        return Processor(
            fields[b"vendor_id"].decode("ascii", "replace"),
            int(fields[b"cpu family"]),
            int(fields[b"model"]),
        )
    except (KeyError, ValueError):
        return Processor()


def read_processor(node: Node) -> Processor:
    """Read vendor and model of the first processor."""
    try:
        descriptor_content = next(node.pieces("proc/cpuinfo"), b"")
    except CcagentError:
        return Processor()
    return parse_processor(descriptor_content[:_PART])


def list_cpus(node: Node) -> list[int]:
    """Return the online hwthreads."""
    numbers = [int(match[1]) for match in list_names(node, DIRECTORY, _CPU)]
    return [number for number in numbers if is_online(node, number)]


def is_online(node: Node, number: int) -> bool:
    """Return whether a hwthread is online. Without the file it can't be switched off."""
    return read_word(node, f"{DIRECTORY}/cpu{number}/online") in {"", "1"}


def first_sibling(node: Node, number: int) -> int:
    """Return the first hwthread of the core of a hwthread."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        found = re.match(r"[0-9]{1,6}", read_word(node, f"{DIRECTORY}/cpu{number}/topology/{name}"))
        if found:
            return int(found[0])
    return number


def socket_of(node: Node, number: int) -> int:
    """Return the socket of a hwthread; 0 if the kernel does not know it."""
    try:
        found = read_integer(node, f"{DIRECTORY}/cpu{number}/topology/physical_package_id")
    except CcagentError:
        found = None
    return max(0, found or 0)


_NODES = "sys/devices/system/node"
_NODE = re.compile(r"node([0-9]{1,6})", re.ASCII)
_MOST = 65536


class Hwthread(msgspec.Struct, frozen=True):
    """One hwthread. core_id: number in its socket. smt_id: number in its core."""

    cpu_id: int
    smt_id: int
    core_cpu_list: list[int]
    core_id: int
    socket_id: int
    die_id: int
    numa_id: int


class CpuInfo(msgspec.Struct, frozen=True):
    """Counts of the machine."""

    num_hwthreads: int
    smt_width: int
    num_sockets: int
    num_dies: int
    num_cores: int
    num_numa_domains: int


class Topology(msgspec.Struct, frozen=True):
    """The answer to `topology`."""

    hwthreads: list[Hwthread]
    cpu_info: CpuInfo


def parse_cpu_list(text: str) -> list[int]:
    """Parse a list of the kernel: `0-3,8`. Return an empty list for other text."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (not last or last.isdigit())):
            return []
        low, high = int(first), int(last or first)
        if not low <= high < _MOST:
            return []
        found += range(low, high + 1)
    return found


def read_topology(node: Node) -> Topology:
    """Read the topology of the online hwthreads."""
    domains = {
        int(match[1]): parse_cpu_list(read_word(node, f"{_NODES}/{match[0]}/cpulist"))
        for match in list_names(node, _NODES, _NODE)
    }
    numa = {cpu: domain for domain, cpus in domains.items() for cpu in cpus}
    online = list_cpus(node)
    threads = [_hwthread(node, cpu, numa, set(online)) for cpu in online]
    return Topology(
        threads,
        CpuInfo(
            num_hwthreads=len(threads),
            smt_width=max((len(t.core_cpu_list) for t in threads), default=0),
            num_sockets=len({t.socket_id for t in threads}),
            num_dies=len({(t.socket_id, t.die_id) for t in threads}),
            num_cores=len({tuple(t.core_cpu_list) for t in threads}),
            num_numa_domains=len(domains) or len({t.numa_id for t in threads}),
        ),
    )


def _hwthread(node: Node, cpu: int, numa: dict[int, int], online: set[int]) -> Hwthread:
    place = f"{DIRECTORY}/cpu{cpu}/topology"
    text = read_word(node, f"{place}/core_cpus_list") or read_word(
        node, f"{place}/thread_siblings_list"
    )
    siblings = [each for each in parse_cpu_list(text) if each in online] or [cpu]
    return Hwthread(
        cpu_id=cpu,
        smt_id=siblings.index(cpu) if cpu in siblings else 0,
        core_cpu_list=siblings,
        core_id=_number(node, f"{place}/core_id"),
        socket_id=_number(node, f"{place}/physical_package_id"),
        die_id=_number(node, f"{place}/die_id"),
        numa_id=numa.get(cpu, 0),
    )


def _number(node: Node, path: str) -> int:
    """Read an id; 0 if the kernel has none or writes -1."""
    try:
        return max(0, read_integer(node, path) or 0)
    except CcagentError:
        return 0


_ADDRESS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII
)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)


def canonical(address: str) -> tuple[int, ...] | None:
    """Return the numbers of an address; None for an invalid address."""
    found = _ADDRESS.fullmatch(address)
    return None if found is None else tuple(int(part or "0", 16) for part in found.groups())


def find_card(number: str, addresses: Sequence[str]) -> str | None:
    """Return the address of a card from its index, or from its address in any form."""
    if _INDEX.fullmatch(number):
        return addresses[int(number)] if int(number) < len(addresses) else None
    wanted = canonical(number)
    if wanted is None:
        return None
    return next((each for each in addresses if canonical(each) == wanted), None)
