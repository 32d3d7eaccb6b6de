"""Reader of traffic, latency and retransmissions of each NFS mount."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.agents.metrics.readers.labels import clean_label
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.procfs.mountstats import (
    NfsMount,
    NfsOperationCounters,
    parse_nfs_mounts,
    parse_nfs_operations,
    total_operations,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ccagent.machine.node import Node

_STATISTICS = "proc/self/mountstats"
_MOST_MOUNTS = 1000

_MOVED = (
    ("app_read", "B/s", "bytes read by programs, including cache hits"),
    ("app_write", "B/s", "bytes written by programs, including cached writes"),
    ("direct_read", "B/s", "bytes read by programs with O_DIRECT"),
    ("direct_write", "B/s", "bytes written by programs with O_DIRECT"),
    ("read", "B/s", "bytes from the server"),
    ("write", "B/s", "bytes to the server"),
    ("pages_read", "1/s", "pages read from the server"),
    ("pages_written", "1/s", "pages written to the server"),
)
"""The eight numbers of the line `bytes:`."""

_MEANS = (
    ("queue", "queued", "mean queue time of an operation before transmission", 6),
    ("rtt", "rtt", "mean round-trip time from transmission to reply of an operation", 7),
    ("exec", "execution", "mean time of an operation from request to completion", 8),
)
_CLASSES = {"": "", "read_": "READ", "write_": "WRITE"}
"""Operation by prefix of metrics; no prefix means all operations."""


class NfsMountsSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.nfs-mounts]."""

    exclude: Annotated[tuple[str, ...], Meta(description="patterns of mount points to skip")] = ()


def _metric(unit: str, description: str, source: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}, by mount (stype filesystem)",
        source=f"/proc/self/mountstats, {source}",
        aggregation="mean" if unit == "s" else "sum",
        is_default=False,
    )


_METRICS: dict[str, Metric] = {
    f"nfs_mount_{name}": _metric(unit, description, f"bytes, number {number}")
    for number, (name, unit, description) in enumerate(_MOVED, 1)
} | {
    "nfs_mount_ops": _metric("1/s", "operations", "all operations, number 1"),
    "nfs_mount_reads": _metric("1/s", "operations READ", "READ, number 1"),
    "nfs_mount_writes": _metric("1/s", "operations WRITE", "WRITE, number 1"),
    "nfs_mount_retrans": _metric(
        "1/s", "repeated transmissions", "all operations, number 2 - number 1"
    ),
    "nfs_mount_timeouts": _metric("1/s", "major timeouts", "all operations, number 3"),
    "nfs_mount_errors": _metric(
        "1/s", "operations that ended with an error, since Linux 5.3", "all operations, number 9"
    ),
    **{
        f"nfs_mount_{prefix}{name}": _metric(
            "s",
            f"{description}{f'; {operation} only' if operation else ''}",
            f"{operation or 'all operations'}, number {number} / number 1",
        )
        for prefix, operation in _CLASSES.items()
        for name, _, description, number in _MEANS
    },
}


class _Figures(NamedTuple):
    """Counters of a mount: of all operations, and by prefix."""

    total: NfsOperationCounters
    by_prefix: dict[str, NfsOperationCounters]


class NfsMountsReader(Reader[NfsMountsSettings]):
    """Each NFS mount by its mount point; read only if a metric is wanted.

    Several mounts of one file system share counters: each has the same values.
    """

    name = "nfs-mounts"
    Settings = NfsMountsSettings
    metrics: ClassVar[dict[str, Metric]] = _METRICS

    def __init__(self, settings: NfsMountsSettings | None = None) -> None:
        super().__init__(settings)
        self._before: dict[str, _Figures] = {}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read the counters of all mounts. Raise NotHereError without an NFS mount."""
        self.errors = []
        if not self.is_wanted:
            return []
        mounts, problems = parse_nfs_mounts(node.read(_STATISTICS))
        if not mounts and not problems:
            raise NotHereError(f"/{_STATISTICS}: no NFS mount")
        chosen = self._choose(mounts)
        before, self._before = self._before, {}
        found: list[Gauge | Count] = []
        for label, mount in chosen.items():
            scope = Scope(stype="filesystem", stype_id=label)
            try:
                figures = _figures(mount)
            except UnparsableError as error:
                problems.append(f"mount {ascii(mount.point)[:80]}: {error}")
                continue
            self._before[label] = figures
            found += _counts(mount, figures, scope)
            if label in before:
                found += _means(before[label], figures, scope)
        if problems:
            more = f"; {len(problems) - 1} more" if len(problems) > 1 else ""
            self.errors.append(f"/{_STATISTICS}: {problems[0]}{more}")
        return found

    def _choose(self, mounts: Iterable[NfsMount]) -> Mapping[str, NfsMount]:
        """Return the visible mounts by label, at most a thousand."""
        chosen: dict[str, NfsMount] = {}
        for mount in mounts:
            label = clean_label(mount.point)
            if not label or any(fnmatchcase(mount.point, each) for each in self.settings.exclude):
                continue
            if len(chosen) == _MOST_MOUNTS and label not in chosen:
                self.errors.append(
                    f"more than {_MOST_MOUNTS} NFS mounts: the others are not read;"
                    " set agents.metrics.nfs-mounts.exclude"
                )
                break
            chosen[label] = mount
        return chosen


def _figures(mount: NfsMount) -> _Figures:
    operations = parse_nfs_operations(mount.table)
    total = total_operations(operations.values())
    by_prefix = {
        prefix: operations.get(operation, NfsOperationCounters()) if operation else total
        for prefix, operation in _CLASSES.items()
    }
    return _Figures(total, by_prefix)


def _counts(mount: NfsMount, figures: _Figures, scope: Scope) -> Iterator[Count]:
    for (name, _, _), value in zip(_MOVED, mount.moved, strict=True):
        yield Count(f"nfs_mount_{name}", value, scope)
    total = figures.total
    yield Count("nfs_mount_ops", total.operations, scope)
    yield Count("nfs_mount_reads", figures.by_prefix["read_"].operations, scope)
    yield Count("nfs_mount_writes", figures.by_prefix["write_"].operations, scope)
    yield Count("nfs_mount_retrans", max(0, total.sent - total.operations), scope)
    yield Count("nfs_mount_timeouts", total.timeouts, scope)
    if total.errors is not None:
        yield Count("nfs_mount_errors", total.errors, scope)


def _means(before: _Figures, now: _Figures, scope: Scope) -> Iterator[Gauge]:
    """Yield the mean times of the operations since the last reading; none without operations."""
    for prefix, new in now.by_prefix.items():
        old = before.by_prefix[prefix]
        if new.operations < old.operations:
            old = NfsOperationCounters()  # the file system was unmounted and mounted again
        operations = new.operations - old.operations
        if not operations:
            continue
        for name, field, _, _ in _MEANS:
            milliseconds = max(0, getattr(new, field) - getattr(old, field))
            yield Gauge(f"nfs_mount_{prefix}{name}", milliseconds / operations / 1000, scope)
