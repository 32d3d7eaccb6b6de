"""The collector of mounted file systems: filesystem. A hanging mount only loses its own values."""

from __future__ import annotations

import re
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.filesystem import LOCAL
from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import gauge
from ccagent.machine.background import BackgroundCall
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.mountinfo import Mount

_LABELS = ("device", "fstype", "mountpoint")
_SIZE = gauge("node_filesystem_size_bytes", "Filesystem size in bytes.", *_LABELS)
_FREE = gauge("node_filesystem_free_bytes", "Filesystem free space in bytes.", *_LABELS)
_AVAIL = gauge(
    "node_filesystem_avail_bytes",
    "Filesystem space available to non-root users in bytes.", *_LABELS,
)  # fmt: skip
_FILES = gauge("node_filesystem_files", "Filesystem total file nodes.", *_LABELS)
_FILES_FREE = gauge("node_filesystem_files_free", "Filesystem total free file nodes.", *_LABELS)
_READONLY = gauge("node_filesystem_readonly", "Filesystem read-only status.", *_LABELS)
_ERROR = gauge(
    "node_filesystem_device_error",
    "Whether an error occurred while getting statistics for the given device.", *_LABELS,
)  # fmt: skip
_PATIENCE = 0.5
_TURN = 3.0
"""Maximum of seconds per scrape for hanging mounts. The remaining mounts are read next time."""
_MOST_HANGING = 64
_MOST_MOUNTS = 1000
"""Maximum of mounts with series: users can mount FUSE file systems without limit."""
_INIT = "proc/1/mountinfo"
_READ_ONLY_FLAG = 1
"""ST_RDONLY of statvfs(3)."""


class SpaceQuery:
    """A thread that calls statvfs(3) for a list of paths. It ends after a call that hung."""

    def __init__(self, node: Node, points: Sequence[str]) -> None:
        self.answers: dict[str, os.statvfs_result | None] = {}
        self.is_abandoned = False
        self._points = points
        self.call = BackgroundCall(partial(self._run, node), "exporter-statvfs")

    def _run(self, node: Node) -> None:
        for point in self._points:
            if self.is_abandoned:
                return
            try:
                self.answers[point] = node.space(point.lstrip("/"))
            except CcagentError:
                self.answers[point] = None


class FilesystemCollector(Collector):
    """Size, free space and inodes by mount point."""

    name = "filesystem"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        chosen = settings.node_exporter
        self._points = re.compile(chosen.filesystem_exclude)
        self._types = re.compile(chosen.filesystem_types_exclude)
        self._hanging: dict[str, SpaceQuery] = {}
        self._answering: set[str] = set()

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the mounts of process 1, or of this process, and the space of each.

        Raise NotHereError if all mounts are excluded.
        """
        mounts = self._list(node)
        answers = self._ask(node, [*mounts.values()])
        errors: list[tuple[Labels, float]] = []
        rows: dict[Family, list[tuple[Labels, float]]] = {
            each: [] for each in (_SIZE, _FREE, _AVAIL, _FILES, _FILES_FREE, _READONLY)
        }
        for labels, mount in mounts.items():
            space = answers.get(mount.point)
            errors.append((labels, int(space is None)))
            if space is None:
                continue
            unit = space.f_frsize or space.f_bsize
            rows[_SIZE].append((labels, space.f_blocks * unit))
            rows[_FREE].append((labels, space.f_bfree * unit))
            rows[_AVAIL].append((labels, space.f_bavail * unit))
            rows[_FILES].append((labels, space.f_files))
            rows[_FILES_FREE].append((labels, space.f_ffree))
            rows[_READONLY].append((labels, space.f_flag & _READ_ONLY_FLAG))
        yield _ERROR, errors
        yield from rows.items()

    def _list(self, node: Node) -> dict[Labels, Mount]:
        try:
            mounts = read_parsed(node, _INIT, parse_mountinfo)
        except CcagentError:
            mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
        found: dict[Labels, Mount] = {
            (mount.source, mount.type, mount.point): mount
            for mount in mounts
            if not self._points.search(mount.point) and not self._types.search(mount.type)
        }
        if not found:
            raise NotHereError(f"/{MOUNTINFO}: all file systems are excluded")
        if len(found) > _MOST_MOUNTS:
            self.warn(f"{len(found)} mounts: only the first {_MOST_MOUNTS} have series")
        return dict(islice(found.items(), _MOST_MOUNTS))

    def _ask(self, node: Node, mounts: list[Mount]) -> dict[str, os.statvfs_result | None]:
        """Return the result of statvfs by mount point: None if it failed, missing if it hangs.

        Mounts that answered last time come first, then local mounts: the many mounts of a dead
        server must not delay the others.
        """
        begin = time.monotonic()
        self._hanging = {
            point: query for point, query in self._hanging.items() if not query.call.is_done
        }
        mounts = [mount for mount in mounts if mount.point not in self._hanging]
        mounts.sort(key=lambda each: (each.point not in self._answering, each.type not in LOCAL))
        left: list[str] = [*dict.fromkeys(mount.point for mount in mounts)]
        answers: dict[str, os.statvfs_result | None] = {}
        while left:
            if len(self._hanging) >= _MOST_HANGING:
                left = [point for point in left if point in self._answering]
            query = SpaceQuery(node, left)
            is_done = query.call.wait(_PATIENCE)
            query.is_abandoned = True
            answers |= dict(query.answers)
            left = [point for point in left if point not in answers]
            if is_done or not left:
                break
            self._hanging[left[0]] = query
            self.warn(f"{left[0]!r} hangs; skipped until it answers")
            left = left[1:]
            if time.monotonic() > begin + _TURN:
                break
        self._answering = {point for point, space in answers.items() if space is not None}
        return answers
