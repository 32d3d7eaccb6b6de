"""Migrations of PostgreSQL: numbered SQL files, each applied once, in a transaction."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.errors import ConfigurationError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

_NAME = re.compile(r"(\d{4})_([a-z_]+)(?:\.(plain|timescaledb))?\.sql")
_OLDEST = 140_000
"""The first PostgreSQL version with date_bin."""


class Migration(NamedTuple):
    """A migration file. engine: `plain` or `timescaledb`; empty for both."""

    number: int
    name: str
    engine: str
    text: str


class MigrationSet(NamedTuple):
    """The migrations of a store.

    package: has the files. table: records the applied ones. lock: key of the advisory lock.
    """

    package: str
    table: str
    lock: int

    def list_all(self) -> list[Migration]:
        """Return all migrations, in the order of their numbers."""
        found: list[Migration] = []
        for file in resources.files(self.package).iterdir():
            match = _NAME.fullmatch(file.name)
            if match is not None:
                text = file.read_text(encoding="utf-8")
                found.append(Migration(int(match[1]), match[2], match[3] or "", text))
        return sorted(found)

    def applied(self, connection: Connection[Any]) -> list[int]:
        """Return the numbers of the applied migrations."""
        query = "SELECT to_regclass(%s) IS NULL"
        if connection.execute(query, [self.table]).fetchone() == (True,):
            return []
        query = f"SELECT number FROM {self.table} ORDER BY 1"  # noqa: S608 - a constant
        return [number for (number,) in connection.execute(query.encode())]

    def pending(self, connection: Connection[Any], engine: str = "plain") -> list[Migration]:
        """Return the pending migrations.

        Raise ConfigurationError if the database is newer than this ccagent.
        """
        applied, known = self.applied(connection), self.list_all()
        newest = max(one.number for one in known)
        if applied and applied[-1] > newest:
            raise ConfigurationError(
                f"database: its schema has version {applied[-1]}, this ccagent supports {newest}: "
                "install the ccagent that created the schema, or a later one"
            )
        return [one for one in known if one.number not in applied and one.engine in {"", engine}]

    def migrate(
        self,
        connection: Connection[Any],
        engine: str = "plain",
        fill: Callable[[Migration], str] | None = None,
    ) -> list[Migration]:
        """Apply and return the pending migrations. Wait for another process for a while.

        The connection is in autocommit. fill: returns the text of a migration with placeholders.
        Raise ConfigurationError, psycopg.Error.
        """
        check_server(connection)
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SELECT pg_advisory_lock(%s)", [self.lock])
        try:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} ("
                "number integer PRIMARY KEY, name text NOT NULL, "
                "applied timestamptz NOT NULL DEFAULT now())".encode()
            )
            pending = self.pending(connection, engine)
            query = f"INSERT INTO {self.table} (number, name) VALUES (%s, %s)"  # noqa: S608
            for one in pending:
                text = one.text if fill is None else fill(one)
                with connection.transaction():
                    connection.execute(text.encode(), prepare=False)  # several statements
                    connection.execute(query.encode(), [one.number, one.name])
                logger.info("database: applied migration %d (%s)", one.number, one.name)
            return pending
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", [self.lock])


def check_server(connection: Connection[Any]) -> None:
    """Raise ConfigurationError if the server's version or encoding is not supported."""
    version = connection.info.server_version
    if version < _OLDEST:
        raise ConfigurationError(
            f"database: PostgreSQL {version // 10000} is too old: {_OLDEST // 10000} is required"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigurationError(
            f"database {connection.info.dbname}: its encoding is {encoding}: create one with "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
