"""Counters of the control groups of Slurm's jobs.

They include ended processes, and amounts that belong to no process, such as page cache. Memory is
split as by the kernel: a reader of large files is charged for their cache, but holds none of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ccagent.errors import CcagentError, NotHereError, VanishedError
from ccagent.machine.cgroup.files import parse_amount, parse_fields, parse_io, parse_limit
from ccagent.machine.cgroup.jobs import V2, job_directories
from ccagent.machine.cgroup.pressure import parse_pressure
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

T = TypeVar("T")

_V1 = ("memory", "cpuacct", "cpu", "blkio")
_STEP = re.compile(r"step_[0-9a-z+]{1,22}", re.ASCII)
_TASK = re.compile(r"task_[0-9a-z]{1,20}", re.ASCII)
_LOOP = "7:"
_MOST_DEVICES = 10_000


class JobCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a job on this node; None: not available here.

    mem_used: B that are charged, which count towards the limit, page cache included. mem_peak: the
    most that mem_used has been; mem_limit: B. mem_anon: B of anonymous memory; mem_shmem: of shared
    memory and tmpfs; mem_file: page cache, mem_shmem included. mem_rss: B that the job's programs
    hold and the kernel cannot reclaim: mem_anon and mem_shmem, or on version 1 before Linux 4.13,
    which lacks these, anonymous memory and mapped files.
    oom_kills: processes killed for want of memory. cpu_time, cpu_throttled: ns so far.
    io_read, io_write: B from and to block devices so far. pressure_*: us so far in which a task
    waited. is_continued: the sums are over the same control groups as at the reading before.
    is_new: Slurm made the job's control groups since that reading, so they counted from 0.
    """

    mem_used: int | None = None
    mem_rss: int | None = None
    mem_anon: int | None = None
    mem_shmem: int | None = None
    mem_file: int | None = None
    mem_peak: int | None = None
    mem_limit: int | None = None
    oom_kills: int | None = None
    cpu_time: int | None = None
    cpu_throttled: int | None = None
    io_read: int | None = None
    io_write: int | None = None
    pressure_cpu: int | None = None
    pressure_memory: int | None = None
    pressure_io: int | None = None
    is_continued: bool = True
    is_new: bool = False


def _amount(field: str) -> Callable[[bytes], dict[str, int]]:
    return lambda content: {field: parse_amount(content)}


def _limit(content: bytes) -> dict[str, int]:
    limit = parse_limit(content)
    return {} if limit is None else {"mem_limit": limit}


def _fields(**fields: tuple[str, int]) -> Callable[[bytes], dict[str, int]]:
    wanted = {name.encode(): field for name, field in fields.items()}
    return lambda content: parse_fields(content, wanted)


def _memory(anon: str, shmem: str, file: str, mapped: str) -> Callable[[bytes], dict[str, int]]:
    """Return a parser of memory.stat, by the names that the version has."""
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


