"""The store's own metrics, in Prometheus' text format."""

from __future__ import annotations

import resource
from typing import Any

from ccagent.machine.own_memory import read_resident
from ccagent.stores.budgets import sender_label

_GAUGES = frozenset({"ready", "uptime_seconds", "series_cached", "body_bytes", "resident_bytes"})


_OF_SENDERS = (
    "messages", "bytes", "records", "new_series", "refused_records", "refused_arrays",
    "refused_requests",
)  # fmt: skip


def describe_numbers(numbers: dict[str, int], senders: list[dict[str, Any]]) -> bytes:
    """Return the numbers as metrics, with CPU time and memory of this process.

    senders: the dearest senders with their counters.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines: list[str] = []
    for name, value in {
        **numbers,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "resident_bytes": read_resident(),
    }.items():
        kind = "gauge" if name in _GAUGES else "counter"
        full = f"ccagent_jobstats_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# TYPE {full} {kind}", f"{full} {value}"]
    for name in _OF_SENDERS if senders else ():
        full = f"ccagent_jobstats_sender_{name}_total"
        lines.append(f"# TYPE {full} counter")
        lines += [f"{full}{{{sender_label(one['sender'])}}} {one.get(name, 0)}" for one in senders]
    return ("\n".join(lines) + "\n").encode()
