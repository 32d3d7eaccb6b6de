"""Parsers for a server's statistics: operations, space, exports, recovery, locks, health, disk I/O.

Source: Lustre Operations Manual, chapters Monitoring and Managing Recovery; the *_seq_show()
functions of lprocfs_status.c and lprocfs_status_server.c, ldlm_resource.c, obdclass/linux-module.c;
brw_stats_show() of osd-ldiskfs and osd-zfs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry import FACTORS
from ccagent.agents.lustre.metric import (
    Measurement,
    MetricGroup,
    TargetScope,
    number,
    operation_readings,
    parse_operations,
    show_text,
    target,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.metric import Complain


_CAPACITY = {
    "kbytestotal": ("capacity_total", 1024),
    "kbytesfree": ("capacity_free", 1024),
    "kbytesavail": ("capacity_available", 1024),
    "filestotal": ("files_total", 1),
    "filesfree": ("files_free", 1),
    "tot_dirty": ("dirty_bytes", 1),
    "tot_granted": ("granted_bytes", 1),
    "tot_pending": ("pending_bytes", 1),
}

_LOCKS = ("lock_count", "lock_unused_count", "lock_timeouts", "resource_count")
RECOVERY = {"INACTIVE": 0, "COMPLETE": 1, "WAITING_FOR_CLIENTS": 2, "WAITING": 3, "RECOVERING": 4}
"""The number of each recovery status. With 2 and more, clients have to wait."""

_RECOVERY_NUMBERS = {
    "connected_clients": "recovery_connected_clients",
    "completed_clients": "recovery_completed_clients",
    "evicted_clients": "recovery_evicted_clients",
    "time_remaining": "recovery_time_remaining",
    "recovery_duration": "recovery_duration",
}

_NAMESPACE = re.compile(r"(?:mdt|filter)-([^.]+)_UUID|(MGS)")

_CLIENT_NAMESPACE = re.compile(
    r"([A-Za-z0-9_-]{1,64})-(?:OST|MDT)[0-9a-f]{4}-(?:osc|mdc|osp|lwp)-\w{1,32}", re.ASCII
)


def read_stats(owner: str, leaf: str, value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the operations of a target from `obdfilter.*.stats` or `mdt.*.md_stats`."""
    scope, _ = target(owner)
    prefix = "lustre_mdt_stats" if leaf == "md_stats" else "lustre_ost_stats"
    for operation in parse_operations(value, complain):
        yield from operation_readings(prefix, scope, operation)


def read_capacity(
    owner: str, leaf: str, value: bytes, _complain: Complain
) -> Iterator[Measurement]:
    """Yield bytes or files of a target from `osd-*.*.kbytesfree` and similar parameters."""
    scope, kind = target(owner)
    name, factor = _CAPACITY[leaf]
    yield Measurement(f"lustre_{kind}_{name}", _number(value) * factor, scope)


def read_exports(
    owner: str, _leaf: str, value: bytes, _complain: Complain
) -> Iterator[Measurement]:
    """Yield the connections of a target from `*.*.num_exports`."""
    scope, kind = target(owner)
    yield Measurement(f"lustre_{kind}_exports", _number(value), scope)


def read_recovery(
    owner: str, _leaf: str, value: bytes, complain: Complain
) -> Iterator[Measurement]:
    """Yield the values of `*.*.recovery_status`, lines like `completed_clients: 4/8`."""
    scope, _ = target(owner)
    clients = 0
    for line in value.split(b"\n"):
        key, _, text = line.partition(b":")
        text = text.strip()
        name = key.strip().replace(b" ", b"_").decode("ascii", "replace")
        if name == "status":
            status = RECOVERY.get(text.decode("ascii", "replace"))
            if status is None:
                complain(f"{show_text(text)} is no status of recovery")
            else:
                yield Measurement("lustre_recovery_status", status, scope)
        elif name in _RECOVERY_NUMBERS:
            part, _, whole = text.partition(b"/")
            try:
                yield Measurement(f"lustre_{_RECOVERY_NUMBERS[name]}", _number(part), scope)
                clients = max(clients, _number(whole)) if whole else clients
            except UnparsableError as error:
                complain(f"{name}: {error}")
    if clients:
        yield Measurement("lustre_recovery_clients", clients, scope)


def read_health(
    _owner: str, _leaf: str, value: bytes, _complain: Complain
) -> Iterator[Measurement]:
    """Yield the health of the node from `health_check`.

    Newer versions have two parameters of that name: below /sys with one word, below
    /sys/kernel/debug with the unhealthy devices. On a healthy node the second one is empty and is
    ignored.
    """
    text = value.strip()
    if not text:
        return
    devices = sum(line.endswith(b" reported unhealthy") for line in text.split(b"\n"))
    if not (devices or text in {b"healthy", b"LBUG"} or text.endswith(b"NOT HEALTHY")):
        raise UnparsableError(f"{show_text(text)} is neither healthy nor not")
    yield Measurement("lustre_health", int(text == b"healthy"))
    yield Measurement("lustre_unhealthy_devices", devices)


