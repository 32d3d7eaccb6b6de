"""Queries to a store over HTTP, or to its database."""

from __future__ import annotations

import http.client
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    import psycopg

    from ccagent.stores.jobstats.live import LiveAnswer
    from ccagent.stores.jobstats.queries import JobAnswer, TopAnswer

    T = TypeVar("T")

_SECONDS = 120.0
_PIECE = 1 << 18
_LARGEST = 256 << 20


class UnansweredError(CcagentError):
    """A query without a result. The message names the address and the reason."""


class StorePlace(NamedTuple):
    """The URL of a store, or of a database, with credentials."""

    url: str
    database: str = ""
    token_file: str = ""
    password_file: str = ""
    ca_file: str = ""


def ask_top(place: StorePlace, values: dict[str, str]) -> TopAnswer:
    """Return the groups with the largest sums. Raise ConfigurationError, UnansweredError."""
    if place.database:
        from ccagent.stores.jobstats.queries import find_top
        from ccagent.stores.jobstats.query_request import parse_top

        request = _parsed(lambda: parse_top(values, datetime.now(UTC)))
        return _ask_database(place, lambda connection: find_top(connection, request))
    from ccagent.stores.jobstats.queries import TopAnswer

    return _decode(_ask_store(place, "/top", values), TopAnswer)


def ask_live(place: StorePlace, values: dict[str, str]) -> LiveAnswer:
    """Return the rates of targets and jobs. Raise ConfigurationError, UnansweredError."""
    from ccagent.stores.jobstats.live import LiveAnswer, find_live, parse_live

    if place.database:
        request = _parsed(lambda: parse_live(values, datetime.now(UTC)))
        return _ask_database(place, lambda connection: find_live(connection, request))
    return _decode(_ask_store(place, "/live", values), LiveAnswer)


def ask_job(place: StorePlace, job: str, values: dict[str, str]) -> JobAnswer | None:
    """Return the I/O of a job; None if unknown. Raise ConfigurationError, UnansweredError."""
    if place.database:
        from ccagent.stores.jobstats.queries import find_job
        from ccagent.stores.jobstats.query_request import parse_job

        request = _parsed(lambda: parse_job(job, values, datetime.now(UTC)))
        return _ask_database(place, lambda connection: find_job(connection, request))
    from ccagent.stores.jobstats.queries import JobAnswer

    body = _ask_store(
        place, f"/job/{quote(job, safe='', errors='surrogateescape')}", values, unknown=404
    )
    return None if body is None else _decode(body, JobAnswer)


def read_export(place: StorePlace, values: dict[str, str]) -> Iterator[bytes]:
    """Yield the pieces of a CSV export. Raise ConfigurationError, UnansweredError."""
    if not place.database:
        yield from _stream(place, "/export", values)
        return
    import psycopg

    from ccagent.stores.jobstats.database import (
        DatabaseAwayError,
        connect,
        describe_database,
        make_database_conninfo,
    )
    from ccagent.stores.jobstats.export_query import export_rows, parse_export

    request = _parsed(lambda: parse_export(values, datetime.now(UTC)))
    conninfo = make_database_conninfo(place.database, place.password_file)
    try:
        with connect(conninfo, describe_database(conninfo)) as connection:
            yield from export_rows(connection, request)
    except DatabaseAwayError as error:
        raise UnansweredError(str(error)) from None
    except psycopg.Error as error:
        raise _explain(error) from None


def _ask_database(place: StorePlace, query: Callable[[Any], T]) -> T:
    import psycopg

    from ccagent.stores.jobstats.database import (
        DatabaseAwayError,
        connect,
        describe_database,
        make_database_conninfo,
    )
    from ccagent.stores.jobstats.query_request import QueryError
    from ccagent.stores.jobstats.service import begin_reading

    conninfo = make_database_conninfo(place.database, place.password_file)
    try:
        with (
            connect(conninfo, describe_database(conninfo)) as connection,
            connection.transaction(),
        ):
            begin_reading(connection, _SECONDS)
            return query(connection)
    except DatabaseAwayError as error:
        raise UnansweredError(str(error)) from None
    except QueryError as error:
        raise ConfigurationError(str(error)) from None
    except psycopg.Error as error:
        raise _explain(error) from None


