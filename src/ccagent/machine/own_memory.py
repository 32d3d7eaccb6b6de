"""Memory of this process: what it uses, and what its control group and machine permit."""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.cgroup.files import parse_limit
from ccagent.machine.cgroup.jobs import ROOT
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import parse_statm

if TYPE_CHECKING:
    from ccagent.machine.node import Node


_M_ARENA_MAX = -8
"""Option of mallopt(3)."""


def share_heap() -> None:
    """Use one heap for all threads.

    glibc gives new threads heaps of their own, which keep what was used once: reloads that replace
    the threads of sinks and agents would make the process ever larger. Only one Python thread runs
    at a time, so a common heap costs nothing.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def read_resident() -> int:
    """Return the resident memory of this process in bytes (/proc/self/statm); 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return parse_statm(file.read()).resident * resource.getpagesize()
    except (OSError, UnparsableError):
        return 0


def find_permitted_memory(node: Node) -> int:
    """Return the bytes that this process may use: of its control groups, or of the machine.

    systemd's MemoryMax= is the limit of a control group. A group's parents limit it, too.
    """
    # sysinfo(2): /proc/meminfo is hidden by ProcSubset=pid.
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        groups = node.read_single("proc/self/cgroup").decode("utf-8", "surrogateescape")
    except CcagentError:
        return found
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if not controllers:
            folder, name = ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = f"{ROOT}/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            try:
                limit = read_parsed(node, "/".join([folder, *parts[:depth], name]), parse_limit)
            except CcagentError:
                continue  # the root has no limit; a container sees only its own groups
            found = min(found, limit or found)
    return found
