"""The connections to PostgreSQL, and what its errors mean for a sender."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from ccagent.config.secret import read_secret
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, printable

if TYPE_CHECKING:
    from collections.abc import Generator

    from psycopg import Connection

_CONNECT_WITHIN = 5
_WAIT = 5.0
_TRANSIENT = ("08", "40", "53", "55", "57", "58", "25006", "XX")
"""Classes of SQLSTATE that pass: connection, conflict, resources (a full disk among them), a
server that is stopped or only reads, its I/O errors."""


class DatabaseAwayError(CcagentError):
    """The database can't be asked now; later it may be."""


class _Attempts(logging.Handler):
    """Remembers why the pool could not connect last: its error says only that it took long."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problem = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message of the pool."""
        errors = [one for one in record.args or () if isinstance(one, psycopg.OperationalError)]
        if errors:
            self.problem = describe_error(errors[0])


class Database:
    """A pool of connections to one database.

    url: never in a log or an error, since it may hold a password.
    """

    def __init__(self, url: str, *, connections: int, password_file: str = "") -> None:
        """Take the URL; nothing is connected yet. Raises ConfigurationError."""
        self._conninfo = make_database_conninfo(url, password_file)
        self.place = describe_database(self._conninfo)
        self._pool: ConnectionPool[Connection[Any]] = ConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=connections,
            open=False,
            timeout=_WAIT,
            reconnect_timeout=1.0,
            configure=self._configure,
            name="jobstats",
        )
        self._attempts = _Attempts()
        attempts = logging.getLogger("psycopg.pool")
        attempts.propagate = False
        attempts.addHandler(self._attempts)

    def open(self) -> None:
        """Start connecting, in the background."""
        self._pool.open(wait=False)

    def close(self) -> None:
        """Close all connections."""
        logging.getLogger("psycopg.pool").removeHandler(self._attempts)
        self._pool.close(timeout=5.0)

    @contextlib.contextmanager
    def connection(self) -> Generator[Connection[Any], None, None]:
        """Lend a connection for one transaction, committed at the end.

        Raises DatabaseAwayError for what passes; other errors are those of psycopg.
        """
        try:
            with self._pool.connection() as connection:
                yield connection
        except (PoolTimeout, PoolClosed) as error:
            reason = self._attempts.problem or "all are in use"
            raise DatabaseAwayError(f"database {self.place}: no connection: {reason}") from error
        except psycopg.Error as error:
            if not is_transient(error):
                raise
            raise DatabaseAwayError(f"database {self.place}: {describe_error(error)}") from error

    def _configure(self, connection: Connection[Any]) -> None:
        _configure(connection)
        self._attempts.problem = ""

    def connect_alone(self) -> Connection[Any]:
        """Open a connection beside the pool, in autocommit. Raises DatabaseAwayError."""
        return connect(self._conninfo, self.place)


def connect(conninfo: str, place: str) -> Connection[Any]:
    """Open a connection in autocommit. Raises DatabaseAwayError."""
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
        _speak_iso(connection)
    except psycopg.Error as error:
        raise DatabaseAwayError(f"database {place}: {describe_error(error)}") from None
    return connection


def make_database_conninfo(url: str, password_file: str = "") -> str:
    """Return how to connect to the database of a URL. Raises ConfigurationError."""
    more: dict[str, Any] = {"password": read_secret(password_file)} if password_file else {}
    try:
        known = conninfo_to_dict(url)
        known.setdefault("connect_timeout", _CONNECT_WITHIN)
        known.setdefault("application_name", "ccagent")
        # A machine that vanished is noticed within half a minute.
        known.setdefault("keepalives_idle", 10)
        known.setdefault("keepalives_interval", 5)
        known.setdefault("keepalives_count", 3)
        known.setdefault("tcp_user_timeout", 30_000)
        # Whatever the role or the database is set to.
        known["client_encoding"] = "UTF8"
        return make_conninfo("", **(known | more))
    except psycopg.Error:
        # The cause repeats the URL.
        raise ConfigurationError("database: expected postgresql://USER@HOST/NAME") from None


def describe_database(conninfo: str) -> str:
    """Return host and name of a database, for people."""
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
    """Return an error in one line."""
    lines = str(error).strip().splitlines()
    return printable(lines[0][:300]) if lines else type(error).__name__


def _speak_iso(connection: Connection[Any]) -> None:
    """Have times as they are parsed here, whatever the role or the database is set to."""
    connection.execute("SET datestyle = 'ISO'")
    connection.execute("SET TIME ZONE 'UTC'")


def _configure(connection: Connection[Any]) -> None:
    connection.prepare_threshold = 0
    connection.autocommit = True
    # A statement that is planned once costs nothing for each partition afterwards.
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute("SET jit = off")
    _speak_iso(connection)
    connection.execute("SET lock_timeout = '30s'")
    # What is acknowledged survives a crash of the database, whatever the role is set to.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = False
    logger.debug("connected to the database")
