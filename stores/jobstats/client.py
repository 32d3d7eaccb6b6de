"""Queries to a store over HTTP, or to its database."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import printable
from ccagent.net.http_client import HTTP_ERRORS, HttpConnection
from ccagent.net.urls import server_of_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import TypeVar

    import psycopg

    from ccagent.stores.jobstats.live import LiveAnswer
    from ccagent.stores.jobstats.queries import JobAnswer, TopAnswer

    Q = TypeVar("Q")
    R = TypeVar("R")

_SECONDS = 120.0
_LARGEST = 256 << 20


class UnansweredError(CcagentError):
    """A query without a result. The message names the address and the reason."""


class StorePlace(NamedTuple):
    """The URL of a store, or of a database, with credentials. seconds: time limit of a query."""

    url: str
    database: str = ""
    token_file: str = ""
    password_file: str = ""
    ca_file: str = ""
    seconds: float = _SECONDS


def ask_top(place: StorePlace, values: dict[str, str]) -> TopAnswer:
    """Return the groups with the largest sums. Raise ConfigurationError, UnansweredError."""
    from ccagent.stores.jobstats.queries import TopAnswer, find_top
    from ccagent.stores.jobstats.query_request import parse_top

    if place.database:
        return _ask_database(place, values, parse_top, find_top)
    return _decode(_ask_store(place, "/top", values), TopAnswer)


def ask_live(place: StorePlace, values: dict[str, str]) -> LiveAnswer:
    """Return the rates of targets and jobs. Raise ConfigurationError, UnansweredError."""
    from ccagent.stores.jobstats.live import LiveAnswer, find_live, parse_live

    if place.database:
        return _ask_database(place, values, parse_live, find_live)
    return _decode(_ask_store(place, "/live", values), LiveAnswer)


def ask_job(place: StorePlace, job: str, values: dict[str, str]) -> JobAnswer | None:
    """Return the I/O of a job; None if unknown. Raise ConfigurationError, UnansweredError."""
    from ccagent.stores.jobstats.queries import JobAnswer, find_job
    from ccagent.stores.jobstats.query_request import parse_job

    if place.database:
        return _ask_database(place, values, partial(parse_job, job), find_job)
    body = _ask_store(
        place, f"/job/{quote(job, safe='', errors='surrogateescape')}", values, unknown=404
    )
    return None if body is None else _decode(body, JobAnswer)


def read_export(place: StorePlace, values: dict[str, str]) -> Iterator[bytes]:
    """Yield the pieces of a CSV export. Raise ConfigurationError, UnansweredError."""
    if not place.database:
        yield from _stream(place, "/export", values)
        return
    from ccagent.stores.jobstats.export import export_rows, parse_export

    with _explained():
        request = parse_export(values, datetime.now(UTC))
        with _connect(place) as connection:
            yield from export_rows(connection, request)


def _ask_database(
    place: StorePlace,
    values: dict[str, str],
    parse: Callable[[dict[str, str], datetime], Q],
    find: Callable[[psycopg.Connection[Any], Q], R],
) -> R:
    from ccagent.stores.jobstats.service import begin_reading

    with _explained():
        request = parse(values, datetime.now(UTC))
        with _connect(place) as connection, connection.transaction():
            begin_reading(connection, place.seconds)
            return find(connection, request)


def _connect(place: StorePlace) -> psycopg.Connection[Any]:
    from ccagent.stores.database import connect, describe_database, make_database_conninfo

    conninfo = make_database_conninfo(place.database, place.password_file)
    return connect(conninfo, describe_database(conninfo))


@contextlib.contextmanager
def _explained() -> Generator[None]:
    """Turn the errors of a query of the database into UnansweredError or ConfigurationError."""
    import psycopg

    from ccagent.stores.database import DatabaseAwayError
    from ccagent.stores.jobstats.query_request import QueryError

    try:
        yield
    except DatabaseAwayError as error:
        raise UnansweredError(str(error)) from None
    except QueryError as error:
        raise ConfigurationError(str(error)) from None
    except psycopg.Error as error:
        raise _explain(error) from None


def _explain(error: psycopg.Error) -> UnansweredError:
    """Return an error with the reason for the database's refusal."""
    from psycopg.errors import UndefinedFunction, UndefinedTable

    from ccagent.stores.database import describe_error

    reason = f"database: {describe_error(error)}"
    if isinstance(error, UndefinedTable | UndefinedFunction):
        reason += ": create or update the tables with `ccagent store jobstats migrate`"
    return UnansweredError(reason)


def _ask_store(
    place: StorePlace, path: str, values: dict[str, str], unknown: int = 0
) -> bytes | None:
    """Return the body of a response; None for the status `unknown`."""
    connection, target, headers = _prepare(place, path, values)
    try:
        answer = connection.get(target, headers)
    except HTTP_ERRORS as error:
        raise UnansweredError(f"{place.url}: {_reason(connection, error)}") from None
    finally:
        connection.close()
    if answer.status == unknown:
        return None
    _check(place, answer.status, answer.body)
    return answer.body


def _stream(place: StorePlace, path: str, values: dict[str, str]) -> Iterator[bytes]:
    connection, target, headers = _prepare(place, path, values)
    try:
        status, pieces = connection.stream(target, headers)
        if status != 200:
            _check(place, status, b"".join(pieces))
        yield from pieces
    except HTTP_ERRORS as error:
        raise UnansweredError(f"{place.url}: {_reason(connection, error)}") from None
    finally:
        connection.close()


def _prepare(
    place: StorePlace, path: str, values: dict[str, str]
) -> tuple[HttpConnection, str, dict[str, str]]:
    """Return a connection, and the target and the headers of a request."""
    url = split_url(place.url)
    if url.scheme not in {"http", "https"}:
        raise ConfigurationError("url: expected http://HOST:PORT or https://HOST:PORT")
    headers = {"Accept": "application/json"}
    if place.token_file:
        headers["Authorization"] = f"Bearer {read_secret(place.token_file)}"
    context = None
    if url.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=place.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"ca-file: {place.ca_file}: {error}") from None
    query = f"?{urlencode(values, errors='surrogateescape')}" if values else ""
    connection = HttpConnection(server_of_url(url), context, place.seconds, largest=_LARGEST)
    return connection, f"{url.path.rstrip('/')}{path}{query}", headers


def _check(place: StorePlace, status: int, body: bytes) -> None:
    """Raise ConfigurationError or UnansweredError for a refusal."""
    if status == 200:
        return
    text = body[:65536].decode("utf-8", "replace")
    try:
        reason = msgspec.json.decode(text, type=dict[str, Any]).get("error", "")
    except msgspec.MsgspecError:
        reason = text
    message = printable(str(reason)[:500])
    if status == 400:
        raise ConfigurationError(message)
    if status == 401:
        message += ": give the token's file with --token-file"
    raise UnansweredError(f"{place.url}: {status} {message}")


def _reason(connection: HttpConnection, error: Exception) -> str:
    text = printable(connection.explain(error))
    return f"{text}: is the store running?" if text == "connection refused" else text


def _decode(body: bytes | None, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(body or b"", type=kind)
    except msgspec.MsgspecError as error:
        raise UnansweredError(f"not a response of a jobstats store: {error}") from None
