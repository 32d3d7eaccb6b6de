"""PostgreSQL: connections, classification of its errors, and migrations.

Migrations are numbered SQL files in a folder `migrations`. Each is applied once, in a transaction.
"""

from __future__ import annotations

import contextlib
import logging
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ccagent.config.secret import read_secret
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from psycopg import Connection

_CONNECT_WITHIN = 5
_WAIT = 5.0
_TRANSIENT = ("08", "40", "53", "55", "57", "58", "25006", "XX")
"""Classes of transient SQLSTATEs: connection, conflict, resources (including a full disk), a
stopped or read-only server, its I/O errors.
"""

_MIGRATION_NAME = re.compile(r"(\d{4})_([a-z_]+)(?:\.(plain|timescaledb))?\.sql")
_OLDEST = 140_000
"""The first PostgreSQL version with date_bin."""


class DatabaseAwayError(CcagentError):
    """The database is temporarily not available."""


class _Attempts(logging.Handler):
    """Records the pool's last connection error. The pool itself raises only a timeout."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problem = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Record the error of a pool message."""
        errors = [one for one in record.args or () if isinstance(one, psycopg.OperationalError)]
        if errors:
            self.problem = describe_error(errors[0])


class Database:
    """A pool of connections to one database.

    url: must not appear in logs or errors, because it may contain a password. wait: maximum
    seconds until a connection is free. defaults: parameters of libpq that the URL lacks.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int,
        password_file: str = "",
        wait: float = _WAIT,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Set the URL, without connecting. Raise ConfigurationError."""
        self._conninfo = make_database_conninfo(url, password_file, defaults)
        self.place = describe_database(self._conninfo)
        self._pool: ConnectionPool[Connection[Any]] = ConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=wait,
            reconnect_timeout=1.0,
            configure=self._configure,
            name="ccagent",
        )
        self._attempts = _Attempts()
        attempts = logging.getLogger("psycopg.pool")
        attempts.propagate = False
        attempts.addHandler(self._attempts)

    def open(self) -> None:
        """Start connecting in the background."""
        self._pool.open(wait=False)

    def close(self) -> None:
        """Close all connections."""
        logging.getLogger("psycopg.pool").removeHandler(self._attempts)
        self._pool.close(timeout=5.0)

    @contextlib.contextmanager
    def connection(self) -> Generator[Connection[Any], None, None]:
        """Lend a connection for one transaction, which is committed at the end.

        Raise DatabaseAwayError for transient errors. Other errors of psycopg are not converted.
        """
        try:
            with self._pool.connection() as connection:
                yield connection
        except (PoolTimeout, PoolClosed) as error:
            reason = self._attempts.problem or "all connections are in use"
            raise DatabaseAwayError(f"database {self.place}: no connection: {reason}") from error
        except psycopg.Error as error:
            if not is_transient(error):
                raise
            raise DatabaseAwayError(f"database {self.place}: {describe_error(error)}") from error

    def _configure(self, connection: Connection[Any]) -> None:
        _configure(connection)
        self._attempts.problem = ""

    def connect_alone(self) -> Connection[Any]:
        """Open a connection outside the pool, in autocommit. Raise DatabaseAwayError."""
        return connect(self._conninfo, self.place)


def connect(conninfo: str, place: str) -> Connection[Any]:
    """Open a connection in autocommit. Raise DatabaseAwayError."""
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
        _speak_iso(connection)
    except psycopg.Error as error:
        raise DatabaseAwayError(f"database {place}: {describe_error(error)}") from None
    return connection


def make_database_conninfo(
    url: str, password_file: str = "", defaults: Mapping[str, str] | None = None
) -> str:
    """Return the libpq connection string for a URL. Raise ConfigurationError."""
    more: dict[str, Any] = {"password": read_secret(password_file)} if password_file else {}
    try:
        known: dict[str, Any] = {**(defaults or {}), **conninfo_to_dict(url)}
        known.setdefault("connect_timeout", _CONNECT_WITHIN)
        known.setdefault("application_name", "ccagent")
        # Detect a lost machine within half a minute.
        known.setdefault("keepalives_idle", 10)
        known.setdefault("keepalives_interval", 5)
        known.setdefault("keepalives_count", 3)
        known.setdefault("tcp_user_timeout", 30_000)
        # Override settings of the role or the database.
        known["client_encoding"] = "UTF8"
        return make_conninfo("", **(known | more))
    except psycopg.Error:
        # The original exception would contain the URL.
        raise ConfigurationError("database: expected postgresql://USER@HOST/NAME") from None


def describe_database(conninfo: str) -> str:
    """Return name and host of a database, for messages."""
    known = conninfo_to_dict(conninfo)
    host, port = known.get("host") or "localhost", known.get("port")
    return f"{known.get('dbname') or known.get('user') or ''} at {host}{f':{port}' if port else ''}"


def is_transient(error: psycopg.Error) -> bool:
    """Return whether the same statement may succeed later."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_TRANSIENT)


def describe_error(error: psycopg.Error) -> str:
    """Return an error on one line."""
    lines = str(error).strip().splitlines()
    return printable(lines[0][:300]) if lines else type(error).__name__


def _speak_iso(connection: Connection[Any]) -> None:
    """Set the format of times that this package parses, regardless of the role's settings."""
    connection.execute("SET datestyle = 'ISO'")
    connection.execute("SET TIME ZONE 'UTC'")


def _configure(connection: Connection[Any]) -> None:
    connection.prepare_threshold = 0
    connection.autocommit = True
    # A generic plan avoids planning for each partition at each execution.
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute("SET jit = off")
    _speak_iso(connection)
    connection.execute("SET lock_timeout = '30s'")
    # Acknowledged rows must survive a crash of the database, regardless of the role's settings.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = False
    logger.debug("connected to the database")


class Migration(NamedTuple):
    """A migration file. engine: `plain` or `timescaledb`; empty for both."""

    number: int
    name: str
    engine: str
    text: str


class MigrationSet(NamedTuple):
    """The migrations of a store.

    package: has the folder of the files. table: records the applied ones. lock: key of the advisory
    lock.
    """

    package: str
    table: str
    lock: int

    def list_all(self) -> list[Migration]:
        """Return all migrations, in the order of their numbers."""
        found: list[Migration] = []
        for file in (resources.files(self.package) / "migrations").iterdir():
            match = _MIGRATION_NAME.fullmatch(file.name)
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
