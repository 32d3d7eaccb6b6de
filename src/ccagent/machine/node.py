"""The machine: the only door to its files, clocks, users and programs."""

from __future__ import annotations

import os
import pwd
import re
from typing import TYPE_CHECKING

from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    UnparsableError,
)
from ccagent.machine.clock import Clock
from ccagent.machine.file_errors import raise_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.counters import Counters
    from ccagent.machine.helper import Helper

HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
"""What the envelopes allow as the name of a host or a cluster."""

LARGEST_FILE = 16 * 1024 * 1024
"""No file below /proc or /sys that is read whole is larger; what is, isn't what it seems."""

_SINGLE_FILE = 16 * 1024
_PIECE = 256 * 1024
_USERS_REMEMBERED = 10_000
_USER_KNOWN_FOR = 3600.0
_USER_UNKNOWN_FOR = 300.0


class Node:
    """One machine, or a recording of one below `root`.

    `cluster` and `hostname` are what the records carry; without them they are found out
    (`cluster`: the host's domain, else `local`). `own_counters` asks the daemon that runs on it, if
    this process is one.
    """

    def __init__(
        self,
        *,
        root: str = "/",
        hostname: str = "",
        cluster: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.root = root.rstrip("/") + "/"
        self.clock = clock or Clock()
        self.hostname = checked_name("hostname", hostname or os.uname().nodename)
        self.cluster = checked_name("cluster", cluster or self._domain() or "local")
        self.clock_ticks = os.sysconf("SC_CLK_TCK")
        self.page_size = os.sysconf("SC_PAGE_SIZE")
        self.own_counters: Callable[[], Counters] | None = None
        self._users: dict[int, tuple[str, float]] = {}

    @property
    def is_live(self) -> bool:
        """True for the machine this runs on, False for a recording."""
        return self.root == "/"

    def open(self, path: str) -> int:
        """Open a file for reading and give its descriptor; the caller closes it."""
        try:
            return os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_for(path, error)

    def read(self, path: str, limit: int = LARGEST_FILE) -> bytes:
        """Read a whole file; `path` is relative to the root (`proc/stat`).

        Raises NotHereError, NotPermittedError, VanishedError, or UnparsableError for what can't
        be read for other reasons or is larger than `limit` bytes.
        """
        descriptor = self.open(path)
        try:
            # The kernel hands out files of many records in pieces of less than a page: only an
            # empty piece is the end (seq_read_iter() in fs/seq_file.c).
            parts: list[bytes] = []
            size = 0
            while part := os.read(descriptor, 65536):
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise UnparsableError(f"/{path}: larger than {limit} bytes")
            return b"".join(parts)
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)

    def read_single(self, path: str) -> bytes:
        """Read a file that the kernel makes in one piece, with one call: /proc/PID/stat, cgroup...

        (Those of single_open() in fs/proc/base.c.) Raises as `read` does.
        """
        descriptor = self.open(path)
        try:
            return os.read(descriptor, _SINGLE_FILE)
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)

    def pieces(self, path: str) -> Iterator[bytes]:
        """Read a file that may be large, piece by piece. Raises as `read` does, at any piece."""
        descriptor = self.open(path)
        try:
            while piece := os.read(descriptor, _PIECE):
                yield piece
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)

    def chunks(self, path: str, *, time_limit: float) -> Iterator[bytes]:
        """Read a file as `pieces` does; a reading that hangs is left behind.

        Raises as `read` does, also after some pieces, and ProgramError after `time_limit` seconds.
        """
        from ccagent.machine.chunks import chunks

        return chunks(lambda: self.open(path), path, time_limit)

    def read_trusted(self, path: str, limit: int) -> tuple[float, bytes]:
        """Read a regular file that only root or this user can have written.

        Gives when that was, in seconds since 1970, and what it holds. Raises as `read` does;
        NotPermittedError for links, for files with several names, and for what others may write.
        """
        from ccagent.machine.trusted_file import read

        return read(self.root + path, path, limit)

    def list(self, path: str) -> list[str]:
        """Give the names in a directory. Raises as `read` does."""
        try:
            return os.listdir(self.root + path)
        except OSError as error:
            raise_for(path, error)

    def directories(self, path: str) -> Sequence[str]:
        """Give the names of the directories in a directory. Raises as `read` does."""
        try:
            with os.scandir(self.root + path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise_for(path, error)

    def inode(self, path: str) -> int:
        """Give the number of the inode of a path. Raises as `read` does."""
        try:
            return os.stat(self.root + path).st_ino
        except OSError as error:
            raise_for(path, error)

    def owner(self, path: str) -> int:
        """Give the user id that owns a path; of /proc/PID it is the effective one.

        The directory of a process has that owner even if the process isn't dumpable
        (task_dump_owner() in fs/proc/base.c). Raises as `read` does.
        """
        try:
            return os.stat(self.root + path).st_uid
        except OSError as error:
            raise_for(path, error)

    def space(self, path: str) -> os.statvfs_result:
        """Give what statvfs(3) tells of the file system of a path. May hang. Raises as `read`."""
        try:
            return os.statvfs(self.root + path)
        except OSError as error:
            raise_for(path, error)
        except ValueError as error:  # a NUL: no kernel has such a path
            raise UnparsableError(f"/{path!r}: {error}") from None

    def is_readable(self, path: str) -> bool:
        """Tell whether this user may read a file."""
        return os.access(self.root + path, os.R_OK)

    def is_writable(self, path: str) -> bool:
        """Tell whether this user may write a file, or make files in a directory."""
        return os.access(self.root + path, os.W_OK)

    def user(self, uid: int) -> str:
        """Give the name of a user, `_user_<uid>` for one that nobody knows.

        Names are asked for again after an hour, unknown ones after five minutes.
        """
        now = self.clock.monotonic()
        known = self._users.get(uid)
        if known is not None and now < known[1]:
            return known[0]
        name = self._look_up_user(uid)
        if len(self._users) >= _USERS_REMEMBERED:
            self._users.clear()
        if name:
            self._users[uid] = (name, now + _USER_KNOWN_FOR)
        else:
            name = f"_user_{uid}"
            self._users[uid] = (name, now + _USER_UNKNOWN_FOR)
        return name

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        """Run a program without a shell and give what it printed.

        Raises NotHereError if there is none, ProgramError if it fails, runs over `time_limit`
        seconds or prints more than `output_limit` bytes, or when the descriptor `stop` can be read.
        """
        from ccagent.machine.program import run

        return run(
            command,
            time_limit=time_limit,
            output_limit=output_limit,
            stop=stop,
            standard_input=standard_input,
        )

    def stream(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        environment: Mapping[str, str] | None = None,
        standard_input: bytes = b"",
    ) -> Iterator[bytes]:
        """Run a program like `run`, and give what it prints as it comes.

        `environment` is added to the fixed one. The errors of `run` may come after some output.
        """
        from ccagent.machine.program import stream

        return stream(
            command,
            time_limit=time_limit,
            output_limit=output_limit,
            environment=environment,
            standard_input=standard_input,
        )

    def helper(
        self, name: str, target: str, arguments: tuple[str, ...], *, time_limit: float
    ) -> Helper:
        """Give a Python process of its own for a library that may hang or die. See `Helper`."""
        from ccagent.machine.helper import Helper

        return Helper(name, target, arguments, time_limit=time_limit)

    def boot_time(self) -> float:
        """Seconds since 1970 when the machine was started, by its clocks."""
        return self.clock.time() - self.clock.uptime()

    def _look_up_user(self, uid: int) -> str:
        try:
            name = pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return ""
        # The C library gives bytes; what is no UTF-8 among them must not spoil an envelope.
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def _domain(self) -> str:
        _, _, domain = self.hostname.partition(".")
        if domain:
            return domain
        try:
            hosts = self.read("etc/hosts").decode("utf-8", "replace")
        except CcagentError:
            return ""
        return domain_from_hosts(hosts, self.hostname)


def domain_from_hosts(hosts: str, hostname: str) -> str:
    """Find the domain of `hostname` in the text of /etc/hosts; empty when it gives none."""
    for line in hosts.splitlines():
        names = line.partition("#")[0].split()[1:]
        for name in names:
            if name.startswith(hostname + ".") and HOSTNAME.fullmatch(name):
                return name[len(hostname) + 1 :]
    return ""


def checked_name(what: str, name: str) -> str:
    """Give `name` back if it may stand for a host or a cluster, else ConfigurationError."""
    if HOSTNAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{what} {name!r}: letters, digits, '.', '-' and '_' only, "
            "beginning and ending with a letter or digit, at most 253 of them"
        )
    return name
