"""The topology of a machine from /sys, in cc-node-controller's JSON format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccagent.controls.cpus import DIRECTORY, list_cpus
from ccagent.controls.file_feature import list_names, read_integer, read_word
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.machine.node import Node

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