def read_locks(owner: str, leaf: str, value: bytes, _complain: Complain) -> Iterator[Measurement]:
    """Yield the locks of a name space, `ldlm.namespaces.filter-scratch-OST0000_UUID.lock_count`.

    Locks that the node holds as a client of other servers' targets are summed per file system,
    because there may be thousands of targets. Locks of MGCs, for the configuration, are ignored.
    """
    if owner.startswith("MGC"):
        return
    if client := _CLIENT_NAMESPACE.fullmatch(owner):
        scope = TargetScope("filesystem", client[1])
        kind = "client"
    elif own := _NAMESPACE.fullmatch(owner):
        scope, kind = target(own[1] or own[2])
    else:
        raise UnparsableError(f"{show_text(owner)} is no name space of a target")
    yield Measurement(f"lustre_{kind}_{leaf}", _number(value), scope)


def _number(value: bytes) -> int:
    return number(value.strip())


def _names(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


_TITLES = {
    b"pages per bulk r/w": "pages_per_bulk",
    b"discontiguous pages": "discontiguous_pages",
    b"discontiguous blocks": "discontiguous_blocks",
    b"disk fragmented I/Os": "fragments",
    b"disk I/Os in flight": "in_flight",
    b"I/O time (1/1000s)": "io_time_ms",
    b"disk I/O size": "io_size",
    b"block maps msec": "block_maps_ms",
}

_WIDEST = max(map(len, _TITLES))
_BUCKET = re.compile(rb"([0-9]{1,10})([KMG]?):")
_TIMES = (b"snapshot_time:", b"start_time:", b"elapsed_time:")


def read_brw_stats(
    owner: str, _leaf: str, value: bytes, complain: Complain
) -> Iterator[Measurement]:
    """Yield the counts of all buckets of `brw_stats`; report and skip an unparsable line.

    Each histogram has a title, and lines with a bucket and the counts and shares of reads and
    writes, up to the last used bucket:

                                   read | write
        disk I/O size ios % cum % | ios % cum %
        512K: 678 0 73 | 493 0 40

    Lines below an unknown title are skipped. Buckets are plain numbers (1M is 1048576), because
    versions differ in their use of multiples.
    """
    scope, _ = target(owner)
    name = ""
    for line in value.split(b"\n"):
        words = line.split(None, 8)
        if not words or words[0] in _TIMES or words[0] == b"read":
            continue
        if words[0][-1:] != b":" or not words[0][:1].isdigit():
            name = _TITLES.get(line[: _WIDEST + 1].partition(b"  ")[0].rstrip(), "")
            if not name:
                complain(f"{show_text(line)} is no known title")
        elif name:
            try:
                yield from _bucket(name, words, scope)
            except UnparsableError as error:
                complain(f"{error}, in {show_text(line)}")


def _bucket(name: str, words: list[bytes], scope: TargetScope) -> Iterator[Measurement]:
    found = _BUCKET.fullmatch(words[0])
    if found is None or len(words) < 6 or words[4] != b"|":
        raise UnparsableError("no bucket with reads and writes")
    bucket = int(found[1]) * FACTORS[found[2]]
    for way, count in (("read", words[1]), ("write", words[5])):
        yield Measurement(f"lustre_brw_{name}_{way}_{bucket}", number(count), scope)


GROUPS = {
    "stats": MetricGroup(
        _names(r"obdfilter\.(?P<owner>[^.]+)\.(?P<leaf>stats)"),
        read_stats,
        ("obdfilter.*.stats",),
    ),
    "md-stats": MetricGroup(
        _names(r"mdt\.(?P<owner>[^.]+)\.(?P<leaf>md_stats)"), read_stats, ("mdt.*.md_stats",)
    ),
    "capacity": MetricGroup(
        _names(
            r"(?:osd-\w+|obdfilter|mdt|mgs)\.(?P<owner>[^.]+)\.(?P<leaf>"
            + "|".join(_CAPACITY)
            + ")"
        ),
        read_capacity,
        (
            *(f"osd-*.*.{leaf}" for leaf in _CAPACITY if not leaf.startswith("tot_")),
            *(f"{server}.*.tot_*" for server in ("obdfilter", "mdt")),
        ),
    ),
    "exports": MetricGroup(
        _names(r"(?:obdfilter|mdt|mgs)\.(?P<owner>[^.]+)\.(?P<leaf>num_exports)"),
        read_exports,
        ("obdfilter.*.num_exports", "mdt.*.num_exports", "mgs.*.num_exports"),
    ),
    "recovery": MetricGroup(
        _names(r"(?:obdfilter|mdt|mgs)\.(?P<owner>[^.]+)\.(?P<leaf>recovery_status)"),
        read_recovery,
        ("obdfilter.*.recovery_status", "mdt.*.recovery_status"),
    ),
    "health": MetricGroup(_names("health_check"), read_health, ("health_check",)),
    "brw-stats": MetricGroup(
        _names(r"(?:osd-\w+|obdfilter)\.(?P<owner>[^.]+)\.(?P<leaf>brw_stats)"),
        read_brw_stats,
        ("osd-*.*.brw_stats",),
    ),
    "locks": MetricGroup(
        _names(r"ldlm\.namespaces\.(?P<owner>[^.]+)\.(?P<leaf>" + "|".join(_LOCKS) + ")"),
        read_locks,
        tuple(f"ldlm.namespaces.*.{leaf}" for leaf in _LOCKS),
    ),
}
