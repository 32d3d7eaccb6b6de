"""Lustre's parameters, of servers and clients, under the names of lustrefs-exporter."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from ccagent.agents.lustre.jobstats.entry import JobstatsEntry, Target
from ccagent.agents.lustre.jobstats.parser import parse
from ccagent.agents.lustre.jobstats.source import JobstatsSource
from ccagent.agents.lustre.lnet import (
    KERNEL_STATISTICS,
    NETWORKS,
    STATISTICS,
    parse_indented,
    read_kernel_statistics,
)
from ccagent.agents.lustre.metric import parse_operations
from ccagent.agents.lustre.server_statistics import (
    RECOVERY,
    read_brw_stats,
    read_health,
    read_recovery,
)
from ccagent.agents.lustre.statistics import read_statistics
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Family, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.agents.lustre.metric import Parameter
    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node


GROUPS = (
    "stats", "md-stats", "capacity", "exports", "recovery", "health", "locks", "brw-stats", "lnet",
    "llite",
)  # fmt: skip
"""The groups of parameters to read."""

Sample = tuple[Family, "Labels", float]

_TARGET = ("component", "target")
_OPERATION = ("component", "operation", "target")
_NAME = re.compile(r"([a-z-]+)\.([^.]+)\.(\w+)", re.ASCII)
_NAMESPACE = re.compile(r"(?:filter|mdt)-([^.]+)_UUID|(MGS)", re.ASCII)
_KINDS = (("-OST", "ost"), ("-MDT", "mdt"), ("MGS", "mgt"))

_BYTES = {
    f"{way}_bytes": (
        counter(f"lustre_{way}_samples_total", f"Total number of {way}s that have been recorded",
                *_OPERATION),
        counter(f"lustre_{way}_bytes_total",
                f"The total number of bytes that have been {done}", *_OPERATION),
        way,
    )
    for way, done in (("read", "read"), ("write", "written"))
}  # fmt: skip
_STATS = counter(
    "lustre_stats_total", "Number of operations the filesystem has performed", *_OPERATION
)
_TIMES = gauge(
    "lustre_stats_time_total", "Total time taken for an operation in microseconds", *_OPERATION
)
_NUMBERS = {
    "kbytestotal": gauge("lustre_capacity_kilobytes", "Capacity of the pool in kilobytes",
                         *_TARGET),
    "kbytesfree": gauge("lustre_free_kilobytes", "Number of kilobytes allocated to the pool",
                        *_TARGET),
    "kbytesavail": gauge("lustre_available_kilobytes",
                         "Number of kilobytes readily available in the pool", *_TARGET),
    "filestotal": gauge("lustre_inodes_maximum",
                        "The maximum number of inodes (objects) the filesystem can hold", *_TARGET),
    "filesfree": gauge("lustre_inodes_free", "The number of inodes (objects) available", *_TARGET),
    "num_exports": gauge("lustre_exports_total", "Number of connections to the target", *_TARGET),
    "tot_dirty": gauge("lustre_exports_dirty_total",
                       "Bytes written on clients and not yet on the target", *_TARGET),
    "tot_granted": gauge("lustre_exports_granted_total", "Bytes promised to clients", *_TARGET),
    "tot_pending": gauge("lustre_exports_pending_total", "Bytes being written", *_TARGET),
    "lock_count": gauge("lustre_lock_count_total", "Number of locks", *_TARGET),
    "lock_timeouts": counter("lustre_lock_timeout_total", "Number of lock timeouts", *_TARGET),
}  # fmt: skip
_SIZED = ("component", "operation", "size", "target")
_BRW = {
    "io_size": counter("lustre_disk_io_total", "Number of disk I/Os by size in bytes", *_SIZED),
    "in_flight": gauge("lustre_disk_io", "Number of disk I/Os by the number in flight", *_SIZED),
    "fragments": gauge("lustre_dio_frags", "Number of I/Os by fragments on the disk", *_SIZED),
    "pages_per_bulk": counter("lustre_pages_per_bulk_rw_total", "Number of RPCs by pages", *_SIZED),
    "discontiguous_pages": counter("lustre_discontiguous_pages_total",
                                   "Number of RPCs by gaps between pages", *_SIZED),
    "discontiguous_blocks": counter("lustre_discontiguous_blocks_total",
                                    "Number of RPCs by gaps between blocks", *_SIZED),
    "io_time_ms": counter("lustre_io_time_milliseconds_total",
                          "Number of I/Os by their time in milliseconds", *_SIZED),
    "block_maps_ms": counter("lustre_block_maps_milliseconds_total",
                             "Number of block maps by their time in milliseconds", *_SIZED),
}  # fmt: skip
_BRW_NAME = re.compile(r"lustre_brw_(\w+)_(read|write)_([0-9]+)", re.ASCII)
_RECOVERY = gauge(
    "recovery_status",
    "Recovery of a target: 0 complete, 1 inactive, 2 waiting, 3 waiting for clients, 4 recovering",
    "kind", "target",
)  # fmt: skip
_RECOVERY_STATES = {
    RECOVERY["COMPLETE"]: 0, RECOVERY["INACTIVE"]: 1, RECOVERY["WAITING"]: 2,
    RECOVERY["WAITING_FOR_CLIENTS"]: 3, RECOVERY["RECOVERING"]: 4,
}  # fmt: skip
_RECOVERY_VALUES = {
    f"lustre_recovery_{state}_clients": gauge(
        f"recovery_status_{state}_clients", f"Clients that are {state} in the recovery",
        "kind", "target",
    )
    for state in ("completed", "connected", "evicted")
} | {
    f"lustre_recovery_{part}": gauge(
        f"recovery_status_{part}_seconds", text, "kind", "target",
    )
    for part, text in (
        ("duration", "Duration of the last recovery of a target"),
        ("time_remaining", "Time until the recovery of a target ends at the latest"),
    )
}  # fmt: skip
_HEALTH = gauge("lustre_health_healthy", "1 if the server is healthy, 0 if not")
_LNET = {
    "send_count": counter("lustre_send_count_total",
                          "Total number of messages that have been sent", "nid"),
    "recv_count": counter("lustre_receive_count_total",
                          "Total number of messages that have been received", "nid"),
    "drop_count": counter("lustre_drop_count_total",
                          "Total number of messages that have been dropped", "nid"),
}  # fmt: skip
_LNET_HEALTH = gauge("lustre_health_value", "Health of an interface of LNet; 1000 is best", "nid")
_LNET_BYTES = {
    "send_length": counter("lustre_send_bytes_total",
                           "Total number of bytes that have been sent"),
    "recv_length": counter("lustre_receive_bytes_total",
                           "Total number of bytes that have been received"),
    "drop_length": counter("lustre_drop_bytes_total",
                           "Total number of bytes that have been dropped"),
}  # fmt: skip
_CLIENT = counter("lustre_client_stats", "Lustre client interface stats.", "operation", "target")


def _read(name: str, value: bytes) -> Iterator[Sample]:
    """Yield the samples of one parameter; none if the parameter is unknown.

    Raise UnparsableError or ValueError if it is damaged.
    """
    whole = _WHOLE.get(name)
    if whole is not None:
        yield from whole(value)
        return
    if name.startswith("ldlm.namespaces."):
        place, _, leaf = name.removeprefix("ldlm.namespaces.").partition(".")
        found = _NAMESPACE.fullmatch(place)
        if found is not None and leaf in _NUMBERS:
            target = found[1] or found[2]
            yield _NUMBERS[leaf], (_component(target), target), int(value)
        return
    parts = _NAME.fullmatch(name)
    if parts is None:
        return
    kind, target, leaf = parts.groups()
    read = _LEAVES.get(leaf if leaf != "stats" else f"{kind}.stats")
    if read is not None:
        yield from read(target, value)
    elif leaf in _NUMBERS:
        yield _NUMBERS[leaf], (_component(target), target), int(value)


def _read_health(value: bytes) -> Iterator[Sample]:
    for reading in read_health("", "", value, _ignore):
        if reading.name == "lustre_health":
            yield _HEALTH, (), reading.value


def _read_totals(value: bytes) -> Iterator[Sample]:
    for block in parse_indented(value).blocks.get("statistics", ()):
        for field, family in _LNET_BYTES.items():
            if block.fields.get(field, "").isdecimal():
                yield family, (), int(block.fields[field])


def _read_kernel_totals(value: bytes) -> Iterator[Sample]:
    """Yield the same from the kernel's line, for nodes without lnetctl."""
    for reading in read_kernel_statistics(value, _ignore):
        family = _LNET_BYTES.get(reading.name.removeprefix("lustre_lnet_"))
        if family is not None:
            yield family, (), reading.value


