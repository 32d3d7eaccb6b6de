"""The process source `psutil`: portable, and the reference for the source `procfs`.

It lacks `data_cancelled`. All other fields equal those of `procfs`, within the kernel's rounding.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from ccagent.agents.sonar.jobs.attribution import Ancestry, Containers
from ccagent.agents.sonar.process import Process, kilobytes, utilization
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP, CgroupMembership, find_membership
from ccagent.machine.procfs.process_files import DEFUNCT, STEP_DAEMON, parse_stat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.machine.node import Node
    from ccagent.machine.procfs.process_files import ProcessStat

_COMMAND_BYTES = 15
_KTHREADD = 2
_STEP_DAEMON = STEP_DAEMON.decode("ascii")


class PsutilSource:
    """Reader of all wanted processes of the live machine through psutil."""

    name = "psutil"
    counts_ended = False

    def __init__(self, node: Node, selection: ProcessSelection) -> None:
        if not node.is_live:
            raise ConfigurationError("source = 'psutil' reads the live machine only")
        self.errors: list[str] = []
        self._node = node
        self._selection = selection
        self._boot = psutil.boot_time()
        self._before: dict[tuple[int, float], tuple[int, float]] = {}
        self._reading = 0
        self._began = self._before_at = 0.0
        self._has_steps = False
        self._ancestry = Ancestry(node, self._kin)
        self._kins: dict[int, tuple[ProcessStat, int]] = {}
        self._descents: dict[tuple[int, int], int] = {}
        self._containers = Containers(node)
        self._contained: dict[tuple[int, float], tuple[str, bool]] = {}

    def begin(self) -> None:
        """Take a first reading of CPU times."""
        self._reading += 1
        self._before_at, self._began = self._began, self._node.clock.monotonic()
        for process in self._list():
            try:
                self._utilization(process)
            except psutil.Error:
                continue
            except OSError as error:
                self._complain(process, error)

    def read(self) -> list[Process]:
        """Return all wanted processes."""
        self.errors = []
        self._reading += 1
        self._before_at, self._began = self._began, self._node.clock.monotonic()
        tree: dict[int, tuple[str, int]] = {}
        found: list[tuple[psutil.Process, CgroupMembership]] = []
        seen: set[tuple[int, float]] = set()
        for process in self._list():
            try:
                tree[process.pid] = (_command(process), process.ppid())
                found.append((process, self._membership(process.pid)))
                seen.add((process.pid, process.create_time()))
            except psutil.Error:
                continue
            except OSError as error:
                self._complain(process, error)
        self._kins = {}
        self._has_steps = bool(self._descents) or any(
            command == _STEP_DAEMON for command, _ in tree.values()
        )
        processes: list[Process] = []
        for process, membership in found:
            try:
                with process.oneshot():
                    record = self._record(process, membership, tree)
            except (psutil.Error, ProcessLookupError):
                continue
            except OSError as error:
                self._complain(process, error)
                continue
            if record is not None:
                processes.append(record)
        for known in (self._before, self._contained):
            for key in known.keys() - seen:
                del known[key]
        self._descents = {
            (pid, status.starttime): job for pid, (status, job) in self._kins.items() if job
        }
        return processes

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _list(self) -> Iterator[psutil.Process]:
        """Return the processes. If /proc can't be opened, return none and note an error."""
        try:
            yield from psutil.process_iter()
        except OSError as error:
            self.errors.append(f"/proc: {error.strerror}")

    def _complain(self, process: psutil.Process, error: OSError) -> None:
        """Add the error of an omitted process, such as missing descriptors."""
        self.errors.append(f"/proc/{process.pid}: {error.strerror}")

    def _record(
        self,
        process: psutil.Process,
        membership: CgroupMembership,
        tree: dict[int, tuple[str, int]],
    ) -> Process | None:
        command, ppid = tree[process.pid]
        uid = process.uids().effective
        job = self._job(process.pid, uid, membership)
        # kdevtmpfs, a thread of the kernel, has mounts of its own.
        is_kernels = _KTHREADD in (process.pid, ppid)
        in_container = not is_kernels and self._is_in_container(process, command)
        if not self._selection.wants(self._node, uid, command, in_container=in_container):
            return None
        times = process.cpu_times()
        used = self._utilization(process)
        all_seconds = times.user + times.system + times.children_user + times.children_system
        if all_seconds < self._selection.cpu_time or process.status() == psutil.STATUS_DEAD:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            command += DEFUNCT
        memory = process.memory_info()
        try:
            io = process.io_counters()
            read, written = io.read_chars, io.write_chars
            if self._selection.storage_io:
                read, written = io.read_bytes, io.write_bytes
            data_read, data_written = kilobytes(read), kilobytes(written)
        except psutil.AccessDenied:
            data_read = data_written = 0
        return Process(
            pid=process.pid,
            ppid=ppid,
            process_group=os.getpgid(process.pid),
            job=job,
            uid=uid,
            command=command,
            in_container=in_container,
            start_time=process.create_time() - self._boot,
            cpu_seconds=times.user + times.system,
            cpu_time=int(all_seconds + 0.5),
            cpu_util=used,
            resident_memory=max(0, memory.rss - memory.shared) // 1024,
            virtual_memory=memory.data // 1024,
            num_threads=max(0, process.num_threads() - 1),
            data_read=data_read,
            data_written=data_written,
        )

    def _utilization(self, process: psutil.Process) -> float:
        """Return the CPU utilisation since the previous reading, in percent of one core."""
        times = process.cpu_times()
        hertz = self._node.clock_ticks
        ticks = round((times.user + times.system) * hertz)
        now = self._node.clock.monotonic()
        key = (process.pid, process.create_time())
        before = self._before.get(key)
        self._before[key] = (ticks, now)
        if before is not None:
            return utilization(ticks - before[0], now - before[1], hertz)
        if self._reading <= 1:
            return 0.0
        # Without an earlier reading of this process: the mean over its life.
        age = self._node.clock.time() - process.create_time()
        return utilization(ticks, max(now - self._before_at, age), hertz)

    def _job(self, pid: int, uid: int, membership: CgroupMembership) -> int:
        """Return the Slurm job of a process. Ancestors are read only if the node has Slurm jobs."""
        known = self._kin(pid) if self._has_steps else None
        if known is None:
            return membership.job
        status, descent = known
        job, descent = self._ancestry.job(status, descent, uid, membership)
        self._kins[pid] = status, descent
        return job

    def _kin(self, pid: int) -> tuple[ProcessStat, int] | None:
        """Return stat and the earlier descent of a process, read once per reading."""
        if pid not in self._kins:
            try:
                status = parse_stat(self._node.read_single(f"proc/{pid}/stat"))
            except CcagentError:
                return None
            self._kins[pid] = status, self._descents.get((pid, status.starttime), 0)
        return self._kins[pid]

    def _is_in_container(self, process: psutil.Process, command: str) -> bool:
        """Return whether a process is in a container; looked up once for each program it runs."""
        key = process.pid, process.create_time()
        known, is_inside = self._contained.get(key, ("", False))
        if known != command:
            with suppress(CcagentError):
                is_inside = self._containers.is_inside(process.pid)
            self._contained[key] = command, is_inside
        return is_inside

    def _membership(self, pid: int) -> CgroupMembership:
        try:
            return find_membership(self._node, self._node.read(f"proc/{pid}/cgroup"))
        except CcagentError:
            return NO_MEMBERSHIP


def _command(process: psutil.Process) -> str:
    """Return the kernel's name of a process; psutil's name is extended from the command line."""
    name = process.name()
    if process.pid == _KTHREADD or process.ppid() == _KTHREADD:
        return name
    return name.encode("utf-8", "surrogateescape")[:_COMMAND_BYTES].decode("utf-8", "replace")
