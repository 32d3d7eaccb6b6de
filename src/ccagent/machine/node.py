"""The machine: the only door to its files, clocks, users and programs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, ConfigurationError, UnparsableError
from ccagent.machine.clock import Clock
from ccagent.machine.file_errors import raise_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.counters import DaemonCounters
    from ccagent.machine.helper import Helper
    from ccagent.machine.user_names import UserNames

HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
"""Names of hosts and clusters that the envelopes permit."""

LARGEST_FILE = 16 * 1024 * 1024
"""Largest file that is read whole: all those of /proc and /sys are smaller."""

_SINGLE_FILE = 16 * 1024
_PIECE = 256 * 1024


class Node:
    """One machine, or a recording of one below `root`.

    `cluster` and `hostname` are those of the records; the defaults are the host's domain, else
    `local`, and the host's name. `own_counters` returns the counters of the daemon, if this process
    is one.
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
        self.hostname = check_name("hostname", hostname or read_host_name())
        self.cluster = check_name("cluster", cluster or self._domain() or "local")
        self.clock_ticks = os.sysconf("SC_CLK_TCK")
        self.page_size = os.sysconf("SC_PAGE_SIZE")
        self.own_counters: Callable[[], DaemonCounters] | None = None
        self._users: UserNames | None = None

    @property
    def is_live(self) -> bool:
        """Return True for the running machine, False for a recording."""
        return self.root == "/"

    def open(self, path: str, *, waits: bool = False) -> int:
        """Open a file for reading and return its descriptor; the caller closes it.

        A pipe is empty unless somebody has written to it; `waits`: it is waited for.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
        try:
            return os.open(self.root + path, flags if waits else flags | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def read(self, path: str, limit: int = LARGEST_FILE) -> bytes:
        """Read a whole file; `path` is relative to the root (`proc/stat`).

        Raises NotHereError, NotPermittedError, VanishedError, or UnparsableError for a file that
        can't be read for other reasons or is larger than `limit` bytes.
        """
        descriptor = self.open(path)
        try:
            # The kernel returns files of many records in pieces of less than a page: only an
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
        """Read a file that the kernel generates in one piece, with one call: /proc/PID/stat.

        (Those of single_open() in fs/proc/base.c.) Raises as `read` does.
        """
        descriptor = self.open(path)
        try:
            return os.read(descriptor, _SINGLE_FILE)
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)

    def read_at(self, path: str, offset: int, size: int) -> bytes:
        """Read bytes of a device file such as dev/cpu/0/msr. Raises as `read` does."""
        descriptor = self.open(path)
        try:
            content = os.pread(descriptor, size, offset)
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)
        if len(content) != size:
            raise UnparsableError(f"/{path}: {len(content)} bytes at {offset:#x}, not {size}")
        return content

    def write_file(self, path: str, content: bytes, offset: int | None = None) -> None:
        """Write a file of the kernel that exists, with one call. Never creates a file.

        With `offset` the bytes go there, as device files want it. Raises as `read` does.
        """
        # A regular file of a recorded machine is cut; files of the kernel ignore O_TRUNC.
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
        try:
            place = self.root + path
            descriptor = os.open(place, flags | (os.O_TRUNC if offset is None else 0))
        except OSError as error:
            raise_for(path, error)
        try:
            if offset is None:
                written = os.write(descriptor, content)
            else:
                written = os.pwrite(descriptor, content, offset)
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)
        if written != len(content):
            raise UnparsableError(f"/{path}: the kernel took {written} of {len(content)} bytes")

    def resolve(self, path: str) -> str:
        """Return a path without symbolic links, relative to the root."""
        root = os.path.realpath(self.root)
        return os.path.relpath(os.path.realpath(self.root + path), root)

    def pieces(self, path: str) -> Iterator[bytes]:
        """Read a file that may be large, piece by piece. Raises as `read` does, at any piece."""
        descriptor = self.open(path, waits=True)
        try:
            while piece := os.read(descriptor, _PIECE):
                yield piece
        except OSError as error:
            raise_for(path, error)
        finally:
            os.close(descriptor)

    def chunks(self, path: str, *, time_limit: float) -> Iterator[bytes]:
        """Read a file as `pieces` does, in a thread; one that hangs is abandoned.

        Raises as `read` does, also after some pieces, and ProgramError after `time_limit` seconds.
        """
        from ccagent.machine.chunks import chunks

        return chunks(lambda: self.open(path, waits=True), path, time_limit)

    def read_trusted(self, path: str, limit: int) -> tuple[float, bytes]:
        """Read a regular file that only root or this user can have written.

        Return its time of modification, in seconds since 1970, and its content. Raises as `read`
        does; NotPermittedError for links, files with several names or writable by others.
        """
        from ccagent.machine.trusted_file import read

        return read(self.root + path, path, limit)

    def list(self, path: str) -> list[str]:
        """Return the names in a directory. Raises as `read` does."""
        try:
            return os.listdir(self.root + path)
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory. Raises as `read` does."""
        try:
            with os.scandir(self.root + path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def inode(self, path: str) -> int:
        """Return the number of the inode of a path. Raises as `read` does."""
        try:
            return os.stat(self.root + path).st_ino
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def owner(self, path: str) -> int:
        """Return the user id that owns a path; of /proc/PID it is the effective one.

        The directory of a process has that owner even if the process isn't dumpable
        (task_dump_owner() in fs/proc/base.c). Raises as `read` does.
        """
        try:
            return os.stat(self.root + path).st_uid
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def space(self, path: str) -> os.statvfs_result:
        """Return statvfs(3) of the file system of a path. May hang. Raises as `read` does."""
        try:
            return os.statvfs(self.root + path)
        except (OSError, ValueError) as error:
            raise_for(path, error)

    def exists(self, path: str) -> bool:
        """Return whether a path exists, links followed."""
        return os.path.exists(self.root + path)

    def is_readable(self, path: str) -> bool:
        """Return whether this user may read a file."""
        return os.access(self.root + path, os.R_OK)

    def is_writable(self, path: str) -> bool:
        """Return whether this user may write a file, or create files in a directory."""
        return os.access(self.root + path, os.W_OK)

    def user(self, uid: int) -> str:
        """Return the name of a user, `_user_<uid>` if there is none or no answer in time."""
        if self._users is None:
            from ccagent.machine.user_names import UserNames

            passwd = self.root + "etc/passwd"
            self._users = UserNames(self._look_up_user, self.clock.monotonic, local=passwd)
        return self._users.find(uid) or f"_user_{uid}"

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        """Run a program without a shell and return its output.

        Raises NotHereError if there is none, ProgramError if it fails, runs over `time_limit`
        seconds or prints more than `output_limit` bytes, or when the descriptor `stop` is readable.
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
        """Run a program like `run`, and yield its output as it is written.

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
        """Return a separate Python process for a library that may hang or crash. See `Helper`."""
        from ccagent.machine.helper import Helper

        return Helper(name, target, arguments, time_limit=time_limit)

    def boot_time(self) -> float:
        """Return the time of the boot in seconds since 1970, by the machine's clocks."""
        return self.clock.time() - self.clock.uptime()

    def _look_up_user(self, uid: int) -> str:
        from ccagent.machine.user_names import look_up_user

        return look_up_user(uid)

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
    """Return the domain of `hostname` in the text of /etc/hosts; empty if there is none."""
    for line in hosts.splitlines():
        names = line.partition("#")[0].split()[1:]
        for name in names:
            if name.startswith(hostname + ".") and HOSTNAME.fullmatch(name):
                return name[len(hostname) + 1 :]
    return ""


def read_host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def check_name(what: str, name: str) -> str:
    """Return `name` if it is valid for a host or a cluster. Raises ConfigurationError."""
    if HOSTNAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{what} {name!r}: letters, digits, '.', '-' and '_' only, "
            "beginning and ending with a letter or digit, at most 253 of them"
        )
    return name
