"""The process source `procfs`: ccagent's own fast reader of /proc.

/proc/PID/stat, statm and io are opened once per process and read again with pread(2). That costs a
third of opening them each time. A descriptor whose process has ended returns ESRCH, so it can't be
mistaken for a new process with the same pid. If RLIMIT_NOFILE does not suffice, or other parts of
ccagent need the descriptors, the files are opened at each reading.

Owner and cgroup seldom change. They are read when a process first appears, at the next reading,
when its command, parent, group or session changes, and otherwise every `attribution.EVERY`
readings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.attribution import EVERY, ZOMBIE, ProcessAttribution
from ccagent.agents.sonar.process import (
    Process,
    ProcessEntry,
    ProcessErrors,
    ProcessSource,
    first_utilization,
    make_process,
    utilization,
)
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    VanishedError,
)
from ccagent.machine.cgroup.jobs import NO_MEMBERSHIP
from ccagent.machine.descriptors import CLOSED, LARGEST, UNUSED, Descriptors
from ccagent.machine.procfs.process_files import (
    IO_OF_CALLS,
    IO_OF_STORAGE,
    KERNEL_THREAD,
    STEP_DAEMON,
    Io,
    Statm,
    parse_io,
    parse_stat,
    parse_statm,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.sonar.process import ProcessSelection
    from ccagent.machine.cgroup.jobs import CgroupMembership
    from ccagent.machine.node import Node

GONE = (NotHereError, VanishedError)
"""Errors of reads of an ended process."""

_NO_MEMORY = Statm(0, 0)
_NO_IO = Io(0, 0, 0)


class FileEntry(ProcessEntry, eq=False):
    """A process of the source `procfs`, with its open files.

    stat, statm, io: descriptors, or CLOSED or UNUSED. *_raw: content of the last read.
    """

    stat: int = CLOSED
    statm: int = CLOSED
    io: int = CLOSED
    stat_raw: bytes = b""
    statm_raw: bytes = b""
    io_raw: bytes = b""


class ProcessFiles:
    """Reader of the files of processes. entries: all known processes, by pid.

    io_lines: the lines of /proc/PID/io for data read and data written.
    """

    def __init__(
        self,
        node: Node,
        entries: Mapping[str, FileEntry],
        errors: ProcessErrors,
        io_lines: tuple[bytes, bytes],
    ) -> None:
        self.descriptors = Descriptors(node, self._close_some)
        self._node = node
        self._entries = entries
        self._errors = errors
        self._io_lines = io_lines

    def open_stat(self, name: str) -> FileEntry:
        """Open and parse stat of a process. Raise CcagentError if that fails."""
        path, stat = f"proc/{name}/stat", CLOSED
        try:
            stat = self.descriptors.open(path)
            raw = self.descriptors.read(stat, path)
            return FileEntry(name, parse_stat(raw), stat=stat, stat_raw=raw)
        except CcagentError:
            self.descriptors.close(stat)
            raise

    def read_memory(self, entry: FileEntry) -> Statm:
        """Read statm of a process; kernel threads have no memory."""
        if entry.status.flags & KERNEL_THREAD:
            entry.statm = UNUSED
            return _NO_MEMORY
        if entry.statm == UNUSED:
            entry.statm = CLOSED  # a thread that called execve(2)
        path = f"proc/{entry.name}/statm"
        try:
            if entry.statm == CLOSED:
                entry.statm = self.descriptors.open(path)
            entry.statm_raw = self.descriptors.read(entry.statm, path)
            return parse_statm(entry.statm_raw)
        except GONE:
            raise
        except CcagentError as error:
            self._errors.add(f"/{path}", error)
            return _NO_MEMORY

    def read_io(self, entry: FileEntry) -> Io:
        """Read io of a process. Only its owner and root have permission."""
        if entry.io == UNUSED:
            return _NO_IO
        path = f"proc/{entry.name}/io"
        try:
            if entry.io == CLOSED:
                entry.io = self.descriptors.open(path)
            entry.io_raw = self.descriptors.read(entry.io, path)
            return parse_io(entry.io_raw, self._io_lines)
        except VanishedError:
            raise
        except NotHereError:
            # Kernels without task I/O accounting lack the file, although the process exists.
            entry.io = UNUSED
        except NotPermittedError:
            self.descriptors.close(entry.io)
            entry.io = UNUSED
            self._errors.log_once(
                "io",
                "I/O counters of some processes can't be read",
                self._node,
                "CAP_SYS_PTRACE",
                "CAP_DAC_READ_SEARCH",
            )
        except CcagentError as error:
            self._errors.add(f"/{path}", error)
        return _NO_IO

    def _close_some(self, count: int) -> None:
        """Close at least `count` kept descriptors, or all if there are fewer."""
        left = count
        for entry in self._entries.values():
            if left <= 0:
                return
            files = entry.stat, entry.statm, entry.io
            self.descriptors.close(*files)
            left -= sum(descriptor >= 0 for descriptor in files)
            entry.stat, entry.statm, entry.io = (min(descriptor, CLOSED) for descriptor in files)


class ProcfsSource(ProcessSource):
    """Reader of all wanted processes of /proc; see the module's docstring."""

    name = "procfs"

    def __init__(self, node: Node, selection: ProcessSelection) -> None:
        self._node = node
        self._least_ticks = selection.cpu_time * node.clock_ticks
        self._entries: dict[str, FileEntry] = {}
        self._reading = 0
        self._began = 0.0
        super().__init__()
        lines = IO_OF_STORAGE if selection.storage_io else IO_OF_CALLS
        self._files = ProcessFiles(node, self._entries, self.errors, lines)
        self._attribution = ProcessAttribution(node, selection, self._entries)

    def begin(self) -> None:
        """Open the files of every process and remember its CPU time."""
        self.errors.clear()
        self._files.descriptors.ensure_room()
        self._reading += 1
        self._began = self._node.clock.monotonic()
        for entry in self._admit([name for name in self._list() if name not in self._entries]):
            entry.attribute_at += 1  # the sample follows at once and need not repeat it

    def read(self) -> list[Process]:
        """Return all wanted processes."""
        self.errors.clear()
        self._files.descriptors.ensure_room()
        self._reading += 1
        reading, entries, monotonic = self._reading, self._entries, self._node.clock.monotonic
        before, self._began = self._began, monotonic()
        names = self._list()
        pread = os.pread
        processes: list[Process] = []
        fresh: list[str] = []
        for name in names:
            entry = entries.get(name)
            if entry is None:
                fresh.append(name)
                continue
            try:
                stat_raw = (
                    pread(entry.stat, LARGEST, 0)
                    if entry.stat >= 0
                    else self._files.descriptors.read(CLOSED, f"proc/{name}/stat")
                )
                process = entry.process
                if (
                    stat_raw == entry.stat_raw
                    and reading < entry.attribute_at
                    and (process is None or not process.cpu_util)
                ):
                    entry.read_at = monotonic()
                    if not entry.wanted:
                        continue
                    # The process slept: only memory and I/O can have changed.
                    if (
                        process is not None
                        and (entry.statm < 0 or pread(entry.statm, LARGEST, 0) == entry.statm_raw)
                        and (entry.io < 0 or pread(entry.io, LARGEST, 0) == entry.io_raw)
                        and CLOSED not in (entry.statm, entry.io)
                    ):
                        processes.append(process)
                        continue
                process = self._advance(entry, stat_raw)
            except (ProcessLookupError, NotPermittedError, *GONE):
                # The process has ended, and another one may have its pid; or /proc hides it now.
                self._forget(name)
                fresh.append(name)
                continue
            except (OSError, CcagentError) as error:
                path = f"/proc/{name}" if isinstance(error, OSError) else f"/proc/{name}/stat"
                self.errors.add(path, error)
                continue
            if process is not None:
                processes.append(process)
        if fresh:
            processes += self._first_readings(self._admit(fresh), before)
        self._forget(*(entries.keys() - set(names)))
        return processes

    def close(self) -> None:
        """Close all descriptors."""
        self._forget(*self._entries)

    def _list(self) -> list[str]:
        """Return the pids of /proc. If /proc can't be listed, return none and note an error."""
        try:
            names = [name for name in self._node.list("proc") if name.isdecimal()]
        except CcagentError as error:
            self.errors.append(str(error))
            return []
        if self._node.is_live and names and "1" not in names:
            self.errors.log_once(
                "hidepid",
                "/proc shows only some processes: it is mounted with hidepid=2, and this user is "
                "not in its gid= group",
                self._node,
                "CAP_SYS_PTRACE",
            )
        return names

    def _admit(self, names: list[str]) -> list[FileEntry]:
        """Open and attribute new processes."""
        admitted: list[FileEntry] = []
        for name in names:
            try:
                entry = self._files.open_stat(name)
            except GONE:
                continue
            except NotPermittedError:
                self.errors.log_once(
                    "stat",
                    "processes of other users can't be read: /proc is mounted with hidepid=1, and "
                    "this user is not in its gid= group",
                    self._node,
                    "CAP_SYS_PTRACE",
                )
                continue
            except CcagentError as error:
                self.errors.add(f"/proc/{name}/stat", error)
                continue
            entry.read_at = self._node.clock.monotonic()
            self._entries[name] = entry
            admitted.append(entry)
        if any(entry.status.command == STEP_DAEMON for entry in admitted):
            self._attribution.look_for_steps()
        # Attribution needs all parents, and they are known only now.
        for entry in list(admitted):
            try:
                self._attribute(entry)
                entry.attribute_at = self._reading + 1
            except GONE:
                self._forget(entry.name)
                admitted.remove(entry)
        return admitted

    def _first_readings(self, entries: list[FileEntry], before: float) -> list[Process]:
        """Return the processes that are new since the previous reading.

        before: monotonic time of the previous reading; 0 if there was none.
        """
        seconds = self._began - before if before else 0.0
        processes: list[Process] = []
        for entry in entries:
            try:
                start = entry.status.starttime / self._node.clock_ticks
                used = first_utilization(self._node, start, entry.status.own_ticks, seconds)
                process = self._record(entry, used)
            except GONE:
                self._forget(entry.name)
                continue
            if process is not None:
                processes.append(process)
        return processes

    def _advance(self, entry: FileEntry, stat_raw: bytes) -> Process | None:
        """Return a known process after a new reading; None if it isn't wanted."""
        before = entry.status
        status = before if stat_raw == entry.stat_raw else parse_stat(stat_raw)
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
        # Kernel workers change their names with their work, but never their owner or cgroup.
        if self._reading >= entry.attribute_at or (changed and not status.flags & KERNEL_THREAD):
            self._attribute(entry)
        return self._record(entry, used)

    def _attribute(self, entry: FileEntry) -> None:
        """Look up owner, job and container. Raise VanishedError if the process has ended."""
        was_attributed = entry.attribute_at > 0
        # Staggered by pid: the processes of one job are not all due at once.
        entry.attribute_at = self._reading + EVERY - (self._reading + int(entry.name)) % EVERY
        if entry.io == UNUSED:
            entry.io = CLOSED  # a new owner changes the permission to read io
        if was_attributed and entry.status.state == ZOMBIE:
            return
        path = f"proc/{entry.name}"
        membership: CgroupMembership | None = None
        try:
            entry.uid = self._node.owner(path)
            membership = self._attribution.read(entry)
        except NotHereError:
            try:
                self._node.owner(path)
            except CcagentError as error:
                raise VanishedError(path) from error
            membership = NO_MEMBERSHIP  # a kernel without control groups
        except VanishedError:
            raise
        except NotPermittedError as error:
            membership = NO_MEMBERSHIP
            self.errors.log_once("cgroup", f"jobs of some processes are unknown: {error}")
        except CcagentError as error:
            self.errors.append(str(error))
        self._attribution.apply(entry, membership)

    def _record(self, entry: FileEntry, used: float) -> Process | None:
        """Return the process of an entry, the previous object if equal; None if unwanted."""
        status = entry.status
        if not entry.wanted or status.all_ticks < self._least_ticks:
            return None
        if status.state in b"Xx" or status.process_group < 0:
            return None  # being reaped: most of its fields are unset
        errors = len(self.errors)
        memory, io = self._files.read_memory(entry), self._files.read_io(entry)
        process = make_process(entry, used, memory, io, self._node)
        if len(self.errors) > errors:
            entry.process = None  # the next reading must repeat the error
            return process
        if process != entry.process:
            entry.process = process
        return entry.process

    def _forget(self, *names: str) -> None:
        for name in names:
            entry = self._entries.pop(name)
            self._files.descriptors.close(entry.stat, entry.statm, entry.io)
