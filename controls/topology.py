"""Processors: topology in cc-node-controller's JSON format; PCI addresses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccagent.controls.control import list_names
from ccagent.errors import CcagentError
from ccagent.machine.cpus import CPUS, read_topology_id
from ccagent.machine.cpus import read_siblings as read_core
from ccagent.machine.parsed import parse_or
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node


_CPU = re.compile(r"cpu([0-9]{1,6})", re.ASCII)
_NODES = "sys/devices/system/node"
_NODE = re.compile(r"node([0-9]{1,6})", re.ASCII)


def list_cpus(node: Node) -> list[int]:
    """Return the online hwthreads. A hwthread without the file can't be switched off."""
    numbers = [int(match[1]) for match in list_names(node, CPUS, _CPU)]
    return [n for n in numbers if node.read_text(f"{CPUS}/cpu{n}/online") in {"", "1"}]


def read_siblings(node: Node, number: int) -> list[int]:
    """Return the hwthreads of the core of a hwthread."""
    try:
        return read_core(node, number) or [number]
    except CcagentError:
        return [number]


def read_id(node: Node, number: int, name: str) -> int:
    """Return an id of a hwthread: of its socket, die or core; 0 if the kernel does not know it."""
    try:
        return max(0, read_topology_id(node, number, name))
    except CcagentError:
        return 0


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


def read_topology(node: Node) -> Topology:
    """Read the topology of the online hwthreads."""
    domains = {
        int(match[1]): parse_or(node, f"{_NODES}/{match[0]}/cpulist", parse_cpu_list, list[int]())
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
    siblings = [number for number in read_siblings(node, cpu) if number in online] or [cpu]
    return Hwthread(
        cpu_id=cpu,
        smt_id=siblings.index(cpu) if cpu in siblings else 0,
        core_cpu_list=siblings,
        core_id=read_id(node, cpu, "core_id"),
        socket_id=read_id(node, cpu, "physical_package_id"),
        die_id=read_id(node, cpu, "die_id"),
        numa_id=numa.get(cpu, 0),
    )


_ADDRESS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII
)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)


def find_card(number: str, addresses: Sequence[str]) -> str | None:
    """Return the address of a card from its index, or from its address in any form."""
    if _INDEX.fullmatch(number):
        return addresses[int(number)] if int(number) < len(addresses) else None
    wanted = _parse_address(number)
    if wanted is None:
        return None
    return next((each for each in addresses if _parse_address(each) == wanted), None)


def _parse_address(address: str) -> tuple[int, ...] | None:
    """Return the numbers of a PCI address; None for an invalid one."""
    match = _ADDRESS.fullmatch(address)
    return None if match is None else tuple(int(part or "0", 16) for part in match.groups())
