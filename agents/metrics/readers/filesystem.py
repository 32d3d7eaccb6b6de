"""Reader of space and inodes of local file systems. A hung file system is skipped."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.background import BackgroundCall
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Sequence

    from ccagent.machine.node import Node
    from ccagent.machine.procfs.mountinfo import Mount

LOCAL = (
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "reiserfs", "xfs", "zfs",
)  # fmt: skip
"""Types of file systems on disks. Images (squashfs, iso9660...) are excluded: always full."""

_MOST_HANGING = 32
_PATIENCE = 0.05


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


class _Round:
    """Sequential statvfs calls in a thread. The thread ends after a call that hung."""

    def __init__(self, node: Node, points: Sequence[str]) -> None:
        self.answers: dict[str, os.statvfs_result | CcagentError] = {}
        self._node = node
        self._points = points
        self._is_left = False
        self._thread = threading.Thread(target=self._run, name="statvfs", daemon=True)
        self._thread.start()

    def collect(self, seconds: float) -> dict[str, os.statvfs_result | CcagentError]:
        """Wait for at most `seconds`. Return the answers so far."""
        self._thread.join(seconds)
        self._is_left = True
        return dict(self.answers)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Return whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def checked_result(self) -> os.statvfs_result:
        """Return the result of the last queried file system, or raise its error."""
        for point in reversed(self._points):
            answer = self.answers.get(point)
            if isinstance(answer, CcagentError):
                raise answer
            if answer is not None:
                return answer
        raise NotHereError("no answer")

    def _run(self) -> None:
        for point in self._points:
            if self._is_left:
                return
            try:
                self.answers[point] = self._node.space(point.lstrip("/"))
            except CcagentError as error:
                self.answers[point] = error


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
        self._hanging: dict[str, BackgroundCall[os.statvfs_result] | _Round] = {}
        self._table = b""
        self._mounts: list[Mount] = []

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """List the mounts and query all of them. Wait only once for a hung file system."""
        self.errors = []
        mounts = read_parsed(node, MOUNTINFO, self._local_mounts)
        if not mounts:
            raise NotHereError(f"/{MOUNTINFO}: no local file system")
        spaces = self._ask_all(node, mounts)
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

    def _ask_all(self, node: Node, mounts: list[Mount]) -> list[Space]:
        """Query the mounts, with a bounded number of hung threads."""
        self._hanging = {
            point: question for point, question in self._hanging.items() if not question.wait(0)
        }
        points: list[str] = []
        for mount in mounts:
            if mount.point in self._hanging:
                self.errors.append(f"{_escape(mount.point)}: hangs; skipped until it answers")
            else:
                points.append(mount.point)
        time_limit = self.settings.time_limit
        deadline = time.monotonic() + time_limit.seconds
        spaces: list[Space] = []
        # One thread per mount is expensive; use it only while a file system hangs.
        answers: dict[str, os.statvfs_result | CcagentError] = {}
        first: dict[str, BackgroundCall[os.statvfs_result] | _Round] = {}
        with suppress(RuntimeError):  # Without a free thread each query below reports it.
            in_turn = _Round(node, points if len(self._hanging) < _MOST_HANGING else ())
            answers = in_turn.collect(min(_PATIENCE, time_limit.seconds))
            points = [point for point in points if point not in answers]
            if points and not in_turn.wait(0):
                first[points.pop(0)] = in_turn
        for answer in answers.values():
            self._take(answer, spaces)
        while (first or points) and len(self._hanging) < _MOST_HANGING:
            room = _MOST_HANGING - len(self._hanging) - len(first)
            questions = first | self._questions(node, points[:room])
            first = {}
            points = points[room:]
            for point, question in questions.items():
                if not question.wait(max(0.0, deadline - time.monotonic())):
                    self._hanging[point] = question
                    self.errors.append(f"{_escape(point)}: no answer within {time_limit}")
                    continue
                self._take(_answer(question), spaces)
        if points:
            self.errors.append(f"{len(points)} more are skipped, since {_MOST_HANGING} hang")
        return spaces

    def _take(self, answer: os.statvfs_result | CcagentError, spaces: list[Space]) -> None:
        if not isinstance(answer, CcagentError):
            spaces.append(space_of(answer))
        elif not isinstance(answer, NotHereError):
            self.errors.append(_escape(str(answer)))

    def _questions(
        self, node: Node, points: list[str]
    ) -> dict[str, BackgroundCall[os.statvfs_result] | _Round]:
        questions: dict[str, BackgroundCall[os.statvfs_result] | _Round] = {}
        for point in points:
            try:
                questions[point] = BackgroundCall(partial(node.space, point.lstrip("/")), "statvfs")
            except CcagentError as error:
                self.errors.append(f"{_escape(point)}: {error}")
        return questions


def _answer(
    question: BackgroundCall[os.statvfs_result] | _Round,
) -> os.statvfs_result | CcagentError:
    try:
        return question.checked_result()
    except CcagentError as error:
        return error


def _escape(point: str) -> str:
    """Return a text with control characters escaped: a mount point may contain line breaks."""
    return point.encode("unicode_escape").decode("ascii")


def _percent(used: int, free: int) -> float:
    return 100 * used / (used + free) if used + free else 0.0
