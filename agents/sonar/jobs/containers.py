"""Detection of processes in containers, by namespaces and root directory. See namespaces(7).

A process is in a container if it has another PID namespace than process 1, or another mount
namespace and another root directory or user namespace. Services of systemd have mount namespaces of
their own (PrivateTmp=, ProtectSystem=), with the root and the users of the machine.

/proc/PID/ns is for the process's user and for CAP_SYS_PTRACE, and is read first: it is cheap.
Everybody may read the PIDs in nested namespaces (NSpid in `status`), the mounts, with other ids in
each namespace, and the map of users.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_NESTED = re.compile(rb"^NSpid:\t[0-9]+\t", re.MULTILINE)
_MOUNT = re.compile(rb"^([0-9]+) [0-9]+ ([0-9]+:[0-9]+ [^ \n]+) ([^ \n]+) ", re.MULTILINE)
_FIRST = "proc/1"
_SELF = "proc/self"
_PIDS, _MOUNTS = "/ns/pid", "/ns/mnt"
_SHORTEST_LINE = 20


class RootMount(NamedTuple):
    """The mounts of a process. root: device and directory of `/`, empty if `/` is no mount.

    number: id of the mount at `/`. numbers: ids of all mounts; each namespace has others.
    """

    root: bytes
    number: bytes
    numbers: frozenset[bytes]


def parse_root_mount(mountinfo: bytes) -> RootMount:
    """Parse /proc/PID/mountinfo. The last of several mounts at `/` hides the others."""
    root = number = b""
    numbers: list[bytes] = []
    for each, source, point in _MOUNT.findall(mountinfo):
        numbers.append(each)
        if point == b"/":
            root, number = source, each
    return RootMount(root, number, frozenset(numbers))


def is_in_nested_pids(status: bytes) -> bool:
    """Return whether /proc/PID/status is of a process in a PID namespace below the reader's."""
    return _NESTED.search(status) is not None


class Containers:
    """The mounts of process 1, and a comparison of other processes with it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._first = RootMount(b"", b"", frozenset())
        self._outside = self._find_outside()

    def is_inside(self, pid: int | str) -> bool:
        """Return whether a process is in a container. Raise the errors of Node.read."""
        path = f"proc/{pid}"
        if self._outside is not None:
            # The links are read, not followed: that costs the kernel half as much.
            link = self._node.link
            pids, mounts = self._outside
            try:
                if link(path + _PIDS) != pids:
                    return True
                if link(path + _MOUNTS) == mounts:
                    return False
            except CcagentError:
                pass
        return self._is_inside_by_mounts(path)

    def _find_outside(self) -> tuple[str, str] | None:
        """Return the namespaces of a process outside of containers; None if none is readable.

        Some security modules forbid those of process 1 even for root.
        """
        for path in (_FIRST, _SELF):
            try:
                found = self._node.link(path + _PIDS), self._node.link(path + _MOUNTS)
                if path == _FIRST or not self._is_inside_by_mounts(path):
                    return found
            except CcagentError:
                continue
        return None

    def _is_inside_by_mounts(self, path: str) -> bool:
        # The kernel formats a line of each mount, but no more of them than are read.
        number = self._node.read_start(f"{path}/mountinfo", _SHORTEST_LINE).partition(b" ")[0]
        if is_in_nested_pids(self._node.read_single(f"{path}/status")):
            return True
        if number in self._first.numbers:
            return False
        self._first = parse_root_mount(self._node.read(f"{_FIRST}/mountinfo"))
        mounts = parse_root_mount(self._node.read(f"{path}/mountinfo"))
        if number in self._first.numbers:
            return False
        # Without a mount at `/` the root directory is that of chroot(2).
        if mounts.root and mounts.root != self._first.root:
            return True
        return self._users(path) != self._users(_FIRST)

    def _users(self, path: str) -> bytes:
        return self._node.read_single(f"{path}/uid_map")
