"""Counters of the control groups of Slurm's jobs, and the files that have them.

They include ended processes, and memory of no process, such as page cache. Memory is split like the
kernel's accounting: a job that reads large files is charged for their page cache, but the kernel
can reclaim it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.cgroup.files import parse_amount, parse_fields, parse_io, parse_limit
from ccagent.machine.cgroup.jobs import V2, JobDirectory, job_directories
from ccagent.machine.parsed import FileErrors
from ccagent.machine.procfs.system import parse_pressure

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node, NodeFiles

    _Parser = Callable[[bytes], dict[str, int]]


def _amount(field: str) -> _Parser:
    return lambda content: {field: parse_amount(content)}


def _limit(field: str) -> _Parser:
    def parse(content: bytes) -> dict[str, int]:
        limit = parse_limit(content)
        return {} if limit is None else {field: limit}

    return parse


def _fields(**fields: tuple[str, int]) -> _Parser:
    wanted = {name.encode(): field for name, field in fields.items()}
    return lambda content: parse_fields(content, wanted)


def _memory(anon: str, shmem: str, file: str, mapped: str, **more: str) -> _Parser:
    """Return a parser of memory.stat for the names of a version."""
    names = {anon: "mem_anon", shmem: "mem_shmem", file: "mem_file", mapped: "mem_mapped", **more}
    wanted = {name.encode(): (field, 1) for name, field in names.items()}

    def parse(content: bytes) -> dict[str, int]:
        found = parse_fields(content, wanted)
        shared = found.get("mem_shmem", found.get("mem_mapped"))
        if "mem_anon" in found and shared is not None:
            found["mem_rss"] = found["mem_anon"] + shared
        return found

    return parse


def _pressure(**fields: str) -> _Parser:
    """Return a parser of *.pressure. fields: by extent, `some` and `full`."""

    def parse(content: bytes) -> dict[str, int]:
        found = parse_pressure(content)
        return {field: found[name].total for name, field in fields.items() if name in found}

    return parse


FILES: dict[str, dict[str, _Parser]] = {
    "memory": {
        "memory.usage_in_bytes": _amount("mem_used"),
        "memory.max_usage_in_bytes": _amount("mem_peak"),
        "memory.limit_in_bytes": _limit("mem_limit"),
        # Fields without `total_` exclude the steps.
        "memory.stat": _memory("total_rss", "total_shmem", "total_cache", "total_mapped_file"),
    },
    "cpuacct": {"cpuacct.usage": _amount("cpu_time")},
    "cpu": {"cpu.stat": _fields(throttled_time=("cpu_throttled", 1))},
    "blkio": {},
    V2: {
        "memory.current": _amount("mem_used"),
        "memory.peak": _amount("mem_peak"),
        "memory.max": _limit("mem_limit"),
        "memory.stat": _memory("anon", "shmem", "file", "file_mapped"),
        "memory.events": _fields(oom_kill=("oom_kills", 1)),
        "cpu.stat": _fields(usage_usec=("cpu_time", 1000), throttled_usec=("cpu_throttled", 1000)),
        "cpu.pressure": _pressure(some="pressure_cpu"),
        "memory.pressure": _pressure(some="pressure_memory"),
        "io.pressure": _pressure(some="pressure_io"),
    },
}
"""Files of a job by controller of version 1, and all files of version 2."""

_TICK = 10_000_000
"""Length of a tick of cpuacct.stat in ns: USER_HZ is 100."""


DETAILED_FILES: dict[str, dict[str, _Parser]] = {
    "memory": {
        **FILES["memory"],
        "memory.stat": _memory(
            "total_rss", "total_shmem", "total_cache", "total_mapped_file",
            total_rss_huge="mem_huge", total_active_file="mem_active_file",
            total_inactive_file="mem_inactive_file", total_unevictable="mem_unevictable",
        ),
        "memory.failcnt": _amount("mem_failures"),
        "memory.memsw.usage_in_bytes": _amount("swap_used"),
        "memory.memsw.limit_in_bytes": _limit("swap_limit"),
        "memory.memsw.failcnt": _amount("swap_failures"),
    },
    "cpuacct": {
        **FILES["cpuacct"],
        "cpuacct.stat": _fields(user=("cpu_user", _TICK), system=("cpu_system", _TICK)),
    },
    "cpu": FILES["cpu"],
    "cpuset": {},
    "blkio": {},
    V2: {
        **FILES[V2],
        "memory.stat": _memory(
            "anon", "shmem", "file", "file_mapped", swapcached="mem_swapcached",
            anon_thp="mem_huge", active_file="mem_active_file",
            inactive_file="mem_inactive_file", unevictable="mem_unevictable",
        ),
        "memory.events": _fields(oom_kill=("oom_kills", 1), oom=("mem_failures", 1)),
        "memory.swap.current": _amount("swap_used"),
        "memory.swap.max": _limit("swap_limit"),
        "cpu.stat": _fields(
            usage_usec=("cpu_time", 1000),
            throttled_usec=("cpu_throttled", 1000),
            user_usec=("cpu_user", 1000),
            system_usec=("cpu_system", 1000),
        ),
        "cpu.pressure": _pressure(some="pressure_cpu", full="pressure_cpu_full"),
        "memory.pressure": _pressure(some="pressure_memory", full="pressure_memory_full"),
        "io.pressure": _pressure(some="pressure_io", full="pressure_io_full"),
    },
}  # fmt: skip
"""FILES, and additional files for the Prometheus endpoint."""

_STEP = re.compile(r"step_[0-9a-z+]{1,22}", re.ASCII)
_TASK = re.compile(r"task_[0-9a-z]{1,20}", re.ASCII)
_LOOP = "7:"
_MOST_DEVICES = 10_000


class JobCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a job on this node; None: not available here.

    mem_used: charged B, compared with the limit, including page cache. mem_peak: maximum of
    mem_used; mem_limit: B. mem_anon: B of anonymous memory; mem_shmem: of shared memory and tmpfs;
    mem_file: page cache, including mem_shmem; mem_mapped: mapped files. mem_rss: B that the kernel
    cannot reclaim from the job's programs: mem_anon and mem_shmem. Version 1 before Linux 4.13
    lacks these; there mem_rss is anonymous memory and mapped files.
    oom_kills: processes killed by the OOM killer. cpu_time, cpu_throttled: ns so far. io_read,
    io_write: B from and to block devices so far. pressure_*: us so far in which a task waited.
    is_continued: the sums are over the same control groups as at the previous reading. is_new:
    Slurm created the job's control groups after the previous reading, so the counters started at 0.

    Only with details: cpu_user, cpu_system: ns so far. mem_huge: B of mem_anon in huge pages.
    mem_active_file, mem_inactive_file, mem_unevictable: B by the kernel's lists of pages.
    mem_swapcached: B that are both in swap space and in memory. mem_failures: number of times that
    the memory limit was reached. swap_used, swap_limit: B of swap space; on version 1 the sum of
    memory and swap space. swap_failures: number of times that swap_limit was reached.
    pressure_*_full: us so far in which no task could work.
    """

    mem_used: int | None = None
    mem_rss: int | None = None
    mem_anon: int | None = None
    mem_shmem: int | None = None
    mem_file: int | None = None
    mem_mapped: int | None = None
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
    cpu_user: int | None = None
    cpu_system: int | None = None
    mem_swapcached: int | None = None
    mem_huge: int | None = None
    mem_active_file: int | None = None
    mem_inactive_file: int | None = None
    mem_unevictable: int | None = None
    mem_failures: int | None = None
    swap_used: int | None = None
    swap_limit: int | None = None
    swap_failures: int | None = None
    pressure_cpu_full: int | None = None
    pressure_memory_full: int | None = None
    pressure_io_full: int | None = None
    is_continued: bool = True
    is_new: bool = False


