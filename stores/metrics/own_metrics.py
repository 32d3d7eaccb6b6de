"""The store's own metrics, in Prometheus' text format."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.machine.own_memory import read_resident
from ccagent.stores.budgets import sender_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.stores.metrics.commit import EngineCommit
    from ccagent.stores.metrics.housekeeping import Housekeeper
    from ccagent.stores.metrics.ingest import LineIngest
    from ccagent.stores.metrics.log_writer import WriteAheadLog
    from ccagent.stores.metrics.request_reader import ConnectionLimits
    from ccagent.stores.metrics.store import MetricStore


_Number = tuple[str, str, str, float | dict[str, float]]
"""Name, type, description, and value or values by label."""

_OF_SENDERS = {
    "messages": "Messages with lines, by sender.",
    "bytes": "Bytes of messages, by sender.",
    "new_series": "New series, by sender.",
    "refused_lines": "Refused lines and values of refused series, by sender.",
    "refused_requests": "Refused requests and connections, by sender.",
}
"""Counters of the ten senders with the highest ones. `others`: those that were forgotten."""


class StoreParts(NamedTuple):
    """The parts of a store that have metrics."""

    store: MetricStore
    ingest: LineIngest
    housekeeper: Housekeeper
    connections: ConnectionLimits
    log: WriteAheadLog


def describe_store(parts: StoreParts) -> bytes:
    """Return all metrics of a store."""
    store, ingest, housekeeper, connections, log = parts
    return _format([
        *_ingested(ingest),
        ("series", "gauge", "Series in memory.", store.series),
        ("buffers", "gauge", "Buffers of 512 values of a series.", store.buffers()),
        ("buffers_released_total", "counter", "Released buffers.", housekeeper.released),
        ("blocks_reused_total", "counter", "Reused blocks of memory.", store.pool.reused),
        ("values_bytes", "gauge", "Memory reserved for values.", store.pool.in_use),
        ("log_bytes", "gauge", "Size of the log.", log.size),
        ("segments_unarchived_total", "counter",
         "Log segments deleted by the disk cap without archiving.",
         housekeeper.unarchived),
        ("log_failures_total", "counter", "Failed writes of the log.", log.failures),
        *_process(connections),
    ])  # fmt: skip


def describe_gateway(
    names: MetricStore, ingest: LineIngest, commit: EngineCommit, connections: ConnectionLimits
) -> bytes:
    """Return all metrics of a gateway."""
    return _format([
        *_ingested(ingest),
        ("series", "gauge", "Known series.", names.series),
        ("engine_failures_total", "counter", "Failed imports into the engine.",
         commit.failures),
        *_process(connections),
    ])  # fmt: skip


def _ingested(ingest: LineIngest) -> list[_Number]:
    counters = ingest.counters
    return [
        ("points_total", "counter", "Stored values.", counters.points),
        ("messages_total", "counter", "Messages with lines.", counters.messages),
        ("messages_known_total", "counter", "Messages with lines of known series only.",
         counters.known),
        ("bad_lines_total", "counter", "Refused lines.", counters.bad_lines),
        ("parts_refused_total", "counter", "New mounts and other parts beyond the limits.",
         ingest.parts.refused),
        ("series_refused_total", "counter", "New series beyond the limits.",
         ingest.series.refused),
        *_senders(ingest),
    ]  # fmt: skip


def _senders(ingest: LineIngest) -> list[_Number]:
    found = [(sender_label(one["sender"]), one) for one in ingest.senders.dearest()]
    return [
        (f"sender_{kind}_total", "counter", text, {label: one.get(kind, 0) for label, one in found})
        for kind, text in _OF_SENDERS.items()
        if found
    ]


def _process(connections: ConnectionLimits) -> list[_Number]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return [
        ("connections", "gauge", "Open connections.", len(connections.open)),
        ("requests_total", "counter", "Answered requests.", connections.requests),
        ("requests_refused_total", "counter", "Refused requests.", connections.refused),
        ("cpu_seconds_total", "counter", "CPU time.", usage.ru_utime + usage.ru_stime),
        ("resident_bytes", "gauge", "Resident memory.", read_resident()),
        ("time_seconds", "gauge", "The store's clock.", time.time()),
    ]


def _format(numbers: Iterable[_Number]) -> bytes:
    lines: list[str] = []
    for name, kind, text, value in numbers:
        lines += [
            f"# HELP ccagent_store_{name} {text}",
            f"# TYPE ccagent_store_{name} {kind}",
        ]
        samples = value.items() if isinstance(value, dict) else [("", value)]
        lines += [
            f"ccagent_store_{name}{f'{{{label}}}' if label else ''} {number}"
            for label, number in samples
        ]
    return ("\n".join(lines) + "\n").encode()
