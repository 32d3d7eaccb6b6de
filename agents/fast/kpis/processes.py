"""Descendants of a process, cgroups that account for them alone, and their resource use."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cgroup.files import list_pids, parse_amount, parse_fields, parse_pids
from ccagent.machine.cgroup.jobs import MACHINE_SLICE, ROOT, V2, machine_of_scope
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import parse_stat, parse_statm
from ccagent.machine.virtual_machines import read_start

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ccagent.machine.node import Node

_MOST = 10_000
CPU_CONTROLLER, MEMORY_CONTROLLER = "cpuacct", "memory"
_USAGE = {b"usage_usec": ("cpu", 1000)}

Groups = dict[str, list[str]]
"""Directories of cgroups by controller of version 1, or by `v2`."""


class ResourceUsage(NamedTuple):
    """Use of cgroups or processes; None: unknown.

    cpu: total ns, of processes with awaited children. memory: B, charged to cgroups with their page
    cache, or resident pages of processes.
    """

    cpu: int | None
    memory: int | None


def list_tree(node: Node, process: int) -> list[int]:
    """Return the pids of a process and its visible descendants; empty if it has ended."""
    if read_start(node, process) is None:
        return []
    try:
        return _list_descendants(process, partial(_children, node))
    except NotHereError:  # a kernel without CONFIG_PROC_CHILDREN
        by_parent = _children_by_parent(node)
        return _list_descendants(process, lambda parent: by_parent.get(parent, []))


def _list_descendants(process: int, children: Callable[[int], Iterable[int]]) -> list[int]:
    tree = [process]
    seen = {process}
    for parent in tree:
        for child in children(parent):
            if child not in seen and len(tree) < _MOST:
                seen.add(child)
                tree.append(child)
    return tree


def read_tree(node: Node, processes: list[int]) -> ResourceUsage:
    """Return the summed use of processes without ended ones; unknown without processes."""
    if not processes:
        return ResourceUsage(None, None)
    ticks = pages = 0
    for process in processes:
        try:
            stat = parse_stat(node.read_single(f"proc/{process}/stat"))
            pages += parse_statm(node.read_single(f"proc/{process}/statm")).resident
        except CcagentError:
            continue
        ticks += stat.all_ticks
    return ResourceUsage(ticks * 1_000_000_000 // node.clock_ticks, pages * node.page_size)


def _children(node: Node, process: int) -> list[int]:
    """Return the children of a process. Raise NotHereError if the kernel does not list them."""
    path = f"proc/{process}/task"
    children: list[int] = []
    for thread in node.list_names(path):
        try:
            children += parse_pids(node.read_single(f"{path}/{thread}/children"))
        except NotHereError:
            if thread == str(process) and read_start(node, process) is not None:
                raise
        except CcagentError:
            continue
    return children


def _children_by_parent(node: Node) -> dict[int, list[int]]:
    """Return the children of each process by reading all processes."""
    children: dict[int, list[int]] = {}
    for name in node.list("proc"):
        if name.isdigit():
            try:
                stat = parse_stat(node.read_single(f"proc/{name}/stat"))
            except CcagentError:
                continue
            children.setdefault(stat.ppid, []).append(int(name))
    return children


def parse_groups(content: bytes) -> dict[str, str]:
    """Return the paths in /proc/PID/cgroup by controller of version 1, and by `v2`."""
    paths: dict[str, str] = {}
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/") and "/.." not in parts[2]:
            for controller in parts[1].split(",") if parts[1] else (V2,):
                paths.setdefault(controller, parts[2])
    return paths


def find_own_groups(node: Node, process: int, tree: Collection[int]) -> Groups:
    """Return the cgroups that contain only this process and its descendants.

    A scope of libvirt belongs to its machine, whatever runs in it.
    """
    try:
        paths = parse_groups(node.read_single(f"proc/{process}/cgroup"))
    except CcagentError:
        return {}
    groups: Groups = {}
    for controller in (CPU_CONTROLLER, MEMORY_CONTROLLER, V2):
        path = paths.get(controller, "/")
        if path == "/":
            continue
        top = ROOT if controller == V2 else f"{ROOT}/{controller}"
        scope = _scope(path)
        directory = top + (scope or path)
        if scope or _holds_only(node, directory, tree):
            groups[controller] = [directory]
    return groups


def read_groups(node: Node, groups: Mapping[str, list[str]]) -> ResourceUsage:
    """Read the counters of cgroups; several directories of a controller are summed."""
    cpu = memory = None
    if CPU_CONTROLLER in groups:
        cpu = _sum(node, groups[CPU_CONTROLLER], "cpuacct.usage")
    elif V2 in groups:
        cpu = _sum(node, groups[V2], "cpu.stat")
    if MEMORY_CONTROLLER in groups:
        memory = _sum(node, groups[MEMORY_CONTROLLER], "memory.usage_in_bytes")
    elif V2 in groups:
        memory = _sum(node, groups[V2], "memory.current")
    return ResourceUsage(cpu, memory)


def _holds_only(node: Node, directory: str, tree: Collection[int]) -> bool:
    """Return whether a cgroup contains processes of the tree and no others."""
    is_used = False
    for count, process in enumerate(list_pids(node, directory)):
        if process not in tree or count > _MOST:
            return False
        is_used = True
    return is_used


def _scope(path: str) -> str:
    """Return the part of a path up to the scope of a libvirt machine; empty without one."""
    parts = path.split("/")
    if len(parts) > 2 and parts[1] == MACHINE_SLICE and machine_of_scope(parts[2]):
        return "/".join(parts[:3])
    return ""


def _sum(node: Node, directories: Iterable[str], file: str) -> int | None:
    """Return the sum of a counter; None if it is unknown in one of the directories."""
    parse = _parse_usage if file == "cpu.stat" else parse_amount
    try:
        return sum(read_parsed(node, f"{directory}/{file}", parse) for directory in directories)
    except CcagentError:
        return None


def _parse_usage(content: bytes) -> int:
    usage = parse_fields(content, _USAGE).get("cpu")
    if usage is None:
        raise UnparsableError("no usage_usec")
    return usage