def _read_client(target: str, value: bytes) -> Iterator[Sample]:
    for operation in parse_operations(value, _ignore):
        yield _CLIENT, (operation.name, target), operation.samples


def _read_ost(target: str, value: bytes) -> Iterator[Sample]:
    for operation in parse_operations(value, _ignore):
        families = _BYTES.get(operation.name)
        if families is not None:
            labels = (_component(target), families[2], target)
            yield families[0], labels, operation.samples
            yield families[1], labels, operation.sum or 0


def _read_mdt(target: str, value: bytes) -> Iterator[Sample]:
    for operation in parse_operations(value, _ignore):
        labels = (_component(target), operation.name, target)
        yield _STATS, labels, operation.samples
        if operation.sum is not None:
            yield _TIMES, labels, operation.sum


def _read_brw(target: str, value: bytes) -> Iterator[Sample]:
    for reading in read_brw_stats(target, "", value, _ignore):
        found = _BRW_NAME.fullmatch(reading.name)
        if found is not None:
            yield _BRW[found[1]], (_component(target), found[2], found[3], target), reading.value


def _read_recovery(target: str, value: bytes) -> Iterator[Sample]:
    own = (_component(target).upper(), target)
    for reading in read_recovery(target, "", value, _ignore):
        if reading.name == "lustre_recovery_status":
            yield _RECOVERY, own, _RECOVERY_STATES[reading.value]
        elif reading.name in _RECOVERY_VALUES:
            yield _RECOVERY_VALUES[reading.name], own, reading.value


