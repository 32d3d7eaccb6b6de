"""Descendants of a process, and their resource use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.procfs.process_files import parse_stat

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_MOST = 10_000


class TreeUsage(NamedTuple):
    """Use of processes. cpu: total ns including awaited children. memory: resident B."""

    cpu: int
    memory: int


def read_start(node: Node, process: int) -> int | None:
    """Return the start of a process in ticks since boot; None without the process.

    Pid and start together identify a process: pids are reused.
    """
    try:
        return parse_stat(node.read_single(f"proc/{process}/stat")).starttime
    except CcagentError:
        return None


def list_tree(node: Node, process: int) -> list[int]:
    """Return the pids of a process and its visible descendants; empty if it has ended."""
    if read_start(node, process) is None:
        return []
    found = [process]
    seen = {process}
    try:
        for each in found:
            for child in _children(node, each):
                if child not in seen and len(found) < _MOST:
                    seen.add(child)
                    found.append(child)
    except NotHereError:  # a kernel without CONFIG_PROC_CHILDREN
        return _list_by_parents(node, process)
    return found


def read_tree(node: Node, processes: list[int]) -> TreeUsage:
    """Return the summed use of processes; skip ended ones."""
    ticks = pages = 0
    for process in processes:
        try:
            stat = parse_stat(node.read_single(f"proc/{process}/stat"))
            pages += parse_resident(node.read_single(f"proc/{process}/statm"))
        except CcagentError:
            continue
        ticks += stat.all_ticks
    return TreeUsage(ticks * 1_000_000_000 // node.clock_ticks, pages * node.page_size)


def parse_resident(content: bytes) -> int:
    """Return the resident pages of /proc/PID/statm. Raise UnparsableError if invalid."""
    fields = content.split(None, 2)
    if len(fields) < 2 or not fields[1].isdigit() or len(fields[1]) > 18:
        raise UnparsableError(f"not a number of pages: {content[:80]!r}")
    return int(fields[1])


def parse_processes(content: bytes) -> list[int]:
    """Parse the pids in `children` or `cgroup.procs`; skip other words."""
    return [int(word) for word in content.split() if word.isdigit() and len(word) <= 10]


def _children(node: Node, process: int) -> list[int]:
    """Return the children of a process. Raise NotHereError if the kernel does not list them."""
    path = f"proc/{process}/task"
    try:
        threads = node.list(path)
    except CcagentError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            found += parse_processes(node.read_single(f"{path}/{thread}/children"))
        except NotHereError:
            if thread == str(process) and read_start(node, process) is not None:
                raise
        except CcagentError:
            continue
    return found


def _list_by_parents(node: Node, process: int) -> list[int]:
    """Find the descendants by reading all processes."""
    children: dict[int, list[int]] = {}
    for name in node.list("proc"):
        if name.isdigit():
            try:
                stat = parse_stat(node.read_single(f"proc/{name}/stat"))
            except CcagentError:
                continue
            children.setdefault(stat.ppid, []).append(int(name))
    found = [process]
    for each in found:
        found += [child for child in children.get(each, []) if child not in found]
    return found[:_MOST]
