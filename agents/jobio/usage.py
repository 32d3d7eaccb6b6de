"""I/O of jobs by mount, and their network traffic: counters, deltas, and the check of both."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.log import logger, printable
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.io_records import (
    LARGEST_READING,
    OTHER_DEVICES,
    IoCounts,
    IoKey,
    JobTraffic,
    NetworkKey,
    count_lost,
    missing_hooks,
    parse_io,
    parse_network,
)
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import known_directories
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ccagent.machine.bpf.io_records import IoReading, NetworkReading
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

K = TypeVar("K")
V = TypeVar("V", IoCounts, JobTraffic)
_KEPT = frozenset({"since", "magic"})

METADATA = (
    "opens", "creates", "links", "unlinks", "mkdirs", "rmdirs", "renames", "stats", "readdirs",
    "statfs",
)  # fmt: skip
"""Fields of IoCounts that count metadata operations."""

_LOAD = "as root: ccagent kernel load --io"


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


class Deltas(Generic[K, V]):
    """Deltas between consecutive readings.

    The delta of a new entry is its whole value: it was created since the last reading. The first
    reading has no deltas, because its entries may be old.
    """

    def __init__(self) -> None:
        self._before: Mapping[K, V] | None = None

    def of(self, entries: Mapping[K, V]) -> Iterator[tuple[K, V, V]]:
        """Yield key, delta and counters of each entry. Store the reading for the next call."""
        before, self._before = self._before, entries
        if before is None:
            return
        for key, counts in entries.items():
            yield key, subtract(counts, before.get(key)), counts


def subtract(counts: V, before: V | None) -> V:
    """Return the delta of two readings of an entry. A different `since` means a new entry."""
    if before is None or before.since != counts.since:
        return counts
    deltas = [
        value if name in _KEPT else max(0, value - old)
        for name, value, old in zip(counts._fields, counts, before, strict=True)
    ]
    return type(counts)(*deltas)


def add(counts: V, other: V) -> V:
    """Return the sums of two entries, with the earlier `since`."""
    sums = [
        min(value, more) if name in _KEPT else value + more
        for name, value, more in zip(counts._fields, counts, other, strict=True)
    ]
    return type(counts)(*sums)


def is_idle(counts: IoCounts | JobTraffic) -> bool:
    """Return whether all deltas are 0."""
    return not any(
        value for name, value in zip(counts._fields, counts, strict=True) if name not in _KEPT
    )


class MountUse(NamedTuple):
    """I/O of a job on a mount. total: since the job's first I/O on the mount."""

    job: int
    mount: MountName
    delta: IoCounts
    total: IoCounts


class NetworkUse(NamedTuple):
    """Traffic of a job through sockets."""

    job: int
    protocol: str
    is_loopback: bool
    delta: JobTraffic
    total: JobTraffic


class JobIoUse(NamedTuple):
    """I/O between two readings. seconds: between them. features, lost, missed: of the programs."""

    seconds: float
    mounts: list[MountUse]
    network: list[NetworkUse]
    features: int
    lost: int
    missed: int


class JobIoUsage:
    """A reader of the kernel's counters, with deltas between readings."""

    def __init__(self, directory: str = pins.DIRECTORY, allowed: tuple[str, ...] = ()) -> None:
        self._directory = directory.strip("/")
        self._names = MountNames(allowed)
        self._io: Deltas[IoKey, IoCounts] = Deltas()
        self._network: Deltas[NetworkKey, JobTraffic] = Deltas()
        self._time: int | None = None
        self._lost = 0

    def read(self, node: Node) -> JobIoUse:
        """Return the I/O since the last reading; without mounts and traffic at the first reading.

        Raise NotHereError if the programs are not loaded, NotPermittedError if this user may not
        read them, UnparsableError if they have another version.
        """
        io, network = read_counters(node, self._directory)
        now = io.header.time
        seconds = 0.0 if self._time is None else (now - self._time) / 1e9
        self._time = now
        self._note_lost(count_lost(io, network))
        try:
            self._names.read(node)
        except CcagentError as error:
            logger.warning("agent jobio: can't read the names of mounts: %s", error)
        self._names.forget(io.entries)
        uses = (
            MountUse(key.job, self._names.name(node, key, total.magic), delta, total)
            for key, delta, total in self._io.of(io.entries)
        )
        traffic = [
            NetworkUse(*key, delta, total)
            for key, delta, total in self._network.of(network.entries)
        ]
        return JobIoUse(
            seconds, merge_mounts(uses), traffic, io.header.features, self._lost, io.missed
        )

    def _note_lost(self, lost: int) -> None:
        if lost > self._lost:
            logger.warning(
                "agent jobio: %d calls of jobs are not counted: the kernel's table is full",
                lost - self._lost,
            )
        self._lost = lost


