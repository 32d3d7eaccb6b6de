"""Requests taken out of bytes: heads that repeat, and those of older clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ccagent.stores.metrics.request_reader import ConnectionLimits, RequestReader
from ccagent.stores.metrics.tokens import TokenVerifier
from tests.unit.stores.metrics.support import NOW
from tests.unit.stores.metrics.test_hostile import exchange, new_api
from tests.unit.stores.metrics.test_tokens import PUBLIC, Time, token

if TYPE_CHECKING:
    from ccagent.stores.metrics.request_reader import StoreRequest
    from ccagent.stores.metrics.responses import StoreResponse

WRITE = b"POST /api/write HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


class Taken(NamedTuple):
    bodies: list[bytes]
    statuses: list[int]

    def take(self, request: StoreRequest) -> None:
        self.bodies.append(bytes(request.body))

    def refuse(self, response: StoreResponse) -> None:
        self.statuses.append(response.status)

    def expect(self) -> None:
        return


def read(*parts: bytes, bodies: int = 1 << 30) -> Taken:
    """Return what a reader takes out of bytes that come one after the other."""
    taken = Taken([], [])

    async def feed() -> None:
        reader = RequestReader(new_api(), ConnectionLimits(bodies=bodies), taken)
        for part in parts:
            reader.feed(part)

    asyncio.run(feed())
    return taken


def request(body: bytes) -> bytes:
    return WRITE % (len(body), body)


def test_a_head_that_repeats_has_bodies_of_any_length() -> None:
    sent = [b"a" * 10, b"b" * 200, b"", b"c" * 7, b"d" * 100_000]
    assert read(*map(request, sent)).bodies == sent


@pytest.mark.parametrize(
    "parts",
    [
        # In pieces, several at once, and both.
        [request(b"aaa"), request(b"bbb")[:30], request(b"bbb")[30:], request(b"ccc")],
        [request(b"aaa"), request(b"bbb") + request(b"ccc")],
        [request(b"aaa") + request(b"bbb")[:-1], b"b" + request(b"ccc")],
        [request(b"aaa"), WRITE % (3, b""), b"bbb", request(b"ccc")],
        [b"\r\n" + request(b"aaa"), b"\r\n" + request(b"bbb"), request(b"ccc")],
    ],
)
def test_requests_come_in_any_pieces(parts: list[bytes]) -> None:
    assert read(*parts).bodies == [b"aaa", b"bbb", b"ccc"]


def test_a_body_is_never_taken_for_a_head() -> None:
    hidden = request(b"hidden")
    # The first bytes look like a head that ends after its body.
    first = (
        b"POST /api/write HTTP/1.1\r\nContent-Length: 4\r\n\r\nab\r\nGET /metrics HTTP/1.1\r\n\r\n"
    )
    second = first.replace(b": 4", b": %d" % len(hidden)) + hidden
    taken = read(first, second)
    assert taken.bodies[:2] == [b"ab\r\n", b""]
    assert hidden not in taken.bodies


@pytest.mark.parametrize(
    "length", [b"+3", b"0x3", b" 3 3", b"3\r\nContent-Length: 3", b"99999999999"]
)
def test_another_length_is_parsed_anew(length: bytes) -> None:
    begin, _, end = request(b"abc").partition(b"3")
    taken = read(request(b"abc"), begin + length + end)
    assert (taken.bodies, len(taken.statuses)) == ([b"abc"], 1)


def test_limits_hold_for_repeated_heads() -> None:
    taken = read(request(b"a" * 600), request(b"b" * 600), bodies=1000)
    assert (len(taken.bodies), taken.statuses) == (1, [503])


def test_a_token_expires_between_two_requests() -> None:
    clock = Time()
    api = new_api(verifier=TokenVerifier(PUBLIC, clock))
    head = b"POST /api/write HTTP/1.1\r\nAuthorization: " + token({"exp": NOW + 10})
    whole = head + b"\r\nContent-Length: 2\r\n\r\n\n\n"
    taken = Taken([], [])

    async def feed() -> None:
        reader = RequestReader(api, ConnectionLimits(), taken)
        for clock.now in (NOW, NOW + 5, NOW + 10):
            reader.feed(whole)

    asyncio.run(feed())
    assert (len(taken.bodies), taken.statuses) == (2, [401])


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    write = b"load,cluster=fox,hostname=n1 value=1 %d\n" % NOW
    found, is_ended = exchange(
        request(write), b"GET /api/debug HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    )
    head, _, body = found.rpartition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert body.startswith(b'{"data":{"fox"')
    assert is_ended


def test_a_body_without_a_line_break_is_refused_early() -> None:
    head = WRITE % (64 << 20, b"")
    assert read(head, *[b"x" * 65_536] * 10).statuses == []
    assert read(head, *[b"x" * 65_536] * 11).statuses == [400]
    assert read(head, b"\n", *[b"x" * 65_536] * 20).statuses == []