def _read_networks(value: bytes) -> Iterator[Sample]:
    for network in parse_indented(value).blocks.get("net", ()):
        for interface in network.blocks["local NI(s)"]:
            nid = interface.fields.get("nid", "")
            for block in interface.blocks["statistics"]:
                for field, family in _LNET.items():
                    if block.fields.get(field, "").isdecimal():
                        yield family, (nid,), int(block.fields[field])
            for block in interface.blocks["health stats"]:
                if block.fields.get("health value", "").isdecimal():
                    yield _LNET_HEALTH, (nid,), int(block.fields["health value"])


def _component(target: str) -> str:
    return next((kind for part, kind in _KINDS if part in target), "")


def _ignore(_problem: str) -> None:
    """Ignore an invalid line: the agent `lustre` logs invalid lines."""


_WHOLE: dict[str, Callable[[bytes], Iterator[Sample]]] = {
    "health_check": _read_health,
    " ".join(NETWORKS): _read_networks,
    " ".join(STATISTICS): _read_totals,
    "stats": _read_kernel_totals,
    KERNEL_STATISTICS: _read_kernel_totals,
}
"""Parsers of parameters without target, by parameter name."""

_LEAVES: dict[str, Callable[[str, bytes], Iterator[Sample]]] = {
    "llite.stats": _read_client,
    "obdfilter.stats": _read_ost,
    "md_stats": _read_mdt,
    "brw_stats": _read_brw,
    "recovery_status": _read_recovery,
}
"""Parsers of a target's parameters, by the last part of the name."""

