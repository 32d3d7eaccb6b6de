"""Open files of processes: stat, statm and io, read again with pread(2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.process import ProcessEntry
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
)
from ccagent.machine.descriptors import CLOSED, UNUSED, Descriptors
from ccagent.machine.procfs.process_files import (
    KERNEL_THREAD,
    Io,
    ProcessStat,
    Statm,
    parse_io,
    parse_stat,
    parse_statm,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.sonar.sources.complaints import Complaints
    from ccagent.machine.node import Node

GONE = (NotHereError, VanishedError)
"""Error numbers of reads of an ended process."""

_NO_MEMORY = Statm(0, 0)
_NO_IO = Io(0, 0, 0)


class FileEntry(ProcessEntry):
    """A process of the source `procfs`, with its open files.

    stat, statm, io: descriptors, or CLOSED or UNUSED. *_raw: content of the last read. seen: number
    of the last reading with this process.
    """

    __slots__ = ("io", "io_raw", "seen", "stat", "stat_raw", "statm", "statm_raw")

    def __init__(self, name: str, status: ProcessStat, stat_raw: bytes, stat: int) -> None:
        super().__init__(name, status)
        self.stat_raw = stat_raw
        self.stat = stat
        self.statm = self.io = CLOSED
        self.statm_raw = self.io_raw = b""
        self.seen = 0

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Return the descriptors of the three files, or CLOSED or UNUSED."""
        return self.stat, self.statm, self.io

    def forget_descriptors(self) -> None:
        """Mark the files as closed; each reading must open them."""
        self.stat, self.statm, self.io = (
            min(descriptor, CLOSED) for descriptor in self.descriptors
        )


class ProcessFiles:
    """Reader of the files of processes. entries: all known processes, by pid.

    io_lines: the lines of /proc/PID/io for data read and data written.
    """

    def __init__(
        self,
        node: Node,
        entries: Mapping[str, FileEntry],
        complaints: Complaints,
        io_lines: tuple[bytes, bytes],
    ) -> None:
        self.descriptors = Descriptors(node, self._close_some)
        self._node = node
        self._entries = entries
        self._complaints = complaints
        self._io_lines = io_lines

    def open_stat(self, name: str) -> FileEntry:
        """Open and parse stat of a process. Raise CcagentError if that fails."""
        path, stat = f"proc/{name}/stat", CLOSED
        try:
            stat = self.descriptors.open(path)
            raw = self.descriptors.read(stat, path)
            return FileEntry(name, parse_stat_of(name, raw), raw, stat)
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
            self._complaints.add(f"/{path}", error)
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
            self._complaints.log_once(
                "io",
                "I/O counters of some processes can't be read",
                self._node,
                "CAP_SYS_PTRACE",
                "CAP_DAC_READ_SEARCH",
            )
        except CcagentError as error:
            self._complaints.add(f"/{path}", error)
        return _NO_IO

    def _close_some(self, count: int) -> None:
        """Close at least `count` kept descriptors, or all if there are fewer."""
        left = count
        for entry in self._entries.values():
            if left <= 0:
                return
            opened = [descriptor for descriptor in entry.descriptors if descriptor >= 0]
            self.descriptors.close(*opened)
            left -= len(opened)
            entry.forget_descriptors()


def parse_stat_of(name: str, content: bytes) -> ProcessStat:
    """Parse stat of the process `name`. Raise UnparsableError with the file name."""
    try:
        return parse_stat(content)
    except UnparsableError as error:
        raise UnparsableError(f"/proc/{name}/stat: {error}") from error
