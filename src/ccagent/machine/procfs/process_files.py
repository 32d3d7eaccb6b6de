"""Parsers of /proc/PID/stat, statm, io, environ and status. Source of all fields: proc(5)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Collection

KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the field `flags` (include/linux/sched.h)."""

DEFUNCT = " <defunct>"
"""Suffix of the command of a zombie."""

STEP_DAEMON = b"slurmstepd"
"""The command of the Slurm processes that start the tasks of a job step."""

STATUS = "proc/self/status"

CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
"""Numbers of the capabilities that agents use (include/uapi/linux/capability.h)."""

_FIELD = re.compile(rb"^(Uid|Gid|Groups|CapEff):[ \t]*(.*)$", re.MULTILINE)


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat. Times are in clock ticks, `starttime` since boot."""

    command: bytes
    state: bytes
    ppid: int
    process_group: int
    session: int
    flags: int
    own_ticks: int
    all_ticks: int
    num_threads: int
    starttime: int


class Statm(NamedTuple):
    """Fields of /proc/PID/statm, in pages.

    private: resident pages that are not shared (RssAnon); data: data and stack; resident: all of
    them; size: of the address space. The last two are 0 if not read.
    """

    private: int
    data: int
    resident: int = 0
    size: int = 0


class Io(NamedTuple):
    """Fields of /proc/PID/io, in bytes. read, written: see IO_OF_CALLS."""

    read: int
    written: int
    cancelled: int


IO_OF_CALLS = (b"rchar:", b"wchar:")
"""Lines of /proc/PID/io: bytes of read and write calls, for all kinds of files."""

IO_OF_STORAGE = (b"read_bytes:", b"write_bytes:")
"""Lines of /proc/PID/io: bytes of storage. Most network file systems do not count them."""


def parse_stat(content: bytes) -> ProcessStat:
    """Parse /proc/PID/stat. Raise UnparsableError for other content.

    The command is in parentheses and may contain any byte, including parentheses and line breaks.
    It ends at the last closing parenthesis: only numbers follow.
    """
    begin, end = content.find(b"("), content.rfind(b")")
    if begin < 0 or end < begin:
        raise UnparsableError(f"no command in {content[:80]!r}")
    fields = content[end + 2 :].split(None, 20)
    if len(fields) < 20:
        raise UnparsableError(f"{len(fields)} fields after the command instead of 20 or more")
    try:
        utime, stime = int(fields[11]), int(fields[12])
        own = utime + stime
        stat = ProcessStat(
            command=content[begin + 1 : end],
            state=fields[0],
            ppid=int(fields[1]),
            process_group=int(fields[2]),
            session=int(fields[3]),
            flags=int(fields[6]),
            own_ticks=own,
            all_ticks=own + int(fields[13]) + int(fields[14]),
            num_threads=int(fields[17]),
            starttime=int(fields[19]),
        )
    except ValueError as error:
        raise UnparsableError(str(error)) from error
    if (
        stat.ppid < 0
        or utime < 0
        or stime < 0
        or not 0 <= own <= stat.all_ticks <= LARGEST_UINT
        or not 0 <= stat.starttime <= LARGEST_UINT
        or max(stat.ppid, stat.process_group, stat.num_threads) > LARGEST_UINT
    ):
        raise UnparsableError("a number is out of range")
    return stat


def parse_statm(content: bytes) -> Statm:
    """Parse /proc/PID/statm: size resident shared text lib data dt. Raise UnparsableError."""
    fields = content.split(None, 6)
    try:
        size, resident = int(fields[0]), int(fields[1])
        shared, data = int(fields[2]), int(fields[5])
    except (ValueError, IndexError) as error:
        raise UnparsableError(f"not seven numbers: {content[:80]!r}") from error
    numbers = size, resident, shared, data
    if min(numbers) < 0 or max(numbers) > LARGEST_UINT >> 24:
        raise UnparsableError("a number is out of range")
    # The kernel does not read both at the same time: shared can exceed resident.
    return Statm(max(0, resident - shared), data, resident, size)


def parse_io(content: bytes, lines: tuple[bytes, bytes] = IO_OF_CALLS) -> Io:
    """Parse /proc/PID/io, `name: number` per line. Raise UnparsableError for other content.

    lines: names of the lines for bytes read and written.
    """
    words = content.split()
    try:
        values = dict(zip(words[::2], words[1::2], strict=True))
        io = Io(
            int(values[lines[0]]), int(values[lines[1]]), int(values[b"cancelled_write_bytes:"])
        )
    except (ValueError, KeyError) as error:
        raise UnparsableError(f"not the known lines: {content[:80]!r}") from error
    if min(io) < 0 or max(io) > LARGEST_UINT:
        raise UnparsableError("a number is out of range")
    return io


def parse_environ(content: bytes, names: Collection[bytes]) -> dict[bytes, bytes]:
    """Return these variables of /proc/PID/environ; of equal names the first, as getenv(3) does.

    Users can change all of it.
    """
    found: dict[bytes, bytes] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in names:
            found.setdefault(name, value)
    return found


def command_text(command: bytes, state: bytes) -> str:
    """Return a command as text, with the mark of ps for a zombie.

    The kernel cuts names after 15 bytes, so the last character may be incomplete.
    """
    text = command.decode("utf-8", "replace")
    return text + DEFUNCT if state == b"Z" else text


class Identity(NamedTuple):
    """Effective user id, all groups, and the effective capabilities among CAPABILITIES."""

    uid: int
    groups: frozenset[int]
    capabilities: frozenset[str]

    @property
    def is_all_powerful(self) -> bool:
        """True if the process has all of CAPABILITIES."""
        return len(self.capabilities) == len(CAPABILITIES)

    @property
    def can_read_any_file(self) -> bool:
        """True if the process bypasses file permissions."""
        return bool({"CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"} & self.capabilities)

    def lacking(self, *needed: str) -> list[str]:
        """Return the needed capabilities that the process does not have."""
        return [
            name
            for name in needed
            if name not in self.capabilities
            and not (name == "CAP_DAC_READ_SEARCH" and self.can_read_any_file)
        ]


def describe_lack(content: bytes, *needed: str) -> str:
    """Return a clause that names the needed capabilities that a process lacks.

    content: of /proc/PID/status. If it is invalid, the clause names what is needed.
    """
    try:
        identity = parse_identity(content)
    except UnparsableError:
        return f"{' and '.join(needed)} needed"
    lacking = identity.lacking(*needed)
    if not lacking:
        return (
            f"this process has {' and '.join(needed)}: a user namespace, a filter of system calls"
            " or a security module forbids it"
        )
    owner = "process of root" if identity.uid == 0 else "process"
    return f"this {owner} lacks {' and '.join(lacking)}"


def parse_identity(content: bytes) -> Identity:
    """Parse /proc/PID/status. Raise UnparsableError for a missing or invalid field."""
    fields = {name: value.split() for name, value in _FIELD.findall(content)}
    try:
        capabilities = int(fields[b"CapEff"][0], 16)
        return Identity(
            uid=int(fields[b"Uid"][1]),
            groups=frozenset(map(int, [fields[b"Gid"][1], *fields[b"Groups"]])),
            capabilities=frozenset(
                name for name, number in CAPABILITIES.items() if capabilities >> number & 1
            ),
        )
    except (KeyError, IndexError, ValueError) as error:
        raise UnparsableError("no Uid, Gid, Groups or CapEff") from error
