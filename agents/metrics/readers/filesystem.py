"""Reader of space and inodes of local file systems. A hung file system is skipped."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_mountinfo
from ccagent.machine.space import SpaceQueries, escape

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Sequence

    from ccagent.machine.node import Node

LOCAL = (
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "reiserfs", "xfs", "zfs",
)  # fmt: skip
"""Types of file systems on disks. Images (squashfs, iso9660...) are excluded: always full."""

_MOST_HANGING = 32


class Space(NamedTuple):
    """Result of statvfs(3). size, free (for users), used: B. inodes: 0 without a limit."""

    size: int
    free: int
    used: int
    inodes: int
    inodes_used: int


def local_mounts(
    mounts: Iterable[Mount], types: Collection[str], exclude: Sequence[str]
) -> list[Mount]:
    """Return one mount of each file system of these types. exclude: patterns of mount points.

    Only the last of several mounts at one point is visible. Datasets of a ZFS pool share its space.
    """
    reachable = {mount.point: mount for mount in mounts}
    found: dict[str, Mount] = {}
    for mount in reachable.values():
        if mount.type in types and not any(fnmatchcase(mount.point, each) for each in exclude):
            is_zfs = mount.type == "zfs"
            found.setdefault(mount.source.partition("/")[0] if is_zfs else mount.device, mount)
    return list(found.values())


def space_of(answer: os.statvfs_result) -> Space:
    """Return space as df(1) computes it."""
    unit = answer.f_frsize or answer.f_bsize
    return Space(
        size=answer.f_blocks * unit,
        free=answer.f_bavail * unit,
        used=max(0, answer.f_blocks - answer.f_bfree) * unit,
        inodes=answer.f_files,
        inodes_used=max(0, answer.f_files - answer.f_ffree),
    )


class FilesystemSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.filesystem]."""

    types: Annotated[tuple[str, ...], Meta(description="types of file systems to count")] = LOCAL
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of mount points to ignore")] = (
        "/boot",
        "/boot/*",
    )
    time_limit: Annotated[
        Duration,
        Meta(description="time after which a hung file system is skipped until it answers"),
    ] = Duration("1s")


class FilesystemReader(Reader[FilesystemSettings]):
    """Space of the node, and use of its fullest file system.

    A hung file system is queried again after it has answered.
    """

    name = "filesystem"
    Settings = FilesystemSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "disk_total": Metric("B", "node", "size of all local file systems",
            "/proc/self/mountinfo; statvfs, f_blocks"),
        "disk_free": Metric("B", "node", "space available to users, all local file systems",
            "/proc/self/mountinfo; statvfs, f_bavail"),
        "part_max_used": Metric("%", "node", "use of the fullest local file system, as in df",
            "/proc/self/mountinfo; statvfs, f_blocks, f_bfree, f_bavail", aggregation="max"),
        "part_max_inodes_used": Metric("%", "node",
            "inodes in use, of the local file system with the lowest share left",
            "/proc/self/mountinfo; statvfs, f_files, f_ffree", aggregation="max"),
    }  # fmt: skip

    def __init__(self, settings: FilesystemSettings | None = None) -> None:
        super().__init__(settings)
        self._queries = SpaceQueries(_MOST_HANGING)
        self._table = b""
        self._mounts: list[Mount] = []

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """List the mounts and query all of them. Wait only once for a hung file system."""
        self.forget_errors()
        mounts = read_parsed(node, MOUNTINFO, self._local_mounts)
        if not mounts:
            raise NotHereError(f"/{MOUNTINFO}: no local file system")
        limit = self.settings.time_limit.seconds
        answers = self._queries.ask(node, [mount.point for mount in mounts], limit)
        self.errors += self._queries.problems
        spaces: list[Space] = []
        for answer in answers.values():
            if not isinstance(answer, CcagentError):
                spaces.append(space_of(answer))
            elif not isinstance(answer, NotHereError):
                self.errors.append(escape(str(answer)))
        spaces = [space for space in spaces if space.size]
        if not spaces:
            return []
        found = [
            Gauge("disk_total", sum(space.size for space in spaces)),
            Gauge("disk_free", sum(space.free for space in spaces)),
            Gauge("part_max_used", max(_percent(each.used, each.free) for each in spaces)),
        ]
        inodes = [100 * space.inodes_used / space.inodes for space in spaces if space.inodes]
        if inodes:
            found.append(Gauge("part_max_inodes_used", max(inodes)))
        return found

    def _local_mounts(self, table: bytes) -> list[Mount]:
        """Return the mounts that count. Parse the table only after a change."""
        if table != self._table:
            mounts = parse_mountinfo(table)
            self._mounts = local_mounts(mounts, self.settings.types, self.settings.exclude)
            self._table = table
        return self._mounts


def _percent(used: int, free: int) -> float:
    return 100 * used / (used + free) if used + free else 0.0
