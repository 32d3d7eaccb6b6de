"""Parsers of the files of a control group, and jobs by the inodes of their groups.

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.cgroup.jobs import known_directories
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node, NodeFiles


# LONG_MAX, rounded down to pages of up to 64 KiB.
_NO_LIMIT = 2**63 - 2**16
_DEVICE, _COUNT = rb"([0-9]{1,4}:[0-9]{1,7})", rb"([0-9]{1,20})"
# The form of blkcg_print_one_stat() in block/blk-cgroup.c.
_IO = re.compile(rb"\b%b rbytes=%b wbytes=%b(?: rios=%b wios=%b)?\b" % (_DEVICE, *[_COUNT] * 4))
_IO_V1 = re.compile(rb"\b%b (?:Read|(Write)) %b\b" % (_DEVICE, _COUNT))


def parse_amount(content: bytes) -> int:
    """Parse a file of one number. Raise UnparsableError for other content."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return _uint(text)


def parse_limit(content: bytes) -> int | None:
    """Parse memory.max or memory.limit_in_bytes: B; None: no limit. Raise UnparsableError."""
    if content.strip() == b"max":
        return None
    limit = parse_amount(content)
    return limit if limit < _NO_LIMIT else None


def parse_fields(content: bytes, wanted: dict[bytes, tuple[str, int]]) -> dict[str, int]:
    """Parse lines `name number` of cpu.stat, memory.events and memory.oom_control.

    wanted: field and factor by name; missing lines are omitted. Raise UnparsableError for a number
    out of range.
    """
    found = dict(_lines_of(tuple(wanted)).findall(b"\n" + content))
    numbers = {name: int(digits) for name, digits in found.items()}
    if numbers and max(numbers.values()) > LARGEST_UINT:
        raise UnparsableError(f"a number is out of range: {max(numbers.values())}")
    return {
        called: numbers[name] * factor
        for name, (called, factor) in wanted.items()
        if name in numbers
    }


@cache
def _lines_of(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for the lines of these names only: memory.stat has many others."""
    return re.compile(rb"\n(" + b"|".join(map(re.escape, names)) + rb") ([0-9]{1,20})(?![^\n])")


def parse_io(content: bytes) -> dict[str, tuple[int, ...]]:
    """Parse io.stat, v1 blkio.*io_service_bytes_recursive: B read, written by `major:minor`.

    Read and write requests follow, if the line has them. Lines `8:0 rbytes=1 wbytes=2 rios=1 wios=1
    dbytes=0 dios=0`, or `8:0 Read 1` and `8:0 Write 2`. Some kernels omit the line break after an
    idle device. A device `(unknown)` is omitted. Raise UnparsableError for a number out of range.
    """
    found = {
        device.decode("ascii"): tuple(_uint(number) for number in numbers if number)
        for device, *numbers in _IO.findall(content)
    }
    for device, is_write, number in _IO_V1.findall(content):
        name = device.decode("ascii")
        read, written, *_ = found.get(name, (0, 0))
        value = _uint(number)
        found[name] = (read, value) if is_write else (value, written)
    return found


def _uint(digits: bytes) -> int:
    number = int(digits)
    if number > LARGEST_UINT:
        raise UnparsableError(f"a number is out of range: {number}")
    return number


Id = tuple[str, int]
"""A controller, or `v2`, and an inode number: each hierarchy of version 1 has its own numbers."""

_V1 = ("cpuacct", "memory", "pids", "freezer", "devices")
_ANY = re.compile(r".*", re.DOTALL)
_MOST_GROUPS = 10_000
"""Groups of a job that are read: its user may create any number in a delegated one."""
_DEEPEST = 4
"""Levels below a job: step_0/user/task_0."""

_RETRY_AFTER = 5.0
_KNOWN_FOR = 600.0
_MOST = 100_000


def parse_pids(content: bytes) -> list[int]:
    """Parse the pids in `cgroup.procs` or `children`; skip other words."""
    return [int(word) for word in content.split() if word.isdigit() and len(word) <= 10]


def list_pids(
    node: NodeFiles, path: str, depth: int = 5, *, below: int = 0, named: re.Pattern[str] = _ANY
) -> Iterator[int]:
    """Yield the pids in a control group and `depth` levels under it; skip unreadable groups.

    below: upper levels whose own processes are omitted. named: names of the groups that count.
    """
    waiting = [(path, 0)]
    for _ in range(_MOST_GROUPS):
        if not waiting:
            return
        group, level = waiting.pop()
        if level >= below:
            try:
                content = node.read(f"{group}/cgroup.procs")
            except CcagentError:  # a threaded group (v2) lists no processes
                content = b""
            yield from parse_pids(content)
        if level < depth:
            try:
                names = [name for name in node.directories(group) if named.fullmatch(name)]
            except CcagentError:
                continue
            waiting += [(f"{group}/{name}", level + 1) for name in reversed(names)]


class JobInodes:
    """Ids of the jobs' control groups. An unknown id causes a new reading of the directories.

    Removed groups are kept for some time, because ended processes are counted later.
    """

    def __init__(self) -> None:
        self._jobs: dict[Id, tuple[int, float]] = {}
        self._listed_at: float | None = None

    def job(self, node: Node, ids: tuple[Id, ...]) -> int:
        """Return the job of the first known id; 0 if none is known."""
        found = self._find(ids)
        now = node.clock.monotonic()
        if not found and (self._listed_at is None or now >= self._listed_at + _RETRY_AFTER):
            self._listed_at = now
            self._jobs = {
                each: known for each, known in self._jobs.items() if known[1] > now - _KNOWN_FOR
            }
            for each, job in _list_ids(node):
                if len(self._jobs) < _MOST:
                    self._jobs[each] = job, now
            found = self._find(ids)
        return found

    def _find(self, ids: tuple[Id, ...]) -> int:
        return next((self._jobs[each][0] for each in ids if each in self._jobs), 0)


def _list_ids(node: Node) -> Iterator[tuple[Id, int]]:
    """Yield the ids of all control groups of jobs, with the job."""
    for each in known_directories(node, _V1):
        for inode in _below(node, each.path, _DEEPEST):
            yield (each.controller, inode), each.job


def _below(node: Node, path: str, depth: int) -> Iterator[int]:
    try:
        yield node.inode(path)
        names = node.directories(path) if depth else ()
    except CcagentError:
        return
    for name in names:
        yield from _below(node, f"{path}/{name}", depth - 1)
