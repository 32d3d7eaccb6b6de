"""The files of a job's control group, and their counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.machine.cgroup.files import parse_amount, parse_fields, parse_limit
from ccagent.machine.cgroup.jobs import V2
from ccagent.machine.cgroup.pressure import parse_pressure
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Callable


def _amount(field: str) -> Callable[[bytes], dict[str, int]]:
    return lambda content: {field: parse_amount(content)}


def _limit(content: bytes) -> dict[str, int]:
    limit = parse_limit(content)
    return {} if limit is None else {"mem_limit": limit}


def _fields(**fields: tuple[str, int]) -> Callable[[bytes], dict[str, int]]:
    wanted = {name.encode(): field for name, field in fields.items()}
    return lambda content: parse_fields(content, wanted)


def _memory(anon: str, shmem: str, file: str, mapped: str) -> Callable[[bytes], dict[str, int]]:
    """Return a parser of memory.stat for the names of a version."""
    names = {anon: "mem_anon", shmem: "mem_shmem", file: "mem_file", mapped: "mapped"}
    wanted = {name.encode(): (field, 1) for name, field in names.items()}

    def parse(content: bytes) -> dict[str, int]:
        found = parse_fields(content, wanted)
        mapped = found.pop("mapped", None)
        shared = found.get("mem_shmem", mapped)
        if "mem_anon" in found and shared is not None:
            found["mem_rss"] = found["mem_anon"] + shared
        return found

    return parse


def _pressure(field: str) -> Callable[[bytes], dict[str, int]]:
    def parse(content: bytes) -> dict[str, int]:
        some = parse_pressure(content).get("some")
        return {} if some is None else {field: some.total}

    return parse


FILES: dict[str, dict[str, Callable[[bytes], dict[str, int]]]] = {
    "memory": {
        "memory.usage_in_bytes": _amount("mem_used"),
        "memory.max_usage_in_bytes": _amount("mem_peak"),
        "memory.limit_in_bytes": _limit,
        # Fields without `total_` exclude the steps.
        "memory.stat": _memory("total_rss", "total_shmem", "total_cache", "total_mapped_file"),
    },
    "cpuacct": {"cpuacct.usage": _amount("cpu_time")},
    "cpu": {"cpu.stat": _fields(throttled_time=("cpu_throttled", 1))},
    "blkio": {},
    V2: {
        "memory.current": _amount("mem_used"),
        "memory.peak": _amount("mem_peak"),
        "memory.max": _limit,
        "memory.stat": _memory("anon", "shmem", "file", "file_mapped"),
        "memory.events": _fields(oom_kill=("oom_kills", 1)),
        "cpu.stat": _fields(usage_usec=("cpu_time", 1000), throttled_usec=("cpu_throttled", 1000)),
        "cpu.pressure": _pressure("pressure_cpu"),
        "memory.pressure": _pressure("pressure_memory"),
        "io.pressure": _pressure("pressure_io"),
    },
}
"""Files of a job by controller of version 1, and all files of version 2."""

_TICK = 10_000_000
"""Length of a tick of cpuacct.stat in ns: USER_HZ is 100."""


def _both_pressures(field: str) -> Callable[[bytes], dict[str, int]]:
    def parse(content: bytes) -> dict[str, int]:
        found = parse_pressure(content)
        names = {"some": field, "full": f"{field}_full"}
        return {names[extent]: each.total for extent, each in found.items()}

    return parse


def _optional(field: str) -> Callable[[bytes], dict[str, int]]:
    def parse(content: bytes) -> dict[str, int]:
        limit = parse_limit(content)
        return {} if limit is None else {field: limit}

    return parse


def _cpus(content: bytes) -> dict[str, int]:
    cpus = parse_cpu_list(content)
    return {"cpus": len(cpus)} if cpus else {}


def _and(*parsers: Callable[[bytes], dict[str, int]]) -> Callable[[bytes], dict[str, int]]:
    """Return a parser that reads several counters from one file."""

    def parse(content: bytes) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in parsers:
            found |= each(content)
        return found

    return parse


DETAILED_FILES: dict[str, dict[str, Callable[[bytes], dict[str, int]]]] = {
    "memory": {
        **FILES["memory"],
        "memory.failcnt": _amount("mem_failures"),
        "memory.memsw.usage_in_bytes": _amount("swap_used"),
        "memory.memsw.limit_in_bytes": _optional("swap_limit"),
        "memory.memsw.failcnt": _amount("swap_failures"),
    },
    "cpuacct": {
        **FILES["cpuacct"],
        "cpuacct.stat": _fields(user=("cpu_user", _TICK), system=("cpu_system", _TICK)),
    },
    "cpu": FILES["cpu"],
    "cpuset": {"cpuset.cpus": _cpus},
    "blkio": {},
    V2: {
        **FILES[V2],
        "memory.stat": _and(FILES[V2]["memory.stat"], _fields(swapcached=("mem_swapcached", 1))),
        "memory.events": _fields(oom_kill=("oom_kills", 1), oom=("mem_failures", 1)),
        "memory.swap.current": _amount("swap_used"),
        "memory.swap.max": _optional("swap_limit"),
        "cpu.stat": _and(
            FILES[V2]["cpu.stat"],
            _fields(user_usec=("cpu_user", 1000), system_usec=("cpu_system", 1000)),
        ),
        "cpuset.cpus": _cpus,
        "cpu.pressure": _both_pressures("pressure_cpu"),
        "memory.pressure": _both_pressures("pressure_memory"),
        "io.pressure": _both_pressures("pressure_io"),
    },
}
"""FILES, and additional files for the Prometheus endpoint."""
