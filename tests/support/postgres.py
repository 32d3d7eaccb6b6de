"""A PostgreSQL server of Debian's, with databases for tests."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

_NUMBERS = itertools.count(1)


def _programs() -> Path:
    """Return the directory of the newest installed version's programs."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    assert found, "PostgreSQL is missing: apt-get install postgresql"
    return found[-1]


def has_timescale() -> bool:
    """Return whether TimescaleDB is installed for the newest installed version."""
    return (_programs().parent / "lib" / "timescaledb.so").exists()


class PostgresServer:
    """It listens on a socket in a directory of its own; as root it runs as another user."""

    def __init__(self, *, has_timescale: bool = False) -> None:
        """has_timescale: with TimescaleDB, which must be installed."""
        self._options = (
            "-c", "shared_preload_libraries=timescaledb", "-c", "max_worker_processes=40",
            "-c", "timescaledb.telemetry_level=off",
        ) if has_timescale else ()  # fmt: skip
        self.directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
        self._programs = _programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-E", "UTF8",
            "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip
        self.start()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        with Path(f"{self.directory}.log").open("ab") as stderr:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self.directory),
                 "-c", "listen_addresses=", "-c", "max_connections=60", "-c", "fsync=off",
                 "-c", "full_page_writes=off",
                 "-c", "shared_buffers=256MB", *self._options],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=stderr,
                user=self._user, group=self._user, cwd="/",
                extra_groups=None if self._user is None else [],
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.05)
            else:
                return

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it: fast by default, without notice with SIGQUIT."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return Path(f"{self.directory}.log").read_text()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def make_database(self, template: str = "template1") -> str:
        """Make a database like another one, and return its URL."""
        name = f"test{next(_NUMBERS)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments], check=True, capture_output=True,
            user=self._user, group=self._user, cwd="/",
            extra_groups=None if self._user is None else [],
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)
        Path(f"{self.directory}.log").unlink(missing_ok=True)
