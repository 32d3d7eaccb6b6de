"""One measurement of memory bandwidth: size of the buffers, and the process that reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.fast.bandwidth.topology import last_cache
from ccagent.errors import ProgramError
from ccagent.machine.interpreter import python
from ccagent.machine.own_memory import find_permitted_memory, read_resident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

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
_AVAILABLE = re.compile(rb"^MemAvailable:\s*([0-9]{1,15}) kB$", re.MULTILINE)
_OF_PROCESS = 64 * 1024**2
"""Memory of the probe besides its buffers."""


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
    return Measured(sum(each[1] for each in results), min(each[2] for each in results))


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
    match = _AVAILABLE.search(node.read("proc/meminfo"))
    spare = int(match[1]) * 1024 // _OF_AVAILABLE if match is not None else _SMALLEST
    return min(spare, max(0, find_permitted_memory(node) - read_resident() - _OF_PROCESS))