_JOB = ("operation", "component", "target", "jobid")
_JOB_BYTES = {
    operation: (
        counter(f"lustre_job_{way}_samples_total",
                f"Total number of {way}s that have been recorded.", *_JOB),
        gauge(f"lustre_job_{way}_minimum_size_bytes", f"The minimum {way} size in bytes.", *_JOB),
        gauge(f"lustre_job_{way}_maximum_size_bytes", f"The maximum {way} size in bytes.", *_JOB),
        counter(f"lustre_job_{way}_bytes_total",
                f"The total number of bytes that have been {done}.", *_JOB),
    )
    for operation, way, done in (
        ("read_bytes", "read", "read"), ("write_bytes", "write", "written"),
    )
}  # fmt: skip
_OPERATIONS = counter(
    "lustre_job_stats_total",
    "Number of operations the filesystem has performed, recorded by jobstats.", *_JOB,
)  # fmt: skip
_LEFT_OUT = gauge(
    "ccagent_lustre_jobs_left_out",
    "Job ids in job_stats without series of their own: max-lustre-jobs is reached.",
)
_JOB_KINDS = {"obdfilter": "ost", "mdt": "mdt"}
_UNSAFE = re.compile(r"[^\x20-\x7e]")


class LustrefsCollector(Collector):
    """Statistics of targets, job_stats, LNet and mounts."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        limit = settings.time_limit.seconds
        self._source = JobstatsSource("auto", settings.lctl, "", limit)

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the parameters of Lustre. Raise NotHereError if the node has none."""
        errors: list[str] = []
        limit = self.settings.time_limit.seconds
        parameters = read_statistics(node, GROUPS, self.settings.lctl, limit, errors)
        for error in errors:
            self.warn(error)
        jobs: dict[Family, dict[Labels, float]] = {}
        try:
            jobs = self._read_jobs(node)
        except CcagentError:
            if not parameters:
                raise
        if parameters:
            yield from collect_parameters(parameters)
        for family, rows in jobs.items():
            yield family, rows.items()

    def _read_jobs(self, node: Node) -> dict[Family, dict[Labels, float]]:
        problems: list[CcagentError] = []
        limit = self.settings.max_lustre_jobs
        found: dict[Family, dict[Labels, float]] = {}
        seen: set[str] = set()
        left_out: set[str] = set()
        for text in self._source.texts(node, problems):
            target, kind = text.name, text.kind
            try:
                for item in parse(text.chunks, text.name, text.kind):
                    if isinstance(item, Target):
                        target, kind = item.name, item.kind
                    elif isinstance(item, JobstatsEntry) and not item.is_broken:
                        if item.job_id not in seen and len(seen) >= limit:
                            if len(left_out) < 10 * limit:
                                left_out.add(item.job_id)
                            continue
                        seen.add(item.job_id)
                        _add_entry(found, item, target, _JOB_KINDS.get(kind, kind))
            except CcagentError as error:
                problems.append(error)
        for problem in problems:
            self.warn(problem)
        found[_LEFT_OUT] = {(): len(left_out)}
        return found


def _add_entry(
    found: dict[Family, dict[Labels, float]], entry: JobstatsEntry, target: str, kind: str
) -> None:
    job = _UNSAFE.sub("\ufffd", entry.job_id)
    for name, stat in entry.stats.items():
        if stat.unit == "bytes" and name in {"read", "write"}:  # Lustre 2.5
            name = f"{name}_bytes"  # noqa: PLW2901
        labels = (name, kind, target, job)
        families = _JOB_BYTES.get(name) if kind == "ost" else None
        if families is None:
            found.setdefault(_OPERATIONS, {})[labels] = stat.samples
            continue
        numbers = (stat.samples, stat.min, stat.max, stat.sum)
        for family, number in zip(families, numbers, strict=True):
            if number is not None:
                found.setdefault(family, {})[labels] = number


def collect_parameters(parameters: Iterable[Parameter]) -> Iterator[FamilyRows]:
    """Yield the families for parameters in the format of `lctl get_param` and `lnetctl`.

    Raise NotHereError if no parameter has a sample.
    """
    found: dict[Family, dict[Labels, float]] = {}
    for name, value in parameters:
        with suppress(UnparsableError, ValueError):
            for family, labels, number in _read(name, value):
                # Of duplicates the first parameter is used.
                found.setdefault(family, {}).setdefault(labels, number)
    if not found:
        raise NotHereError("no statistics of Lustre on this node")
    for family, rows in found.items():
        yield family, rows.items()
