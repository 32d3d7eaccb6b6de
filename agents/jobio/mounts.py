"""Mount names by device: mounts of the node, and mounts that are only visible to a job."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.log import printable
from ccagent.machine.bpf.io_records import OTHER_DEVICES, IoKey
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import known_directories
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.node import Node

OTHER = "other"
GONE = "unknown"
"""Mount point of file systems that are unmounted, or were mounted in an ended container."""

_FILE_SYSTEMS = {
    0xEF53: "ext4", 0x01021994: "tmpfs", 0x58465342: "xfs", 0x9123683E: "btrfs",
    0x6969: "nfs", 0x65735546: "fuse", 0x794C7630: "overlay", 0x0BD00BD0: "lustre",
    0x47504653: "gpfs", 0x19830326: "beegfs", 0x00C36400: "ceph", 0xFF534D42: "cifs",
    0x01021997: "9p", 0x73717368: "squashfs", 0x2FC12FC1: "zfs", 0x958458F6: "hugetlbfs",
}  # fmt: skip
"""File system types by number in statfs(2), for file systems without a known mount."""

_MOST_KNOWN = 10_000
_MOST_PROCESSES = 4
_LONGEST = 200
_LONGEST_LIST = 1 << 20
"""Maximum of bytes of a job's mountinfo: users can create 100,000 mounts in a namespace."""


class MountName(NamedTuple):
    """The name of a file system: mount point, type and source."""

    point: str
    type: str
    source: str


_OTHERS = MountName(OTHER, OTHER, "")


class MountNames:
    """Mount names by device, cached: devices keep their names after the end of a job."""

    def __init__(self, allowed: tuple[str, ...] = ()) -> None:
        self._allowed = allowed
        self._of_node: dict[str, MountName] = {}
        self._of_jobs: dict[IoKey, MountName] = {}
        self._seen_by: dict[int, dict[str, MountName]] = {}

    def read(self, node: Node) -> None:
        """Read the current mounts of the node. Raise the errors of Node.read."""
        self._seen_by.clear()
        self._of_node = dict(_names(node.read(MOUNTINFO)))

    def name(self, node: Node, key: IoKey, magic: int) -> MountName:
        """Return the name of an entry's file system, from the node's mounts, else from the job's.

        Mount points that are not allowed become `other`.
        """
        if key.device == OTHER_DEVICES:
            return _OTHERS
        name = self._of_node.get(key.major_minor) or self._of_jobs.get(key)
        if name is None and key.job:
            if key.job not in self._seen_by:
                self._seen_by[key.job] = _seen_by(node, key.job)
            name = self._seen_by[key.job].get(key.major_minor)
            if name is not None:
                if len(self._of_jobs) >= _MOST_KNOWN:
                    self._of_jobs.clear()
                self._of_jobs[key] = name
        if name is None:
            name = MountName(GONE, type_name(magic), "")
        if self._allowed and not any(fnmatchcase(name.point, form) for form in self._allowed):
            return _OTHERS
        return name

    def forget(self, keys: Iterable[IoKey]) -> None:
        """Remove the cached names of all other entries."""
        kept = set(keys)
        self._of_jobs = {key: name for key, name in self._of_jobs.items() if key in kept}


def _seen_by(node: Node, job: int) -> dict[str, MountName]:
    """Return the mounts in the namespaces of some processes of a job, by device."""
    names: dict[str, MountName] = {}
    seen: set[bytes] = set()
    for pid in _some_processes(node, job):
        with suppress(CcagentError):
            content = node.read(f"proc/{pid}/mountinfo", _LONGEST_LIST)
            if content not in seen:
                seen.add(content)
                names |= dict(_names(content))
    return names


def type_name(magic: int) -> str:
    """Return the type of a file system by its number in statfs(2), else the number in hex."""
    return _FILE_SYSTEMS.get(magic, f"{magic:#x}")


def _names(content: bytes) -> Iterator[tuple[str, MountName]]:
    """Yield device and name. For each device the mount with the shortest path comes last."""
    mounts = parse_mountinfo(content)
    for mount in sorted(mounts, key=lambda mount: -len(mount.point)):
        yield mount.device, MountName(*map(_clean, (mount.point, mount.type, mount.source)))


def _clean(text: str) -> str:
    """Return a name safe as tag and on terminals: users choose names of FUSE and containers."""
    return printable(text)[:_LONGEST].rstrip("\\") or "?"


def _some_processes(node: Node, job: int) -> list[int]:
    pids: list[int] = []
    for directory in known_directories(node, ("freezer", "cpuacct", "memory", "cpuset")):
        if directory.job == job:
            pids += list_pids(node, directory.path)
        if len(pids) >= _MOST_PROCESSES:
            break
    # The last processes are more likely the job's than Slurm's.
    return sorted(set(pids), reverse=True)[:_MOST_PROCESSES]
