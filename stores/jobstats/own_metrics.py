"""The store's own metrics, in Prometheus' text format."""

from __future__ import annotations

import resource

from ccagent.machine.own_memory import read_resident

_GAUGES = frozenset({"ready", "uptime_seconds", "series_cached", "body_bytes", "resident_bytes"})


def describe_numbers(numbers: dict[str, int]) -> bytes:
    """Return the numbers as metrics, with CPU time and memory of this process."""
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
    return ("\n".join(lines) + "\n").encode()