def read_counters(node: Node, directory: str) -> tuple[IoReading, NetworkReading]:
    """Read both pinned files. Raise the errors of JobIoUsage.read."""
    below = directory.strip("/")
    return (
        parse_io(node.read(f"{below}/{pins.IO}", LARGEST_READING)),
        parse_network(node.read(f"{below}/{pins.NETWORK}", LARGEST_READING)),
    )


def merge_mounts(uses: Iterable[MountUse]) -> list[MountUse]:
    """Return the uses, with those of equal job and mount name summed up."""
    merged: dict[tuple[int, MountName], MountUse] = {}
    for added in uses:
        use, known = added, merged.get((added.job, added.mount))
        if known is not None:
            use = use._replace(delta=add(known.delta, use.delta), total=add(known.total, use.total))
        merged[use.job, use.mount] = use
    return list(merged.values())


def bytes_read(counts: IoCounts) -> int:
    """Return the bytes read in all ways except mmap(2)."""
    return counts.read_bytes + counts.async_read_bytes + counts.splice_read_bytes


def bytes_written(counts: IoCounts) -> int:
    """Return the bytes written in all ways except mmap(2)."""
    return counts.write_bytes + counts.async_write_bytes + counts.splice_write_bytes


def read_calls(counts: IoCounts) -> int:
    """Return the number of reads in all ways except mmap(2)."""
    return counts.reads + counts.async_reads + counts.splice_reads


def write_calls(counts: IoCounts) -> int:
    """Return the number of writes in all ways except mmap(2)."""
    return counts.writes + counts.async_writes + counts.splice_writes


def metadata_operations(counts: IoCounts) -> int:
    """Return the sum of the counters in METADATA."""
    return sum(getattr(counts, name) for name in METADATA)


def remedy(error: CcagentError) -> str:
    """Return the fix for unreadable programs."""
    if isinstance(error, NotPermittedError):
        return f"add the user to the group, or {_LOAD} --group NAME"
    return _LOAD


def require_io_programs(node: Node, directory: str) -> Check:
    """Return the check of the pinned programs, which the agent requires."""
    return Check(
        "kernel",
        "I/O by job",
        partial(find_io_programs, node, directory),
        "I/O and network traffic of jobs",
        is_vital=True,
    )


def find_io_programs(node: Node, directory: str) -> CheckResult:
    """Check whether the programs are readable. Name the values that they can't count."""
    try:
        io, _ = read_counters(node, directory)
    except NotHereError:
        return CheckResult("missing", f"{directory}: no programs for I/O are loaded", _LOAD)
    except NotPermittedError as error:
        return CheckResult("problem", f"{directory}: this user may not read them", remedy(error))
    missing = ", ".join(hook.counts for hook in missing_hooks(io.header.features))
    entries = f"{directory}: {len(io.entries)} entries"
    return CheckResult(
        "good", f"{entries}; this kernel can't count: {missing}" if missing else entries
    )


def read_totals(
    node: Node, directory: str, job: int | None, names: MountNames | None = None
) -> tuple[list[MountUse], list[NetworkUse], int]:
    """Return the totals of all jobs or one, most bytes first, and the number of lost calls.

    names: of an earlier reading, with the mounts of jobs that have ended. Raise the errors of
    JobIoUsage.read.
    """
    io, network = read_counters(node, directory)
    if names is None:
        names = MountNames()
    names.read(node)
    mounts = merge_mounts(
        MountUse(key.job, names.name(node, key, counts.magic), counts, counts)
        for key, counts in io.entries.items()
        if job in {None, key.job}
    )
    mounts.sort(key=lambda use: -bytes_read(use.total) - bytes_written(use.total))
    traffic = [
        NetworkUse(*key, counts, counts)
        for key, counts in network.entries.items()
        if job in {None, key.job}
    ]
    return mounts, traffic, count_lost(io, network)
