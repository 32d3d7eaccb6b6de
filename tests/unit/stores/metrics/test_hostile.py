"""Hostile and unlucky requests cost themselves, and neither the store nor its memory."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.job_table import open_job_table
from ccagent.stores.metrics.listening import StoreConnection
from ccagent.stores.metrics.log_writer import StoreLogError, WriteAheadLog
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.query_request import BadRequestError
from ccagent.stores.metrics.request_reader import ConnectionLimits
from ccagent.stores.metrics.responses import StoreResponse
from tests.unit.stores.metrics.support import NOW, ask, line, new_ingest, new_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RecordedTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.is_aborted = False
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def new_api(**more: Any) -> StoreApi:
    store = new_store()
    return StoreApi(store, new_ingest(store), GroupCommit(None, "write"), **more)


def test_thousands_of_pipelined_requests_are_all_answered() -> None:
    transport = RecordedTransport()

    async def send() -> None:
        connection = StoreConnection(new_api(), ConnectionLimits())
        connection.connection_made(transport)
        write = b"POST /api/write HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
        connection.data_received(write + b"GET /metrics HTTP/1.1\r\n\r\n" * 5000)
        while connection.is_busy():  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    assert transport.data.count(b"HTTP/1.1 200 OK\r\n") == 5001


def test_a_request_waits_until_the_answer_before_is_read() -> None:
    transport = RecordedTransport()

    async def send() -> None:
        connection = StoreConnection(new_api(), ConnectionLimits())
        connection.connection_made(transport)
        connection.pause_writing()
        connection.data_received(b"GET /api/debug HTTP/1.1\r\n\r\n" * 3)
        for expected in (1, 1, 1):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert transport.data.count(b"HTTP/1.1") == expected
        connection.resume_writing()
        while connection.is_busy():  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    assert transport.data.count(b"HTTP/1.1 200 OK\r\n") == 3


def test_bodies_of_waiting_requests_count() -> None:
    transport, limits = RecordedTransport(), ConnectionLimits(bodies=1000)

    async def send() -> None:
        connection = StoreConnection(new_api(), limits)
        connection.connection_made(transport)
        body = line("load", 1).encode()
        one = b"POST /api/write HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        connection.data_received(one * 4)
        assert limits.body_bytes == 4 * len(body)
        while connection.is_busy():  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)
        assert limits.body_bytes == 0
        connection.data_received(one)
        connection.connection_lost(None)
        assert limits.body_bytes == 0

    asyncio.run(send())


def test_an_answer_that_fails_early_ends_the_connection() -> None:
    transport = RecordedTransport()

    class BrokenApi(StoreApi):
        def respond(
            self,
            route: Any,
            url: bytes,
            body: bytes | bytearray,
            is_gzip: bool,
            done: Callable[[StoreResponse], None],
        ) -> None:
            del route, url, body, is_gzip

            def parts() -> Iterator[bytes]:
                yield b"{"
                raise ValueError("broken")

            done(StoreResponse(200, parts()))

    async def send() -> None:
        store = new_store()
        api = BrokenApi(store, new_ingest(store), GroupCommit(None, "write"))
        connection = StoreConnection(api, ConnectionLimits())
        connection.connection_made(transport)
        connection.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(send())
    assert transport.is_aborted


@pytest.mark.slow
def test_inflated_bodies_count() -> None:
    answers: list[int] = []

    async def send() -> None:
        api = new_api(bodies=5 << 20)
        body = gzip.compress((b"x" * 199 + b"\n") * 13_000)

        def write() -> None:
            api.respond(ROUTES[b"/api/write"], b"/api/write", body, True,
                        lambda response: answers.append(response.status))  # fmt: skip

        for _ in range(3):
            write()
        while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)
        assert answers == [503]
        while len(answers) < 3:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)
        write()
        while len(answers) < 4:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    assert answers == [503, 200, 200, 200]


def test_a_large_write_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[StoreResponse] = []

    async def send() -> None:
        api = new_api()

        def fail(*_: object) -> None:
            raise ValueError("broken")

        monkeypatch.setattr("ccagent.stores.metrics.ingest.LineIngest._write_part", fail)
        api.respond(ROUTES[b"/api/write"], b"/api/write", b"x\n" * (1 << 20), False, answers.append)
        while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    assert [one.status for one in answers] == [500]


def test_a_full_disk_leaves_no_files_and_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = new_store(), WriteAheadLog(str(tmp_path))
    ingest = new_ingest(store, log=log)
    write = os.pwrite
    is_full = True

    def write_or_fail(descriptor: int, data: Any, offset: int) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write_or_fail)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        ingest.write(line("load", number).encode())
        with pytest.raises(StoreLogError):
            log.flush()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (os.listdir(tmp_path), log.closed) == ([], [])
    is_full = False
    ingest.write(line("load", 1).encode())
    log.flush()
    log.close()
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("metric", ["load", "unknown"])
@pytest.mark.parametrize("is_aggregated", [False, True])
def test_a_query_of_a_million_components_is_refused(metric: str, is_aggregated: bool) -> None:
    ids = ["0"] * 1001
    query = {
        "metric": metric, "host": "n1", "aggreg": is_aggregated,
        "type": "core", "type-ids": ids, "subtype": "x", "subtype-ids": ids,
    }  # fmt: skip
    with pytest.raises(BadRequestError, match="at most 10000 components"):
        ask(new_store(), 0, 10, query)


def test_too_many_unknown_metrics_for_all_nodes_are_refused() -> None:
    store = new_store()
    for number in range(3):
        store.write(("fox", f"n{number}"), "load", NOW, 1.0)
    with pytest.raises(BadRequestError, match="for-all-nodes"):
        ask(store, 0, 10, **{"for-all-nodes": ["x"] * 700_000})


def test_a_value_of_1970_makes_no_answer_of_30_million_values() -> None:
    store = new_store()
    store.write(("fox", "n1"), "load", NOW, 1.0)
    store.write(("fox", "n1"), "load", 0, 1.0)
    query = {"metric": "load", "host": "n1"}
    with pytest.raises(BadRequestError, match="request less"):
        ask(store, 0, NOW + 60, query, limits=QueryLimits(10_000_000), **{"with-padding": False})


@pytest.mark.parametrize(("end", "steps"), [(0, 0), (600, 10)])
def test_a_range_of_1970_is_not_padded_until_now(end: int, steps: int) -> None:
    store = new_store()
    store.write(("fox", "n1"), "load", NOW, 1.0)
    ((found,),) = ask(store, 0, end, {"metric": "load", "host": "n1"})
    assert found.get("data", []) == [None] * steps


def test_a_table_of_jobs_that_is_only_locked_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.sqlite"
    open_job_table(str(path)).close()

    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("ccagent.stores.metrics.job_table.JobTable.__init__", refuse)
    with pytest.raises(sqlite3.OperationalError):
        open_job_table(str(path))
    assert path.exists()
    assert not (tmp_path / "jobs.sqlite.damaged").exists()


# Requests that proxies and parsers may understand in two ways


def exchange(*parts: bytes, is_closed: bool = False) -> tuple[bytes, bool]:
    """Return what a connection answers, and whether it ends."""
    transport = RecordedTransport()

    async def send() -> None:
        connection = StoreConnection(new_api(), ConnectionLimits())
        connection.connection_made(transport)
        for part in parts:
            connection.data_received(part)
            while connection.is_busy():  # noqa: ASYNC110 - the loop itself is what is tested
                await asyncio.sleep(0)
        if is_closed and not connection.eof_received():
            transport.close()

    asyncio.run(send())
    return transport.data, transport.is_closed or b"Connection: close" in transport.data


SMUGGLED = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: 18446744073709551617",
        b"Content-Length:\r\n 5",
        b"Content-Length: 5\n",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding:\x0bchunked",
        b"X: a\rContent-Length: 5",
        b"X: a\r\n Transfer-Encoding: chunked",
    ],
)
def test_an_ambiguous_length_ends_the_connection(framing: bytes) -> None:
    found, is_ended = exchange(b"POST /api/write HTTP/1.1\r\n" + framing + b"\r\n\r\n" + SMUGGLED)
    assert found.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 501"))
    assert found.count(b"HTTP/1.1") == 1
    assert is_ended


def test_what_follows_a_last_request_is_not_answered() -> None:
    for text in (b"1.0\r\nTransfer-Encoding: chunked", b"1.1\r\nConnection: close"):
        found, _ = exchange(b"POST /api/write HTTP/" + text + b"\r\n\r\n" + SMUGGLED)
        assert found.count(b"HTTP/1.1") == 1, text


@pytest.mark.parametrize("body", [b"", b"\n\n\n"])
def test_an_upgrade_is_ignored(body: bytes) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    one = b"POST /api/write HTTP/1.1\r\n" + upgrade + length + body
    found, is_ended = exchange(one + one + b"GET /metrics HTTP/1.1\r\n\r\n", one)
    assert found.count(b"HTTP/1.1 200 OK") == 4
    assert not is_ended


@pytest.mark.parametrize(
    "part", [b"X: %b\r\n" % (b"y" * 1000), b"Content-Encoding: br\r\n", b"y" * 1000]
)
def test_a_trailer_has_a_largest_size_and_changes_nothing(part: bytes) -> None:
    begin = b"POST /api/write HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n"
    found, is_ended = exchange(begin + (part if part.endswith(b"\n") else b""), b"\r\n")
    assert (found.startswith(b"HTTP/1.1 200"), is_ended) == (True, False)
    found, is_ended = exchange(begin, *[part * 10] * 400)
    assert (found.startswith(b"HTTP/1.1 4"), is_ended) == (True, True)


def test_extensions_of_chunks_have_a_largest_size() -> None:
    begin = b"POST /api/write HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    found, _ = exchange(begin + b"1\r\n\n\r\n" * 50_000 + b"0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200")
    found, _ = exchange(begin + b"1;", *[b"x" * 10_000] * 10)
    assert found.startswith(b"HTTP/1.1 431")


def test_a_half_closed_connection_is_closed_after_its_answers() -> None:
    found, is_ended = exchange(b"GET /metrics HTTP/1.1\r\n\r\n" * 3, is_closed=True)
    assert (found.count(b"HTTP/1.1 200"), is_ended) == (3, True)
    transport = RecordedTransport()

    async def send() -> None:
        connection = StoreConnection(new_api(), ConnectionLimits())
        connection.connection_made(transport)
        connection.data_received(b"POST /api/write HTTP/1.1\r\nContent-Length: 0\r\n\r\n" * 3)
        assert connection.eof_received()
        while connection.is_busy():  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    assert transport.data.count(b"HTTP/1.1 200") == 3
    assert transport.is_closed


# Requests that ask for much


def answered(name: bytes, body: bytes, url: bytes = b"") -> StoreResponse:
    answers: list[StoreResponse] = []

    async def send() -> None:
        api = new_api()
        api.respond(ROUTES[name], url or name, body, False, answers.append)
        while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    return answers[0]


@pytest.mark.parametrize(
    ("until", "status"),
    [("9" * 30, 400), ("9" * 5000, 400), ("-" + "9" * 30, 400), ("99999999999", 200), ("1e9", 500),
     ("", 400), ("-", 500), ("\u0661", 500)],
)  # fmt: skip
def test_a_time_of_free_is_a_time(until: str, status: int) -> None:
    url = b"/api/free?to=" + until.encode("ascii", "replace")
    assert answered(b"/api/free", b"[]", url).status == status


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        (b"/api/query", b'{"queries":[' + b"{}," * 300_000 + b"{}]}", b"200000 queries"),
        (b"/api/query", b" " * (17 << 20), b"more than 16777216 bytes"),
        (b"/api/healthcheck", b'{"nodes":[' + b'"",' * 200_000 + b'""]}', b"100000 nodes"),
        (b"/api/healthcheck", b'{"metric-names":[' + b'"",' * 20_000 + b'""]}', b"10000 metrics"),
    ],
)
def test_long_lists_are_refused(name: bytes, body: bytes, reason: bytes) -> None:
    found = answered(name, body)
    assert found.status in {400, 413}
    assert isinstance(found.body, bytes)
    assert reason in found.body


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"metrics": ["load"] * 10_001}, b"10001 metrics"),
        ({"hosts": ["x"] * 100_001}, b"100001 hosts"),
        ({"hosts": ["x"] * 90_000, "metrics": ["load"] * 100}, b"9000000 series"),
    ],
)
def test_a_table_of_too_many_series_is_refused(more: dict[str, Any], reason: bytes) -> None:
    body = json.dumps({"cluster": "fox", "from": 0, "to": 60, **more}).encode()
    found = answered(b"/api/query", body, b"/api/query?version=2")
    assert isinstance(found.body, bytes)
    assert (found.status, reason in found.body) == (400, True)