_parse_kills = _fields(oom_kill=("oom_kills", 1))

_CFQ = "blkio.io_service_bytes_recursive"
"""File of the scheduler CFQ, before Linux 5.0. It has no disk of another scheduler."""

_IO_FILES = {
    V2: ("io.stat",),
    "blkio": ("blkio.throttle.io_service_bytes_recursive", _CFQ),
}

_PRESSURE = "pressure_"


class JobCgroups(FileErrors):
    """Reads the counters of each job, as sums over several slurmd on one machine.

    errors: of the last reading, the first of each kind. is_detailed: read more files, for fields of
    JobCounters that are None otherwise. directories: of the jobs at the last reading, by job and
    controller. devices: results of `parse_io` for io.stat, by directory of version 2.
    """

    def __init__(self, *, is_detailed: bool = False) -> None:
        super().__init__()
        self._files = DETAILED_FILES if is_detailed else FILES
        self._controllers = tuple(name for name in self._files if name != V2)
        self.directories: dict[int, dict[str, list[JobDirectory]]] = {}
        self.devices: dict[str, dict[str, tuple[int, ...]]] = {}
        self._is_complete = False
        self._kills: dict[str, dict[str, int]] = {}
        self._paths: dict[str, list[tuple[str, _Parser]]] = {}
        self._layered: dict[str, bool] = {}

    def read(self, node: Node, files: NodeFiles | None = None) -> dict[int, JobCounters]:
        """Return the counters by job id. Raise NotHereError if Slurm has no control group here.

        files: files of the node that are kept open.
        """
        self.forget_errors()
        self.devices = {}
        before, self.directories = self.directories, {}
        was_complete, self._is_complete = self._is_complete, False
        try:
            directories = job_directories(node, self._controllers, self.complain)
        except NotHereError:
            self._is_complete = True
            raise
        self._is_complete = not self.errors
        for each in directories:
            kinds = self.directories.setdefault(each.job, {})
            kinds.setdefault(each.controller, []).append(each)
        found: dict[int, JobCounters] = {}
        for job, kinds in self.directories.items():
            values: dict[str, int] = {}
            for kind, own in kinds.items():
                values |= self._sums(node, files or node, kind, [each.path for each in own])
            found[job] = JobCounters(
                **values,
                is_continued=before.get(job, kinds) == kinds,
                is_new=was_complete and job not in before,
            )
        here = {each.path for each in directories}
        self._kills = {path: kills for path, kills in self._kills.items() if path in here}
        self._paths = {path: paths for path, paths in self._paths.items() if path in here}
        return found

    def _sums(self, node: Node, files: NodeFiles, kind: str, paths: list[str]) -> dict[str, int]:
        """Return the sums over all directories of a job; for pressure the mean."""
        parts = [self._values(node, files, kind, path) for path in paths]
        if len(parts) == 1:
            return parts[0]
        sums: dict[str, int] = {}
        for field in parts[0]:
            if all(field in part for part in parts):
                total = sum(part[field] for part in parts)
                sums[field] = total // len(parts) if field.startswith(_PRESSURE) else total
        return sums

    def _values(self, node: Node, files: NodeFiles, kind: str, path: str) -> dict[str, int]:
        values: dict[str, int] = {}
        paths = self._paths.get(path)
        if paths is None:
            named = self._files[kind].items()
            paths = self._paths[path] = [(f"{path}/{name}", parse) for name, parse in named]
        for place, parse in paths:
            found = self.try_parsed(files, place, parse)
            if found:
                values |= found
        for name in _IO_FILES.get(kind, ()):
            devices = self.try_parsed(files, f"{path}/{name}", parse_io)
            if devices or (devices is not None and name != _CFQ):
                used = [io for device, io in devices.items() if not self._is_layer(node, device)]
                values["io_read"] = sum(io[0] for io in used)
                values["io_write"] = sum(io[1] for io in used)
                if kind == V2:
                    self.devices[path] = devices
                break
        if kind == "memory":
            values |= self._oom_kills_v1(files, path)
        return values

    def _oom_kills_v1(self, files: NodeFiles, path: str) -> dict[str, int]:
        """Return the sum over steps and tasks, including ended ones, for version 1.

        Version 1 does not sum over descendants (memcg_memory_event() in
        include/linux/memcontrol.h). The result is empty before Linux 4.13.
        """
        own = self.try_parsed(files, f"{path}/memory.oom_control", _parse_kills)
        if not own:
            return {}
        kills = self._kills.setdefault(path, {})
        kills[""] = own["oom_kills"]
        for step in self._names(files, path, _STEP):
            tasks = self._names(files, f"{path}/{step}", _TASK)
            for part in (step, *(f"{step}/{task}" for task in tasks)):
                found = self.try_parsed(files, f"{path}/{part}/memory.oom_control", _parse_kills)
                if found and found["oom_kills"]:
                    kills[part] = found["oom_kills"]
        return {"oom_kills": sum(kills.values())}

    def _is_layer(self, node: Node, device: str) -> bool:
        """Return whether the I/O of a device is also counted for other devices: dm, md, loop."""
        if device.startswith(_LOOP):
            return True
        known = self._layered.get(device)
        if known is None:
            if len(self._layered) >= _MOST_DEVICES:
                self._layered.clear()
            known = bool(node.list_names(f"sys/dev/block/{device}/slaves"))
            self._layered[device] = known
        return known

    def _names(self, files: NodeFiles, directory: str, form: re.Pattern[str]) -> list[str]:
        try:
            return sorted(filter(form.fullmatch, files.directories(directory)))
        except NotHereError:
            return []
        except CcagentError as error:
            self.complain(form.pattern, error)
            return []
