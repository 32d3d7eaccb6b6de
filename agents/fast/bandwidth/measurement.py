"""One measurement of memory bandwidth: cores, caches, buffers, and the process that reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import CcagentError, ProgramError, UnparsableError
from ccagent.machine.cpus import CPUS, read_online, read_topology_id
from ccagent.machine.interpreter import python
from ccagent.machine.own_memory import find_permitted_memory, read_resident
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list, parse_cpuinfo, parse_meminfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

_SIZE = re.compile(rb"([0-9]{1,9})([KMG]?)\s*", re.ASCII)
_UNITS = {b"": 1, b"K": 1024, b"M": 1024**2, b"G": 1024**3}
_MODEL_KEYS = ("model name", "cpu model", "CPU implementer")
_USUAL_CACHE = 32 * 1024**2
_LEVELS = 5

WINDOW = 0.4
"""Seconds in which all cores read simultaneously."""

ENOUGH_SHARE = 0.9
"""Minimum share of CPU time of the probe. With less, other load disturbed the measurement."""

_TIME_LIMIT = 30.0
_OUTPUT_LIMIT = 1024 * 1024
_CACHES = 4
_SMALLEST = 16 * 1024**2
_LARGEST = 256 * 1024**2
_OF_AVAILABLE = 4

_OF_PROCESS = 64 * 1024**2
"""Memory of the probe besides its buffers."""


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


def read_processor(node: Node) -> MeasuredProcessor:
    """Return the identity of the processor. Raise CcagentError if it can't be read."""
    blocks = parse_cpuinfo(next(iter(node.pieces("proc/cpuinfo")), b""))
    first = blocks[0] if blocks else {}
    model = next((first[key] for key in _MODEL_KEYS if first.get(key)), "unknown")
    kernel = node.read("proc/sys/kernel/osrelease").decode("utf-8", "replace").strip()
    return MeasuredProcessor(model, tuple(read_online(node)), kernel)


def compact_order(node: Node, cpus: Sequence[int]) -> list[int]:
    """Return CPUs in compact order: socket by socket, first the first thread of each core."""
    seen: set[tuple[int, int]] = set()
    first: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for cpu in cpus:
        socket = _topology_id(node, cpu, "physical_package_id", 0)
        core = _topology_id(node, cpu, "core_id", cpu)
        (others if (socket, core) in seen else first).append((socket, cpu))
        seen.add((socket, core))
    return [cpu for _, cpu in [*sorted(first), *sorted(others)]]


def last_cache(node: Node, cpu: int) -> LastCache:
    """Return the last-level cache of a CPU; if unknown, 32 MiB for this CPU alone."""
    cache = LastCache(_USUAL_CACHE, frozenset({cpu}))
    for index in range(_LEVELS):
        path = f"{CPUS}/cpu{cpu}/cache/index{index}"
        try:
            size = read_parsed(node, f"{path}/size", parse_size)
            shared = read_parsed(node, f"{path}/shared_cpu_list", parse_cpu_list)
        except CcagentError:
            continue
        cache = LastCache(size, frozenset(shared))
    return cache


def _topology_id(node: Node, cpu: int, name: str, otherwise: int) -> int:
    try:
        return read_topology_id(node, cpu, name)
    except CcagentError:
        return otherwise


class Measured(NamedTuple):
    """Result of a measurement.

    bandwidth: B/s of all cores. share: minimum CPU share of a thread.
    """

    bandwidth: float
    share: float


def measure(node: Node, cores: Sequence[int], seconds: float = WINDOW) -> Measured:
    """Measure the current memory bandwidth of these cores. Raise CcagentError if it fails."""
    size = buffer_size(node, cores)
    program = "from ccagent.agents.fast.bandwidth.probe import main; main()"
    words = [",".join(map(str, cores)), str(size), f"{seconds:g}"]
    output = node.run(
        [*python(program), *words], time_limit=_TIME_LIMIT, output_limit=_OUTPUT_LIMIT
    )
    try:
        results = msgspec.json.decode(output, type=list[tuple[int, float, float]])
    except msgspec.MsgspecError as error:
        raise ProgramError(f"the probe printed unknown output: {error}") from error
    if len(results) != len(cores):
        raise ProgramError(f"the probe measured {len(results)} cores of {len(cores)}")
    return Measured(sum(result[1] for result in results), min(each[2] for each in results))


def buffer_size(node: Node, cores: Sequence[int]) -> int:
    """Return the size of a core's buffer in B, usually four times its share of the last cache.

    The size is between 16 and 256 MiB. Raise ProgramError without enough spare memory.
    """
    wanted = _SMALLEST
    for core in cores:
        cache = last_cache(node, core)
        sharing = len(cache.cpus.intersection(cores)) or 1
        wanted = max(wanted, _CACHES * cache.size // sharing)
    size = min(wanted, _LARGEST)
    spare = _spare_memory(node)
    if spare < size * len(cores):
        raise ProgramError(
            f"{size * len(cores) >> 20} MiB of buffers are needed, but only {spare >> 20} MiB may"
            " be used; see MemoryMax= of the unit"
        )
    return size


def _spare_memory(node: Node) -> int:
    """Return the B allowed for buffers: a quarter of available memory, within our own limit."""
    available = read_parsed(node, "proc/meminfo", parse_meminfo).get("MemAvailable")
    spare = _SMALLEST if available is None else available * 1024 // _OF_AVAILABLE
    return min(spare, max(0, find_permitted_memory(node) - read_resident() - _OF_PROCESS))
