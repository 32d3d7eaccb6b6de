"""Counters of the control groups of Slurm's jobs.

They include ended processes, and memory of no process, such as page cache. Memory is split like the
kernel's accounting: a job that reads large files is charged for their page cache, but the kernel
can reclaim it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.cgroup.files import parse_fields, parse_io
from ccagent.machine.cgroup.job_files import DETAILED_FILES, FILES
from ccagent.machine.cgroup.jobs import V2, job_directories
from ccagent.machine.parsed import FileErrors

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_STEP = re.compile(r"step_[0-9a-z+]{1,22}", re.ASCII)
_TASK = re.compile(r"task_[0-9a-z]{1,20}", re.ASCII)
_LOOP = "7:"
_MOST_DEVICES = 10_000


class JobCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a job on this node; None: not available here.

    mem_used: charged B, compared with the limit, including page cache. mem_peak: maximum of
    mem_used; mem_limit: B. mem_anon: B of anonymous memory; mem_shmem: of shared memory and tmpfs;
    mem_file: page cache, including mem_shmem. mem_rss: B that the kernel cannot reclaim from the
    job's programs: mem_anon and mem_shmem. Version 1 before Linux 4.13 lacks these; there mem_rss
    is anonymous memory and mapped files.
    oom_kills: processes killed by the OOM killer. cpu_time, cpu_throttled: ns so far. io_read,
    io_write: B from and to block devices so far. pressure_*: us so far in which a task waited.
    is_continued: the sums are over the same control groups as at the previous reading. is_new:
    Slurm created the job's control groups after the previous reading, so the counters started at 0.

    Only with details: cpu_user, cpu_system: ns so far. cpus: hwthreads that the job may use.
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
    cpus: int | None = None
    mem_swapcached: int | None = None
    mem_failures: int | None = None
    swap_used: int | None = None
    swap_limit: int | None = None
    swap_failures: int | None = None
    pressure_cpu_full: int | None = None
    pressure_memory_full: int | None = None
    pressure_io_full: int | None = None
    is_continued: bool = True
    is_new: bool = False


_OOM_KILLS = {b"oom_kill": ("oom_kills", 1)}
_IO_FILES = {
    V2: ("io.stat",),
    # The second file is CFQ's, before Linux 5.0.
    "blkio": ("blkio.throttle.io_service_bytes_recursive", "blkio.io_service_bytes_recursive"),
}
_PRESSURE = "pressure_"


def _parse_kills(content: bytes) -> dict[str, int]:
    return parse_fields(content, _OOM_KILLS)


class JobCgroups(FileErrors):
    """Reads the counters of each job, as sums over several slurmd on one machine.

    errors: of the last reading, the first of each kind. is_detailed: read more files, for fields of
    JobCounters that are None otherwise.
    """

    def __init__(self, *, is_detailed: bool = False) -> None:
        super().__init__()
        self._files = DETAILED_FILES if is_detailed else FILES
        self._controllers = tuple(name for name in self._files if name != V2)
        self._directories: dict[int, dict[str, list[str]]] = {}
        self._is_complete = False
        self._kills: dict[str, dict[str, int]] = {}
        self._layered: dict[str, bool] = {}

    def first_directory(self, job: int) -> str:
        """Return the first controller's directory of a job at the last reading, or empty."""
        return next((paths[0] for paths in self._directories.get(job, {}).values()), "")

    def read(self, node: Node) -> dict[int, JobCounters]:
        """Return the counters by job id. Raise NotHereError if Slurm has no control group here."""
        self.forget_errors()
        before, self._directories = self._directories, {}
        was_complete, self._is_complete = self._is_complete, False
        try:
            directories = job_directories(node, self._controllers, self.complain)
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
        """Return the sums over all directories of a job; for pressure the mean."""
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
        for name, parse in self._files[kind].items():
            values |= self.try_parsed(node, f"{path}/{name}", parse) or {}
        for name in _IO_FILES.get(kind, ()):
            devices = self.try_parsed(node, f"{path}/{name}", parse_io)
            if devices is not None:
                used = [io for device, io in devices.items() if not self._is_layer(node, device)]
                values["io_read"] = sum(read for read, _ in used)
                values["io_write"] = sum(written for _, written in used)
                break
        if kind == "memory":
            values |= self._oom_kills_v1(node, path)
        return values

    def _oom_kills_v1(self, node: Node, path: str) -> dict[str, int]:
        """Return the sum over steps and tasks, including ended ones, for version 1.

        Version 1 does not sum over descendants (memcg_memory_event() in
        include/linux/memcontrol.h). The result is empty before Linux 4.13.
        """
        own = self.try_parsed(node, f"{path}/memory.oom_control", _parse_kills)
        if not own:
            return {}
        kills = self._kills.setdefault(path, {})
        kills[""] = own["oom_kills"]
        for step in self._names(node, path, _STEP):
            tasks = self._names(node, f"{path}/{step}", _TASK)
            for part in (step, *(f"{step}/{task}" for task in tasks)):
                found = self.try_parsed(node, f"{path}/{part}/memory.oom_control", _parse_kills)
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
            try:
                known = bool(node.list(f"sys/dev/block/{device}/slaves"))
            except CcagentError:
                known = False
            self._layered[device] = known
        return known

    def _names(self, node: Node, directory: str, form: re.Pattern[str]) -> list[str]:
        try:
            return sorted(filter(form.fullmatch, node.list(directory)))
        except NotHereError:
            return []
        except CcagentError as error:
            self.complain(form.pattern, error)
            return []
