"""The process source `procfs`: our own reader of /proc, made for speed.

/proc/PID/stat, statm and io are opened once per process and read again with pread(2): that
costs a third of opening them each time, and a descriptor whose process is gone answers ESRCH,
so that it can't be mistaken for a new process with the same pid. Where RLIMIT_NOFILE does not
suffice, or others of this process need the descriptors, files are opened at each reading.

What seldom changes (owner, cgroup) is read when a process is first seen, at the reading after
that, when its command, parent, group or session has changed, and else every `placing.EVERY`
readings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.attribution import Placer
from ccagent.agents.sonar.process import Process, utilization
from ccagent.agents.sonar.sources.complaints import Complaints
from ccagent.agents.sonar.sources.entry import FileEntry, make_process
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
)
from ccagent.machine.descriptors import CLOSED, LARGEST, UNUSED, Descriptors
from ccagent.machine.procfs.process_files import (
    IO_OF_CALLS,
    IO_OF_STORAGE,
    KERNEL_THREAD,
    STEP_DAEMON,
    Io,
    Stat,
    Statm,
    parse_io,
    parse_stat,
    parse_statm,
)
from ccagent.records.envelopes import NO_FLOAT

if TYPE_CHECKING:
    from ccagent.agents.sonar.jobs.selection import Selection
    from ccagent.machine.node import Node

_NO_MEMORY = Statm(0, 0)
_NO_IO = Io(0, 0, 0)
_GONE = (NotHereError, VanishedError)


class ProcfsSource:
    """All wanted processes of /proc. See the module for how they are read."""

    name = "procfs"
    counts_ended = False

    def __init__(self, node: Node, selection: Selection) -> None:
        self._node = node
        self._least_ticks = selection.cpu_time * node.clock_ticks
        self._io_lines = IO_OF_STORAGE if selection.storage_io else IO_OF_CALLS
        self._entries: dict[str, FileEntry] = {}
        self._reading = 0
        self._began = 0.0
        self._descriptors = Descriptors(node, self._give_back)
        self._complaints = Complaints()
        self._placer = Placer(node, selection, self._entries, self._complaints)

    @property
    def errors(self) -> list[str]:
        """What could not be read or parsed at the last reading, a sentence each."""
        return self._complaints.errors

    def begin(self) -> None:
        """Open every process and remember the CPU time it has used."""
        self._complaints.begin_reading()
        self._descriptors.ensure_room()
        self._reading += 1
        self._began = self._node.clock.monotonic()
        for entry in self._admit([name for name in self._list() if name not in self._entries]):
            entry.place_at += 1  # the sample that follows at once need not look again

    def read(self) -> list[Process]:
        """Read all wanted processes."""
        self._complaints.begin_reading()
        self._descriptors.ensure_room()
        self._reading += 1
        reading, entries, monotonic = self._reading, self._entries, self._node.clock.monotonic
        before, began = self._began, monotonic()
        self._began = began
        pread = os.pread
        processes: list[Process] = []
        fresh: list[str] = []
        for name in self._list():
            entry = entries.get(name)
            if entry is None:
                fresh.append(name)
                continue
            try:
                stat_raw = (
                    pread(entry.stat, LARGEST, 0)
                    if entry.stat >= 0
                    else self._descriptors.read(CLOSED, f"proc/{name}/stat")
                )
                entry.seen = reading
                process = entry.process
                if (
                    stat_raw == entry.stat_raw
                    and reading < entry.place_at
                    and (process is None or not process.cpu_util)
                ):
                    entry.read_at = monotonic()
                    if not entry.wanted:
                        continue
                    # The process slept: only memory and I/O can have changed, and seldom have.
                    if (
                        process is not None
                        and (entry.statm < 0 or pread(entry.statm, LARGEST, 0) == entry.statm_raw)
                        and (entry.io < 0 or pread(entry.io, LARGEST, 0) == entry.io_raw)
                        and CLOSED not in (entry.statm, entry.io)
                    ):
                        processes.append(process)
                        continue
                process = self._advance(entry, stat_raw)
            except (ProcessLookupError, *_GONE):
                # The process is gone; its pid may belong to another by now.
                self._forget(entry)
                fresh.append(name)
                continue
            except OSError as error:
                self.errors.append(f"/proc/{name}: {error.strerror}")
                continue
            except CcagentError as error:
                self.errors.append(str(error))
                continue
            if process is not None:
                processes.append(process)
        processes += self._first_readings(self._admit(fresh), began - before if before else 0.0)
        self._sweep()
        return processes

    def close(self) -> None:
        """Close all descriptors."""
        for entry in list(self._entries.values()):
            self._forget(entry)

    def _list(self) -> list[str]:
        """List the pids of /proc; empty, with an error, if it can't be."""
        try:
            names = [name for name in self._node.list("proc") if name.isdecimal()]
        except CcagentError as error:
            self.errors.append(str(error))
            return []
        if self._node.is_live and "1" not in names:
            self._complaints.say_once(
                "hidepid",
                "/proc shows only some processes: it is mounted with hidepid=2; "
                "CAP_SYS_PTRACE or membership in its gid= group shows all",
            )
        return names

    def _admit(self, names: list[str]) -> list[FileEntry]:
        """Open processes that were not known, and find out whose they are."""
        admitted: list[FileEntry] = []
        for name in names:
            path, stat = f"proc/{name}/stat", CLOSED
            try:
                stat = self._descriptors.open(path)
                stat_raw = self._descriptors.read(stat, path)
                entry = FileEntry(name, self._parsed(name, stat_raw), stat_raw, stat)
            except _GONE:
                self._descriptors.close(stat)
                continue
            except NotPermittedError:
                self._descriptors.close(stat)
                self._complaints.say_once(
                    "stat",
                    "processes of other users can't be read: /proc is mounted with hidepid=1; "
                    "CAP_SYS_PTRACE or membership in its gid= group lets them be read",
                )
                continue
            except CcagentError as error:
                self._descriptors.close(stat)
                self.errors.append(str(error))
                continue
            entry.read_at = self._node.clock.monotonic()
            entry.seen = self._reading
            self._entries[name] = entry
            admitted.append(entry)
        if any(entry.status.command == STEP_DAEMON for entry in admitted):
            self._placer.look_for_steps()
        # Only now that parents are known can it be told who descends from a supervisor.
        for entry in list(admitted):
            try:
                self._place(entry)
                entry.place_at = self._reading + 1
            except _GONE:
                self._forget(entry)
                admitted.remove(entry)
        return admitted

    def _first_readings(self, entries: list[FileEntry], seconds: float) -> list[Process]:
        """Make the records of processes that weren't known at the previous reading.

        seconds: since that reading; 0 if there was none.
        """
        processes: list[Process] = []
        for entry in entries:
            try:
                process = self._record(entry, self._first_use(entry, seconds))
            except _GONE:
                self._forget(entry)
                continue
            if process is not None:
                processes.append(process)
        return processes

    def _advance(self, entry: FileEntry, stat_raw: bytes) -> Process | None:
        """Take over a new reading of a known process; None if it isn't wanted."""
        before = entry.status
        status = before if stat_raw == entry.stat_raw else self._parsed(entry.name, stat_raw)
        if status.starttime != before.starttime:
            raise VanishedError(entry.name)
        now = self._node.clock.monotonic()
        used = utilization(
            status.own_ticks - before.own_ticks, now - entry.read_at, self._node.clock_ticks
        )
        changed = (
            status.command != before.command
            or status.ppid != before.ppid
            or status.process_group != before.process_group
            or status.session != before.session
        )
        entry.stat_raw, entry.status, entry.read_at = stat_raw, status, now
        # The names of kernel workers change with their work; their owner and cgroup never do.
        if self._reading >= entry.place_at or (changed and not status.flags & KERNEL_THREAD):
            self._place(entry)
        return self._record(entry, used)

    def _first_use(self, entry: FileEntry, seconds: float) -> float:
        """Give what a process used that began since the previous reading, in percent of a core.

        One that could not be read before is told of over its life.
        """
        if not seconds:
            return NO_FLOAT
        age = self._node.clock.uptime() - entry.status.starttime / self._node.clock_ticks
        return utilization(entry.status.own_ticks, max(seconds, age), self._node.clock_ticks)

    def _place(self, entry: FileEntry) -> None:
        """Find out whose it is. Raises VanishedError if the process is gone."""
        self._placer.place(entry, self._reading)
        if entry.io == UNUSED:
            entry.io = CLOSED  # the owner may have changed, and with it the permission

    def _record(self, entry: FileEntry, used: float) -> Process | None:
        """Build the record of a process, or give the last one if it would be equal."""
        status = entry.status
        if not entry.wanted or status.all_ticks < self._least_ticks:
            return None
        if status.state in b"Xx" or status.process_group < 0:
            return None  # being reaped: most of its fields are gone
        errors = len(self.errors)
        memory = self._memory(entry)
        io = self._io(entry)
        process = make_process(entry, used, memory, io, self._node)
        if len(self.errors) > errors:
            entry.process = None  # not to be taken for unchanged: the error is to be told again
            return process
        if process != entry.process:
            entry.process = process
        return entry.process

    def _memory(self, entry: FileEntry) -> Statm:
        """Read statm; kernel threads have no memory of their own."""
        if entry.status.flags & KERNEL_THREAD:
            entry.statm = UNUSED
            return _NO_MEMORY
        if entry.statm == UNUSED:
            entry.statm = CLOSED  # a thread that has executed a program
        path = f"proc/{entry.name}/statm"
        try:
            if entry.statm == CLOSED:
                entry.statm = self._descriptors.open(path)
            entry.statm_raw = self._descriptors.read(entry.statm, path)
            return parse_statm(entry.statm_raw)
        except _GONE:
            raise
        except CcagentError as error:
            self._complaints.add(f"/{path}", error)
            return _NO_MEMORY

    def _io(self, entry: FileEntry) -> Io:
        """Read io, which belongs to the owner and to root."""
        if entry.io == UNUSED:
            return _NO_IO
        path = f"proc/{entry.name}/io"
        try:
            if entry.io == CLOSED:
                entry.io = self._descriptors.open(path)
            entry.io_raw = self._descriptors.read(entry.io, path)
            return parse_io(entry.io_raw, self._io_lines)
        except VanishedError:
            raise
        except NotHereError:
            # Absent on kernels without task I/O accounting; the process is still there.
            entry.io = UNUSED
        except NotPermittedError:
            self._descriptors.close(entry.io)
            entry.io = UNUSED
            self._complaints.say_once(
                "io",
                "I/O counters of some processes can't be read: those of other users need "
                "CAP_SYS_PTRACE together with CAP_DAC_READ_SEARCH, as root has",
            )
        except CcagentError as error:
            self._complaints.add(f"/{path}", error)
        return _NO_IO

    def _parsed(self, name: str, stat_raw: bytes) -> Stat:
        try:
            return parse_stat(stat_raw)
        except UnparsableError as error:
            raise UnparsableError(f"/proc/{name}/stat: {error}") from None

    def _forget(self, entry: FileEntry) -> None:
        self._descriptors.close(*entry.descriptors)
        del self._entries[entry.name]

    def _give_back(self, count: int) -> None:
        """Close at least `count` of the descriptors that are kept, if there are as many."""
        left = count
        for entry in self._entries.values():
            if left <= 0:
                return
            opened = [descriptor for descriptor in entry.descriptors if descriptor >= 0]
            self._descriptors.close(*opened)
            left -= len(opened)
            entry.forget_descriptors()

    def _sweep(self) -> None:
        """Forget the processes that the listing no longer had."""
        gone = [entry for entry in self._entries.values() if entry.seen != self._reading]
        for entry in gone:
            self._forget(entry)
