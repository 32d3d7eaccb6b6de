"""Topology of the processor for a measurement: cores, their order, last-level cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

_CPUS = "sys/devices/system/cpu"
_SIZE = re.compile(rb"([0-9]{1,9})([KMG]?)\s*", re.ASCII)
_UNITS = {b"": 1, b"K": 1024, b"M": 1024**2, b"G": 1024**3}
_MODEL = re.compile(rb"^(?:model name|cpu model|CPU implementer)\s*:\s*(.{1,200})$", re.MULTILINE)
_USUAL_CACHE = 32 * 1024**2
_LEVELS = 5


class LastCache(NamedTuple):
    """A last-level cache: size in B, and the CPUs that share it."""

    size: int
    cpus: frozenset[int]


class MeasuredProcessor(NamedTuple):
    """Identity of the processor. A reference of another model, cores or kernel is invalid."""

    model: str
    cpus: tuple[int, ...]
    kernel: str


def parse_size(content: bytes) -> int:
    """Return the B of a cache size such as `32768K`. Raise UnparsableError if invalid."""
    match = _SIZE.fullmatch(content)
    if match is None:
        raise UnparsableError(f"not a size: {content[:80]!r}")
    return int(match[1]) * _UNITS[match[2]]


def read_cpus(node: Node) -> list[int]:
    """Return the online CPUs. Raise CcagentError if they can't be read."""
    return read_parsed(node, f"{_CPUS}/online", parse_cpu_list)


def read_processor(node: Node) -> MeasuredProcessor:
    """Return the identity of the processor. Raise CcagentError if it can't be read."""
    match = _MODEL.search(next(iter(node.pieces("proc/cpuinfo")), b""))
    model = match[1].decode("utf-8", "replace").strip() if match is not None else "unknown"
    kernel = node.read("proc/sys/kernel/osrelease").decode("utf-8", "replace").strip()
    return MeasuredProcessor(model, tuple(read_cpus(node)), kernel)


def compact_order(node: Node, cpus: Sequence[int]) -> list[int]:
    """Return CPUs in compact order: socket by socket, first the first thread of each core."""
    seen: set[tuple[int, int]] = set()
    first: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for cpu in cpus:
        socket = _number(node, f"{_CPUS}/cpu{cpu}/topology/physical_package_id", 0)
        core = _number(node, f"{_CPUS}/cpu{cpu}/topology/core_id", cpu)
        (others if (socket, core) in seen else first).append((socket, cpu))
        seen.add((socket, core))
    return [cpu for _, cpu in [*sorted(first), *sorted(others)]]


def last_cache(node: Node, cpu: int) -> LastCache:
    """Return the last-level cache of a CPU; if unknown, 32 MiB for this CPU alone."""
    found = LastCache(_USUAL_CACHE, frozenset({cpu}))
    for index in range(_LEVELS):
        path = f"{_CPUS}/cpu{cpu}/cache/index{index}"
        try:
            size = read_parsed(node, f"{path}/size", parse_size)
            shared = read_parsed(node, f"{path}/shared_cpu_list", parse_cpu_list)
        except CcagentError:
            continue
        found = LastCache(size, frozenset(shared))
    return found


def _number(node: Node, path: str, otherwise: int) -> int:
    try:
        return int(node.read(path, limit=64))
    except (CcagentError, ValueError):
        return otherwise
