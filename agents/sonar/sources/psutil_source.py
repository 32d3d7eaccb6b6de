"""The process source `psutil`: portable, and the reference for the source `procfs`.

It lacks `data_cancelled`. All other fields equal those of `procfs`, within the kernel's rounding.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from ccagent.agents.sonar.jobs.attribution import ProcessAttribution
from ccagent.agents.sonar.process import (
    Process,
    ProcessEntry,
    ProcessSource,
    first_utilization,
    make_process,
    utilization,
)
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP
from ccagent.machine.procfs.process_files import KERNEL_THREAD, STEP_DAEMON, Io, ProcessStat, Statm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.machine.node import Node

_COMMAND_BYTES = 15
_KTHREADD = 2
_STATES = {psutil.STATUS_ZOMBIE: b"Z", psutil.STATUS_DEAD: b"X"}
_NO_IO = Io(0, 0, 0)


class PsutilSource(ProcessSource):
    """Reader of all wanted processes of the live machine through psutil."""

    name = "psutil"

    def __init__(self, node: Node, selection: ProcessSelection) -> None:
        if not node.is_live:
            raise ConfigurationError("source = 'psutil' reads the live machine only")
        super().__init__()
        self._node = node
        self._selection = selection
        self._entries: dict[str, ProcessEntry] = {}
        self._attribution = ProcessAttribution(node, selection, self._entries)
        self._boot = psutil.boot_time()
        self._began = 0.0

    def begin(self) -> None:
        """Take a first reading of CPU times."""
        self._take()

    def read(self) -> list[Process]:
        """Return all wanted processes."""
        taken = self._take()
        if any(entry.status.command == STEP_DAEMON for _, entry, _ in taken):
            self._attribution.look_for_steps()
        processes: list[Process] = []
        for process, entry, used in taken:
            try:
                self._attribute(process, entry)
                if self._is_wanted(entry):
                    memory, page = process.memory_info(), self._node.page_size
                    statm = Statm(max(0, memory.rss - memory.shared) // page, memory.data // page)
                    record = make_process(entry, used, statm, self._io(process), self._node)
                    processes.append(record)
            except (psutil.Error, ProcessLookupError):
                continue
            except OSError as error:
                self.errors.add(f"/proc/{process.pid}", error)
        return processes

    def _take(self) -> list[tuple[psutil.Process, ProcessEntry, float]]:
        """Return the processes, their entries, and their utilisation in percent of one core."""
        self.errors.clear()
        before = dict(self._entries)
        began, self._began = self._began, self._node.clock.monotonic()
        seconds = self._began - began if began else 0.0
        self._entries.clear()
        taken: list[tuple[psutil.Process, ProcessEntry, float]] = []
        for process in self._list():
            try:
                with process.oneshot():
                    status = self._status(process)
            except (psutil.Error, ProcessLookupError):
                continue
            except OSError as error:
                self.errors.add(f"/proc/{process.pid}", error)
                continue
            now, hertz = self._node.clock.monotonic(), self._node.clock_ticks
            name = str(process.pid)
            entry = before.get(name)
            if entry is None or entry.status.starttime != status.starttime:
                entry = ProcessEntry(name, status)
                start = status.starttime / hertz
                used = first_utilization(self._node, start, status.own_ticks, seconds)
            else:
                ticks = status.own_ticks - entry.status.own_ticks
                used = utilization(ticks, now - entry.read_at, hertz)
            entry.status, entry.read_at = status, now
            self._entries[name] = entry
            taken.append((process, entry, used))
        return taken

    def _list(self) -> Iterator[psutil.Process]:
        """Return the processes. If /proc can't be opened, return none and note an error."""
        try:
            yield from psutil.process_iter()
        except OSError as error:
            self.errors.add("/proc", error)

    def _status(self, process: psutil.Process) -> ProcessStat:
        """Return the fields of /proc/PID/stat. Raise psutil.Error or OSError."""
        times, hertz, ppid = process.cpu_times(), self._node.clock_ticks, process.ppid()
        own = times.user + times.system
        is_kernels = _KTHREADD in (process.pid, ppid)
        # psutil extends the names of programs from the command line.
        command = process.name().encode("utf-8", "surrogateescape")
        return ProcessStat(
            command=command if is_kernels else command[:_COMMAND_BYTES],
            state=_STATES.get(process.status(), b"S"),
            ppid=ppid,
            process_group=os.getpgid(process.pid),
            session=0,
            flags=KERNEL_THREAD if is_kernels else 0,
            own_ticks=round(own * hertz),
            all_ticks=round((own + times.children_user + times.children_system) * hertz),
            num_threads=process.num_threads(),
            starttime=round((process.create_time() - self._boot) * hertz),
        )

    def _attribute(self, process: psutil.Process, entry: ProcessEntry) -> None:
        entry.uid = process.uids().effective
        try:
            membership = self._attribution.read(entry)
        except CcagentError:
            membership = NO_MEMBERSHIP
        self._attribution.apply(entry, membership)

    def _is_wanted(self, entry: ProcessEntry) -> bool:
        seconds = entry.status.all_ticks / self._node.clock_ticks
        return entry.wanted and seconds >= self._selection.cpu_time and entry.status.state != b"X"

    def _io(self, process: psutil.Process) -> Io:
        try:
            io = process.io_counters()
        except psutil.AccessDenied:
            return _NO_IO
        if self._selection.storage_io:
            return Io(io.read_bytes, io.write_bytes, 0)
        return Io(io.read_chars, io.write_chars, 0)
