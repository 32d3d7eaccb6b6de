"""One measurement: how large the buffers are, and the process that reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.fast.bandwidth.topology import last_cache
from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.cgroup.files import parse_amount, parse_limit
from ccagent.machine.interpreter import python
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

WINDOW = 0.4
"""Seconds in which all cores read at once."""

ENOUGH_SHARE = 0.9
"""A probe that ran for less of its time measured somebody's load, not the memory."""

_TIME_LIMIT = 30.0
_OUTPUT_LIMIT = 1024 * 1024
_CACHES = 4
_SMALLEST = 16 * 1024**2
_LARGEST = 256 * 1024**2
_OF_AVAILABLE = 4
_AVAILABLE = re.compile(rb"^MemAvailable:\s*([0-9]{1,15}) kB$", re.MULTILINE)
_OF_PROCESS = 64 * 1024**2


class Measured(NamedTuple):
    """bandwidth: B/s of all cores together. share: the least share of time that a thread ran."""

    bandwidth: float
    share: float


def measure(node: Node, cores: Sequence[int], seconds: float = WINDOW) -> Measured:
    """Measure the memory bandwidth that these cores reach now. Raises CcagentError."""
    size = buffer_size(node, cores)
    program = "from ccagent.agents.fast.bandwidth.probe import main; main()"
    words = [",".join(map(str, cores)), str(size), f"{seconds:g}"]
    output = node.run(
        [*python(program), *words], time_limit=_TIME_LIMIT, output_limit=_OUTPUT_LIMIT
    )
    try:
        results = msgspec.json.decode(output, type=list[tuple[int, float, float]])
    except msgspec.MsgspecError as error:
        raise ProgramError(f"the probe printed something else: {error}") from error
    if len(results) != len(cores):
        raise ProgramError(f"the probe measured {len(results)} cores of {len(cores)}")
    return Measured(sum(each[1] for each in results), min(each[2] for each in results))


def buffer_size(node: Node, cores: Sequence[int]) -> int:
    """Return the B of a core's buffer: four times its share of the last cache or more.

    Raises ProgramError if there is not so much memory to spare.
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
            f"{size * len(cores) >> 20} MiB of buffers are needed, and {spare >> 20} MiB may be"
            " used; see MemoryMax= of the unit"
        )
    return size


def _spare_memory(node: Node) -> int:
    """Return the B that buffers may take: a quarter of what is available, within our own limit."""
    match = _AVAILABLE.search(node.read("proc/meminfo"))
    spare = int(match[1]) * 1024 // _OF_AVAILABLE if match is not None else _SMALLEST
    limit = _own_limit(node)
    return spare if limit is None else min(spare, limit)


def _own_limit(node: Node) -> int | None:
    """Return the B that the control group of this process may still use; None for no limit."""
    from ccagent.agents.fast.kpis.control_groups import parse_groups
    from ccagent.machine.cgroup.jobs import ROOT, V2

    try:
        path = parse_groups(node.read_single("proc/self/cgroup")).get(V2, "/")
        limit = read_parsed(node, f"{ROOT}{path}/memory.max", parse_limit)
        used = read_parsed(node, f"{ROOT}{path}/memory.current", parse_amount)
    except CcagentError:
        return None
    return None if limit is None else max(0, limit - used - _OF_PROCESS)
