"""Outputs of jobstats: records, flat JSON objects that the README describes, and points.

Points are counters of this server, its targets and the jobs on it. A counter of a job is the sum of
the deltas of its entries. It never falls when entries of its clients appear, disappear or reset.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from ccagent.agents.lustre.jobstats.entry import (
    BANDWIDTHS,
    FACTORS,
    IdFormat,
    JobstatsEntry,
    Target,
)
from ccagent.agents.lustre.jobstats.series import KeptTotal, OperationCounters
from ccagent.records.envelopes import LARGEST_UINT
from ccagent.records.points import NAME, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.agents.lustre.jobstats.series import Seen
    from ccagent.agents.lustre.settings import LustreSettings
    from ccagent.machine.node import Node

Value = str | int | float | bool | None

OPERATIONS = {
    "mdt": (
        "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr",
        "setattr", "getxattr", "setxattr", "statfs", "sync", "samedir_rename", "crossdir_rename",
    ),
    "obdfilter": (
        "read", "write", "read_bytes", "write_bytes", "setattr", "punch", "sync", "get_info",
        "set_info", "quotactl",
    ),
}  # fmt: skip
"""Counters that a dense record always has, by kind of target."""

_FIELDS = frozenset({
    "time_series_id", "target", "entry_id", "timestamp", "snapshot_time", "start_time", "server",
    "job_id", "user_id", "user", "group_id", "nodename", "executable", "process_id", "malformed",
    "reset", "clock_step",
})  # fmt: skip
_NUMBERS = {"min": 3, "max": 4, "sumsq": 6}
"""Details that are numbers of a line of an entry, and their place in it."""

_HIST = 7
_BUCKET = re.compile(rb" *(\d{1,10})([KMG]?): *(\d{1,20}) *")
_REMEMBERED = 1000
_CLOCK_STEP = 1.0
_DIGITS = len(str(LARGEST_UINT))
_BYTES = frozenset({b"read_bytes", b"write_bytes"})
_NONE: dict[str, Value] = {}
Identity = tuple[str, dict[str, str | int]]
"""The meaning of an entry id: its format (empty for none) and its parts."""

_LARGEST = 2**63 - 1
_KEPT_FOR = 7 * 86400.0

Scope = tuple[str, str]
"""stype and stype-id; empty for the node."""

NODE: Scope = ("", "")


class RecordMaker:
    """Builds records. The text of an `input` may be from another machine: it has no boot time."""

    def __init__(self, node: Node, settings: LustreSettings) -> None:
        self._node = node
        self._is_recorded = bool(settings.input)
        self._boot: float | None = None
        self._last_boot: float | None = None
        self._step = self._step_before = 0.0
        self._formats = tuple(map(IdFormat, settings.formats))
        self._namespaces = {form: UUID(text).bytes for form, text in settings.namespaces.items()}
        if settings.malformed_namespace:
            self._namespaces[""] = UUID(settings.malformed_namespace).bytes
            # A part of an id may look like a job id alone; it must get the same series.
            self._namespaces.setdefault("%j", self._namespaces[""])
        self._short_hosts = settings.short_hosts
        self._user_names = settings.user_names and not settings.input
        details = settings.details
        self._has_usecs = "usecs" in details
        self._numbers = [(f"_{name}", _NUMBERS[name]) for name in details if name in _NUMBERS]
        self._has_hist = "hist" in details
        self._dense: dict[str, dict[str, Value]] = (
            {}
            if settings.sparse
            else {kind: dict.fromkeys(names, 0) for kind, names in OPERATIONS.items()}
        )
        self._users: dict[int, str] = {}
        self._names: dict[bytes, tuple[str, str, str, bool, str]] = {}

    def identity(self, entry_id: str) -> Identity:
        """Return the meaning of an id."""
        for form in self._formats:
            parts = form.parse(entry_id)
            if parts is not None:
                if self._short_hosts and "nodename" in parts:
                    parts["nodename"] = str(parts["nodename"]).partition(".")[0]
                return form.text, parts
        return "", {}

    def make(
        self, target: Target, entry: JobstatsEntry, identity: Identity, timestamp: str, seen: Seen
    ) -> dict[str, Value]:
        """Return the record of an entry with its current counters."""
        record = self._head(target, entry.job_id, timestamp)
        if not (self._is_recorded and entry.since_boot):
            boot = self.boot_time() if entry.since_boot else 0.0
            record["snapshot_time"] = _seconds(entry.snapshot, boot)
            if entry.start:
                record["start_time"] = _seconds(entry.start, boot)
        if self._step:
            record["clock_step"] = self._step
        record.update(self._dense.get(target.kind, _NONE))
        self._count(entry, record)
        if seen.reset is not None:
            record["reset"] = seen.reset
        self._identify(record, identity)
        return record

    def make_beginning(
        self, target: Target, entry: JobstatsEntry, identity: Identity, timestamp: str
    ) -> dict[str, Value]:
        """Return the record that marks the start of a series: all counters are 0."""
        counters: dict[str, Value] = {}
        self._count(entry, counters)
        record = self._head(target, entry.job_id, timestamp)
        record["snapshot_time"] = None
        record |= self._dense.get(target.kind, _NONE) | dict.fromkeys(counters, 0)
        if self._step_before:
            record["clock_step"] = self._step_before
        self._identify(record, identity)
        return record

    def make_system(
        self, target: Target, entry_id: str, timestamp: str, totals: dict[str, int]
    ) -> dict[str, Value]:
        """Return the record of all entries that are aggregated."""
        record = self._head(target, entry_id, timestamp)
        record["snapshot_time"] = None
        record |= self._dense.get(target.kind, _NONE)
        return record | {name: min(value, LARGEST_UINT) for name, value in totals.items()}

    def _head(self, target: Target, entry_id: str, timestamp: str) -> dict[str, Value]:
        return {
            "target": target.name,
            "entry_id": entry_id,
            "server": self._node.hostname,
            "timestamp": timestamp,
        }

    def _count(self, entry: JobstatsEntry, record: dict[str, Value]) -> None:
        """Add the counters: samples of operations, and bytes if counted.

        Lustre 2.5 counts bytes as `read` and `write`. If only `read_bytes` is printed, its samples
        are the reads. An operation with the name of a field is omitted.
        """
        names = self._names
        has_details = self._has_hist or self._numbers != []
        for line in entry.lines:
            known = names.get(line[0])
            if known is None:
                known = self._name(line[0])
            name, short, of_bytes, counts_bytes, usecs = known
            total = line[5]
            if not name:
                continue
            if total and (counts_bytes or line[2] == b"bytes"):
                record[of_bytes] = int(total) if len(total) < _DIGITS else _uint(total)
                if not record.get(short):
                    record[short] = _uint(line[1])
                name = of_bytes
            else:
                samples = line[1]
                record[name] = int(samples) if len(samples) < _DIGITS else _uint(samples)
                if usecs and total and line[2] == b"usecs":
                    record[usecs] = int(total) if len(total) < _DIGITS else _uint(total)
            if has_details:
                self._add_details(name, line, record)

    def _add_details(self, name: str, line: tuple[bytes, ...], record: dict[str, Value]) -> None:
        for suffix, place in self._numbers:
            if line[place]:
                record[name + suffix] = _uint(line[place])
        if self._has_hist:
            for size, unit, count in _BUCKET.findall(line[_HIST]):
                record[f"{name}_hist_{int(size) * FACTORS[unit]}"] = _uint(count)

    def _name(self, operation: bytes) -> tuple[str, str, str, bool, str]:
        """Return the names of an operation's counters: samples (twice), bytes; last, times.

        The first name is empty for an operation that is not counted, the last one without times.
        Also return whether the operation always counts bytes.
        """
        name = operation.decode("ascii", "replace")
        if name in _FIELDS:
            name = ""
        short = name.removesuffix("_bytes")
        usecs = f"{name}_usecs" if self._has_usecs else ""
        known = (name, short, f"{short}_bytes", operation in _BYTES, usecs)
        if len(self._names) < _REMEMBERED:
            self._names[operation] = known
        return known

    def _identify(self, record: dict[str, Value], identity: Identity) -> None:
        """Add the parts of the id, and the id of the series."""
        form, parts = identity
        if form:
            record.update(parts)
            uid = parts.get("user_id") if self._user_names else None
            if isinstance(uid, int):
                user = self._users.get(uid)
                if user is None:
                    user = self._user(uid)
                if user:
                    record["user"] = user
        else:
            record["malformed"] = True
        if self._namespaces:
            namespace = self._namespaces.get(form)
            if namespace is not None:
                target, entry_id = str(record["target"]), str(record["entry_id"])
                record["time_series_id"] = time_series_id(namespace, target, entry_id)

    def begin(self) -> None:
        """Start an observation: look up names of users again."""
        self._users.clear()
        if self._is_recorded:
            return
        boot = self._node.boot_time()
        step = 0.0 if self._last_boot is None else boot - self._last_boot
        self._last_boot = boot
        self._step_before = self._step
        if abs(step) > _CLOCK_STEP:
            self._step = round(self._step + step, 3)
        if self._boot is not None:
            # Clocks are adjusted all the time; the start of an entry must not move with them.
            self._boot = boot if abs(boot - self._boot) > _CLOCK_STEP else self._boot

    def boot_time(self) -> float:
        """Return the boot time of this server in seconds since 1970; 0 for a recorded text."""
        if self._is_recorded:
            return 0.0
        if self._boot is None:
            self._boot = self._node.boot_time()
        return self._boot

    def _user(self, uid: int) -> str:
        name = self._node.user(uid)
        self._users[uid] = "" if name.startswith("_user_") else name
        return self._users[uid]


def time_series_id(namespace: bytes, target: str, entry_id: str) -> str:
    """Return the UUID (version 5) of `<target>:<entry_id>` in a namespace.

    Same result as uuid.uuid5, but faster: it is computed for every record.
    """
    name = f"{target}:{entry_id}".encode()
    digest = bytearray(sha1(namespace + name, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _uint(text: bytes) -> int:
    return int(text) if len(text) < _DIGITS else min(int(text), LARGEST_UINT)


def _seconds(text: bytes, boot: float) -> Value:
    """Return seconds since 1970: whole seconds unchanged, else rounded to a microsecond."""
    if text.isdigit():
        return int(text) if len(text) < _DIGITS else _uint(text)
    if not text:
        return None
    try:
        if text[-10:-9] == b"." and not boot:
            return float(text[:-3])  # nanoseconds, in all current versions: round() is slow
        return round(float(text) + boot, 6)
    except ValueError:
        return None


class JobTotals:
    """Sums by scope and metric. The total of a job or target without entries is kept.

    At most `limit` scopes are kept, the most recent ones, for a week.
    """

    def __init__(self, limit: int, totals: Iterable[KeptTotal] = ()) -> None:
        self._limit = limit
        self._totals: dict[Scope, dict[str, int]] = {}
        self._kept = {
            (one.stype, one.stype_id): one for one in sorted(totals, key=lambda one: one.seen)
        }
        self._growth: dict[Scope, dict[str, int]] = {}
        self._seen: set[Scope] = {NODE}

    def begin(self) -> None:
        """Start an observation."""
        self._growth = {}
        self._seen = {NODE}

    def see(self, target: str, job: str, since: dict[str, OperationCounters]) -> None:
        """Add the deltas of an entry. target, job: empty without one that is a valid tag."""
        scopes = [NODE]
        if target:
            scopes.append(("filesystem", target))
        if job:
            scopes.append(("job", job))
        self._seen.update(scopes)
        if not since:
            return
        metrics = _growth_of(since)
        for scope in scopes:
            grown = self._growth.setdefault(scope, {})
            for name, value in metrics.items():
                grown[name] = grown.get(name, 0) + value

    def points(self, tags: dict[str, str], time: float, interval: float | None) -> Iterator[Point]:
        """Yield the counters. With an interval (s) since the previous observation, also rates.

        Jobs and targets without entries have no points. The node comes last: a store without
        `stype` keeps the last value of a name.
        """
        self._keep_unseen(time)
        for scope, totals in sorted(self._totals.items(), reverse=True):
            grown = self._growth.get(scope, {})
            for name, value in grown.items():
                totals[name] = totals.get(name, 0) + value
            stype, number = scope
            own = tags | {"stype": stype, "stype-id": number} if stype else tags
            for name, value in sorted(totals.items()):
                yield Point(name, own, min(value, _LARGEST), time)
                if interval:
                    rate = BANDWIDTHS.get(name, f"{name}_rate")
                    yield Point(rate, own, grown.get(name, 0) / interval, time)

    def kept(self, time: float) -> list[KeptTotal]:
        """Return all totals, for the next JobTotals."""
        live = [_pack(scope, time, totals) for scope, totals in self._totals.items()]
        return [*self._kept.values(), *live]

    def _keep_unseen(self, time: float) -> None:
        """Keep the totals of scopes without entries; restore kept totals of scopes with entries."""
        for scope in self._totals.keys() - self._seen:
            self._kept[scope] = _pack(scope, time, self._totals.pop(scope))
        for scope in self._seen - self._totals.keys():
            kept = self._kept.pop(scope, None)
            self._totals[scope] = _unpack(kept.counters) if kept is not None else {}
        for scope, kept in list(self._kept.items()):
            if len(self._kept) + len(self._totals) <= self._limit and kept.seen > time - _KEPT_FOR:
                break
            del self._kept[scope]


def _pack(scope: Scope, seen: float, totals: dict[str, int]) -> KeptTotal:
    # Limit to the largest integer of a point: MessagePack stores integers below 2^64 only.
    counters = {name: min(value, _LARGEST) for name, value in totals.items()}
    return KeptTotal(*scope, seen, msgspec.msgpack.encode(counters))


def _unpack(counters: bytes) -> dict[str, int]:
    try:
        return msgspec.msgpack.decode(counters, type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


def _growth_of(since: dict[str, OperationCounters]) -> dict[str, int]:
    """Return the deltas of an entry by metric: `lustre_read_bytes`, `lustre_open`...

    Operations that are no valid metric name are omitted.
    """
    metrics: dict[str, int] = {}
    requests: dict[str, int] = {}
    for name, (samples, total, _) in since.items():
        if name in {"read_bytes", "write_bytes"}:
            metrics[f"lustre_{name}"] = total
            requests[f"lustre_{name.removesuffix('_bytes')}_requests"] = samples
        elif name in {"read", "write"}:
            metrics[f"lustre_{name}_requests"] = samples
        elif NAME.fullmatch(name):
            metrics[f"lustre_{name}"] = samples
    return requests | metrics
