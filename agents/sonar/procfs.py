"""The process source `procfs`: our own reader of /proc, made for speed.

/proc/PID/stat, statm and io are opened once per process and read again with pread(2): that
costs a third of opening them each time, and a descriptor whose process is gone answers ESRCH,
so that it can't be mistaken for a new process with the same pid. Where RLIMIT_NOFILE does not
suffice, files are opened at each reading.

What seldom changes (owner, cgroup) is read when a process is first seen, at the reading after
that, when its command, parent, group or session has changed, and else every `_PLACE_EVERY`
readings.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from ccagent.agents.sonar.cgroup import Placement, parse_cgroup
from ccagent.agents.sonar.containers import is_supervisor
from ccagent.agents.sonar.process import Process, kilobytes, utilization
from ccagent.agents.sonar.process_files import (
    KERNEL_THREAD,
    Io,
    Stat,
    Statm,
    command_text,
    parse_io,
    parse_stat,
    parse_statm,
)
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
)
from ccagent.log import logger
from ccagent.node import raise_for

if TYPE_CHECKING:
    from ccagent.agents.sonar.selection import Selection
    from ccagent.node import Node

_CLOSED = -1
"""A file that is opened at each reading, for lack of descriptors."""
_UNUSED = -2
"""A file that is never read: it can tell nothing, or may not be read."""

_PLACE_EVERY = 20
_RESERVED_DESCRIPTORS = 256
_LARGEST = 1024
"""Bytes of a file that are read: all that is used of it stands well before."""

_PLACEMENTS_REMEMBERED = 10_000
_NO_MEMORY = Statm(0, 0)
_NO_IO = Io(0, 0, 0)
_GONE = (NotHereError, VanishedError)


class _Entry:
    """One process between readings: its descriptors, what they last gave, what follows from it."""

    __slots__ = (
        "group", "in_container", "io", "io_raw", "job", "name", "place_at", "process", "read_at",
        "seen", "stat", "stat_raw", "statm", "statm_raw", "status", "uid", "wanted",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.stat = self.statm = self.io = _CLOSED
        self.stat_raw = self.statm_raw = self.io_raw = b""
        self.status: Stat
        self.read_at = 0.0
        self.seen = 0
        self.place_at = 0
        self.uid = 0
        self.job = 0
        self.in_container = False
        self.wanted = True
        self.process: Process | None = None


class ProcfsSource:
    """All wanted processes of /proc. See the module for how they are read."""

    def __init__(self, node: Node, selection: Selection) -> None:
        self.errors: list[str] = []
        self._node = node
        self._selection = selection
        self._least_ticks = selection.cpu_time * node.clock_ticks
        self._entries: dict[str, _Entry] = {}
        self._reading = 0
        self._free_descriptors = _raise_descriptor_limit()
        self._placements: dict[bytes, Placement] = {}
        self._said: set[str] = set()

    def begin(self) -> None:
        """Open every process and remember the CPU time it has used."""
        self.errors = []
        self._reading += 1
        self._admit([name for name in self._list() if name not in self._entries])

    def read(self) -> list[Process]:
        """Read all wanted processes."""
        self.errors = []
        self._reading += 1
        reading, entries, monotonic = self._reading, self._entries, self._node.clock.monotonic
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
                    pread(entry.stat, _LARGEST, 0) if entry.stat >= 0 else self._get(entry, "stat")
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
                        and (entry.statm < 0 or pread(entry.statm, _LARGEST, 0) == entry.statm_raw)
                        and (entry.io < 0 or pread(entry.io, _LARGEST, 0) == entry.io_raw)
                        and _CLOSED not in (entry.statm, entry.io)
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
        processes += self._first_readings(self._admit(fresh))
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
            self._say_once(
                "hidepid",
                "/proc shows only some processes: it is mounted with hidepid=2; "
                "CAP_SYS_PTRACE or membership in its gid= group shows all",
            )
        return names

    def _admit(self, names: list[str]) -> list[_Entry]:
        """Open processes that were not known, and find out whose they are."""
        admitted: list[_Entry] = []
        for name in names:
            entry = _Entry(name)
            try:
                entry.stat = self._keep_open(name, "stat")
                entry.stat_raw = self._get(entry, "stat")
                entry.status = self._parsed(entry, entry.stat_raw)
                entry.read_at = self._node.clock.monotonic()
            except _GONE:
                self._shut(entry)
                continue
            except NotPermittedError:
                self._shut(entry)
                self._say_once(
                    "stat",
                    "processes of other users can't be read: /proc is mounted with hidepid=1; "
                    "CAP_SYS_PTRACE or membership in its gid= group lets them be read",
                )
                continue
            except CcagentError as error:
                self._shut(entry)
                self.errors.append(str(error))
                continue
            entry.seen = self._reading
            self._entries[name] = entry
            admitted.append(entry)
        # Only now that parents are known can it be told who descends from a supervisor.
        for entry in list(admitted):
            try:
                self._place(entry)
                entry.place_at = self._reading + 1
            except _GONE:
                self._forget(entry)
                admitted.remove(entry)
        return admitted

    def _first_readings(self, entries: list[_Entry]) -> list[Process]:
        """Make the records of processes that weren't known at the previous reading."""
        processes: list[Process] = []
        for entry in entries:
            try:
                process = self._record(entry, entry.status, self._born_utilization(entry))
            except _GONE:
                self._forget(entry)
                continue
            if process is not None:
                processes.append(process)
        return processes

    def _born_utilization(self, entry: _Entry) -> float:
        """Utilisation of a process that began since the previous reading: over its life."""
        if self._reading <= 1:
            return 0.0
        age = self._node.clock.uptime() - entry.status.starttime / self._node.clock_ticks
        return utilization(entry.status.own_ticks, max(age, 0.01), self._node.clock_ticks)

    def _advance(self, entry: _Entry, stat_raw: bytes) -> Process | None:
        """Take over a new reading of a known process; None if it isn't wanted."""
        before = entry.status
        status = before if stat_raw == entry.stat_raw else self._parsed(entry, stat_raw)
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
        return self._record(entry, status, used)

    def _record(self, entry: _Entry, status: Stat, used: float) -> Process | None:
        """Build the record of a process, or give the last one if it would be equal."""
        if not entry.wanted or status.all_ticks < self._least_ticks:
            return None
        if status.state in b"Xx" or status.process_group < 0:
            return None  # being reaped: most of its fields are gone
        errors = len(self.errors)
        memory = self._memory(entry)
        io = self._io(entry)
        ticks = self._node.clock_ticks
        page = self._node.page_size
        process = Process(
            pid=int(entry.name),
            ppid=status.ppid,
            process_group=status.process_group,
            job=entry.job,
            uid=entry.uid,
            command=command_text(status.command, status.state),
            in_container=entry.in_container,
            start_time=status.starttime / ticks,
            cpu_seconds=status.own_ticks / ticks,
            cpu_time=(status.all_ticks + ticks // 2) // ticks,
            cpu_util=used,
            resident_memory=memory.private * page // 1024,
            virtual_memory=memory.data * page // 1024,
            num_threads=max(0, status.num_threads - 1),
            data_read=kilobytes(io.rchar),
            data_written=kilobytes(io.wchar),
            data_cancelled=kilobytes(io.cancelled_write_bytes),
        )
        if len(self.errors) > errors:
            entry.process = None  # not to be taken for unchanged: the error is to be told again
            return process
        if process != entry.process:
            entry.process = process
        return entry.process

    def _memory(self, entry: _Entry) -> Statm:
        """Read statm; kernel threads have no memory of their own."""
        if entry.statm == _UNUSED:
            return _NO_MEMORY
        if entry.status.flags & KERNEL_THREAD:
            entry.statm = _UNUSED
            return _NO_MEMORY
        try:
            if entry.statm == _CLOSED:
                entry.statm = self._keep_open(entry.name, "statm")
            entry.statm_raw = self._get(entry, "statm")
            return parse_statm(entry.statm_raw)
        except _GONE:
            raise
        except CcagentError as error:
            self._report(entry, "statm", error)
            return _NO_MEMORY

    def _io(self, entry: _Entry) -> Io:
        """Read io, which belongs to the owner and to root."""
        if entry.io == _UNUSED:
            return _NO_IO
        try:
            if entry.io == _CLOSED:
                entry.io = self._keep_open(entry.name, "io")
            entry.io_raw = self._get(entry, "io")
            return parse_io(entry.io_raw)
        except VanishedError:
            raise
        except NotHereError:
            # Absent on kernels without task I/O accounting; the process is still there.
            entry.io = _UNUSED
        except NotPermittedError:
            self._close_io(entry)
            self._say_once(
                "io",
                "I/O counters of some processes can't be read: those of other users need "
                "CAP_SYS_PTRACE together with CAP_DAC_READ_SEARCH, as root has",
            )
        except CcagentError as error:
            self._report(entry, "io", error)
        return _NO_IO

    def _place(self, entry: _Entry) -> None:
        """Find out owner, job and container of a process, and whether it is wanted."""
        # Staggered by pid, so that the processes of one job are not all due at once.
        self._schedule(entry)
        path = f"proc/{entry.name}"
        placement = Placement(entry.job, container=False)
        try:
            entry.uid = self._node.owner(path)
            placement = self._placement(self._node.read_single(f"{path}/cgroup"))
        except NotHereError:
            if not self._exists(path):
                raise VanishedError(path) from None
        except NotPermittedError as error:
            self._say_once("cgroup", f"jobs of some processes can't be told: {error}")
        except VanishedError:
            raise
        except CcagentError as error:
            self.errors.append(str(error))
        entry.job = placement.job
        entry.in_container = placement.container or self._has_supervisor(entry)
        if entry.io == _UNUSED:
            entry.io = _CLOSED  # the owner may have changed, and with it the permission
        command = command_text(entry.status.command, b"")
        entry.wanted = self._selection.wants(
            self._node, entry.uid, command, in_container=entry.in_container
        )

    def _schedule(self, entry: _Entry) -> None:
        spread = int(entry.name) % _PLACE_EVERY
        entry.place_at = self._reading + _PLACE_EVERY - (self._reading + spread) % _PLACE_EVERY

    def _exists(self, path: str) -> bool:
        try:
            self._node.owner(path)
        except CcagentError:
            return False
        return True

    def _placement(self, cgroup: bytes) -> Placement:
        known = self._placements.get(cgroup)
        if known is None:
            if len(self._placements) >= _PLACEMENTS_REMEMBERED:
                self._placements.clear()
            known = self._placements[cgroup] = parse_cgroup(cgroup)
        return known

    def _has_supervisor(self, entry: _Entry) -> bool:
        """Climb to the ancestors. The snapshot can have gaps and, in theory, circles."""
        if is_supervisor(command_text(entry.status.command, b"")):
            return False
        passed: set[int] = set()
        ppid = entry.status.ppid
        while ppid > 1 and ppid not in passed:
            passed.add(ppid)
            parent = self._entries.get(str(ppid))
            if parent is None:
                return False
            if is_supervisor(command_text(parent.status.command, b"")):
                return True
            ppid = parent.status.ppid
        return False

    def _parsed(self, entry: _Entry, stat_raw: bytes) -> Stat:
        try:
            return parse_stat(stat_raw)
        except UnparsableError as error:
            raise UnparsableError(f"/proc/{entry.name}/stat: {error}") from None

    def _get(self, entry: _Entry, file: str) -> bytes:
        """Read one file of a process, by its descriptor if there is one."""
        descriptor: int = getattr(entry, file)
        if descriptor < 0:
            return self._node.read_single(f"proc/{entry.name}/{file}")
        try:
            return os.pread(descriptor, _LARGEST, 0)
        except OSError as error:
            raise_for(f"proc/{entry.name}/{file}", error)

    def _keep_open(self, name: str, file: str) -> int:
        """Open a file to keep; `_CLOSED` if there are no descriptors left."""
        if self._free_descriptors <= 0:
            return _CLOSED
        descriptor = self._node.open(f"proc/{name}/{file}")
        self._free_descriptors -= 1
        return descriptor

    def _close_io(self, entry: _Entry) -> None:
        if entry.io >= 0:
            os.close(entry.io)
            self._free_descriptors += 1
        entry.io, entry.io_raw = _UNUSED, b""

    def _report(self, entry: _Entry, file: str, error: CcagentError) -> None:
        text = str(error)
        path = f"/proc/{entry.name}/{file}"
        self.errors.append(text if text.startswith(path) else f"{path}: {text}")

    def _forget(self, entry: _Entry) -> None:
        self._shut(entry)
        self._entries.pop(entry.name, None)

    def _shut(self, entry: _Entry) -> None:
        for descriptor in (entry.stat, entry.statm, entry.io):
            if descriptor >= 0:
                os.close(descriptor)
                self._free_descriptors += 1
        entry.stat = entry.statm = entry.io = _CLOSED

    def _sweep(self) -> None:
        """Forget the processes that the listing no longer had."""
        gone = [entry for entry in self._entries.values() if entry.seen != self._reading]
        for entry in gone:
            self._forget(entry)

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", text)


def _raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; give how many may be kept open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1_048_576
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass
    return max(0, soft - _RESERVED_DESCRIPTORS)