_FILES: dict[str, dict[str, Callable[[bytes], dict[str, int]]]] = {
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
"""Files of a job by controller of version 1, or all those of version 2."""

_OOM_CONTROL = _fields(oom_kill=("oom_kills", 1))
_IO_FILES = {
    V2: ("io.stat",),
    # The second one is CFQ's, before Linux 5.0.
    "blkio": ("blkio.throttle.io_service_bytes_recursive", "blkio.io_service_bytes_recursive"),
}
_PRESSURE = "pressure_"


class JobCgroups:
    """Counters of each job; those of several slurmd on one machine add up.

    errors: of the last reading, the first of each kind.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._reported: set[str] = set()
        self._directories: dict[int, dict[str, list[str]]] = {}
        self._is_complete = False
        self._kills: dict[str, dict[str, int]] = {}
        self._layered: dict[str, bool] = {}

    def read(self, node: Node) -> dict[int, JobCounters]:
        """Return the counters by job id. Raises NotHereError without a control group of Slurm."""
        self.errors = []
        self._reported = set()
        before, self._directories = self._directories, {}
        was_complete, self._is_complete = self._is_complete, False
        try:
            directories = job_directories(node, _V1, self._complain)
        except NotHereError:
            self._is_complete = True
            raise
        self._is_complete = not self.errors
        for each in directories:
            kinds = self._directories.setdefault(each.job, {})
            kinds.setdefault(each.controller, []).append(each.path)
        found: dict[int, JobCounters] = {}
        for job, kinds in self._directories.items():
            values: dict[str, int] = {}
            for kind, paths in kinds.items():
                values |= self._sums(node, kind, paths)
            found[job] = JobCounters(
                **values,
                is_continued=before.get(job, kinds) == kinds,
                is_new=was_complete and job not in before,
            )
        here = {path for kinds in self._directories.values() for path in kinds.get("memory", ())}
        self._kills = {path: kills for path, kills in self._kills.items() if path in here}
        return found

    def _sums(self, node: Node, kind: str, paths: list[str]) -> dict[str, int]:
        """Return the sums over all directories of a job, for pressure the mean."""
        parts = [self._values(node, kind, path) for path in paths]
        if len(parts) == 1:
            return parts[0]
        sums: dict[str, int] = {}
        for field in parts[0]:
            if all(field in part for part in parts):
                total = sum(part[field] for part in parts)
                sums[field] = total // len(parts) if field.startswith(_PRESSURE) else total
        return sums

    def _values(self, node: Node, kind: str, path: str) -> dict[str, int]:
        values: dict[str, int] = {}
        for name, parse in _FILES[kind].items():
            values |= self._read_parsed(node, f"{path}/{name}", parse) or {}
        for name in _IO_FILES.get(kind, ()):
            devices = self._read_parsed(node, f"{path}/{name}", parse_io)
            if devices is not None:
                used = [io for device, io in devices.items() if not self._is_layer(node, device)]
                values["io_read"] = sum(read for read, _ in used)
                values["io_write"] = sum(written for _, written in used)
                break
        if kind == "memory":
            values |= self._oom_kills_v1(node, path)
        return values

    def _oom_kills_v1(self, node: Node, path: str) -> dict[str, int]:
        """Return the sum over the steps and tasks, also ended ones, which version 1 does not count.

        (memcg_memory_event() in include/linux/memcontrol.h.) Nothing before Linux 4.13.
        """
        own = self._read_parsed(node, f"{path}/memory.oom_control", _OOM_CONTROL)
        if not own:
            return {}
        kills = self._kills.setdefault(path, {})
        kills[""] = own["oom_kills"]
        for step in self._names(node, path, _STEP):
            tasks = self._names(node, f"{path}/{step}", _TASK)
            for part in (step, *(f"{step}/{task}" for task in tasks)):
                found = self._read_parsed(node, f"{path}/{part}/memory.oom_control", _OOM_CONTROL)
                if found and found["oom_kills"]:
                    kills[part] = found["oom_kills"]
        return {"oom_kills": sum(kills.values())}

    def _is_layer(self, node: Node, device: str) -> bool:
        """Return whether the I/O of a device is also counted for others: dm, md, loop."""
        if device.startswith(_LOOP):
            return True
        known = self._layered.get(device)
        if known is None:
            if len(self._layered) >= _MOST_DEVICES:
                self._layered.clear()
            try:
                known = bool(node.list(f"sys/dev/block/{device}/slaves"))
            except CcagentError:
                known = False
            self._layered[device] = known
        return known

    def _read_parsed(self, node: Node, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Read and parse a file; None if it does not exist, any more, or can't be parsed."""
        try:
            return read_parsed(node, path, parse)
        except (NotHereError, VanishedError):
            return None
        except CcagentError as error:
            self._complain(path.rpartition("/")[2], error)
            return None

    def _names(self, node: Node, directory: str, form: re.Pattern[str]) -> list[str]:
        try:
            return sorted(filter(form.fullmatch, node.list(directory)))
        except NotHereError:
            return []
        except CcagentError as error:
            self._complain(form.pattern, error)
            return []

    def _complain(self, key: str, error: CcagentError) -> None:
        """Add the first error of a kind of file."""
        if key not in self._reported:
            self._reported.add(key)
            self.errors.append(str(error))