def _explain(error: psycopg.Error) -> UnansweredError:
    """Return an error with the reason for the database's refusal."""
    from psycopg.errors import UndefinedFunction, UndefinedTable

    from ccagent.stores.jobstats.database import describe_error

    reason = f"database: {describe_error(error)}"
    if isinstance(error, UndefinedTable | UndefinedFunction):
        reason += ": create or update the tables with `ccagent store jobstats migrate`"
    return UnansweredError(reason)


def _ask_store(
    place: StorePlace, path: str, values: dict[str, str], unknown: int = 0
) -> bytes | None:
    """Return the body of a response; None for the status `unknown`."""
    connection, answer = _request(place, path, values)
    try:
        if answer.status == unknown:
            return None
        _check(place, answer)
        return answer.read(_LARGEST)
    except (OSError, http.client.HTTPException) as error:
        raise UnansweredError(f"{place.url}: {_reason(error)}") from None
    finally:
        connection.close()


def _stream(place: StorePlace, path: str, values: dict[str, str]) -> Iterator[bytes]:
    connection, answer = _request(place, path, values)
    try:
        _check(place, answer)
        while piece := answer.read1(_PIECE):
            yield piece
        # An incomplete response lacks the last chunk. read1 does not detect that.
        if not answer.isclosed():
            raise UnansweredError(f"{place.url}: the response is incomplete")
    except (OSError, http.client.HTTPException) as error:
        raise UnansweredError(f"{place.url}: {_reason(error)}") from None
    finally:
        connection.close()


def _request(
    place: StorePlace, path: str, values: dict[str, str]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    try:
        target = urlsplit(place.url)
        host, port = target.hostname, target.port
    except ValueError:
        host = port = None
        target = urlsplit("")
    if target.scheme not in {"http", "https"} or not host or target.username:
        raise ConfigurationError("url: expected http://HOST:PORT or https://HOST:PORT")
    headers = {"Accept": "application/json"}
    if place.token_file:
        headers["Authorization"] = f"Bearer {read_secret(place.token_file)}"
    if target.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=place.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"ca-file: {place.ca_file}: {error}") from None
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    query = f"?{urlencode(values, errors='surrogateescape')}" if values else ""
    try:
        connection.request("GET", f"{target.path.rstrip('/')}{path}{query}", headers=headers)
        return connection, connection.getresponse()
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        connection.close()
        raise UnansweredError(f"{place.url}: {_reason(error)}") from None


def _check(place: StorePlace, answer: http.client.HTTPResponse) -> None:
    if answer.status == 200:
        return
    text = answer.read(65536).decode("utf-8", "replace")
    try:
        reason = msgspec.json.decode(text, type=dict[str, Any]).get("error", "")
    except msgspec.MsgspecError:
        reason = text
    message = printable(str(reason)[:500]) or printable(answer.reason)
    if answer.status == 400:
        raise ConfigurationError(message)
    if answer.status == 401:
        message += ": give the token's file with --token-file"
    raise UnansweredError(f"{place.url}: {answer.status} {message}")


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is the store running?"
    return printable(str(error)) or type(error).__name__


def _decode(body: bytes | None, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"", type=kind)
    except msgspec.MsgspecError as error:
        raise UnansweredError(f"not a response of a jobstats store: {error}") from None


def _parsed(parse: Callable[[], T]) -> T:
    """Parse parameters. Raise ConfigurationError for invalid ones."""
    from ccagent.stores.jobstats.query_request import QueryError

    try:
        return parse()
    except QueryError as error:
        raise ConfigurationError(str(error)) from None
