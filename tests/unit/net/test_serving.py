"""Clients that send or read too slowly, or too much, lose their connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ccagent.net.serving import LimitedConnection, ServingLimits, limit_connections
from ccagent.net.urls import network

ASK = b"GET / HTTP/1.1\r\nHost: store\r\n\r\n"
HASTY = LimitedConnection.limits._replace(seconds=0.2)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["method"] == "POST":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b"x" * (32 << 20 if scope["path"] == "/large" else 2)
    await send({"type": "http.response.body", "body": body})


def talk_to_server(talk: Talk, limits: ServingLimits = LimitedConnection.limits) -> bytes:
    """Return what a client reads until its connection ends."""

    async def main() -> bytes:
        protocol = limit_connections(limits)
        config = uvicorn.Config(answer, lifespan="off", log_config=None, timeout_keep_alive=60)
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                return await asyncio.wait_for(talk(reader, writer), 20)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    return asyncio.run(main())


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: st", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
     ASK + b"GET / HT"],
)  # fmt: skip
def test_a_request_that_is_never_whole_ends(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        return await _read(reader)

    talk_to_server(talk, HASTY)


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answer_ends() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(ASK.replace(b" / ", b" /large "))
        await asyncio.sleep(1)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        return await _read(reader)

    assert len(talk_to_server(talk, HASTY)) < 32 << 20


def test_a_header_without_an_end_ends() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(ASK[:-2])
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"a: " + b"x" * 60_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        return b""

    talk_to_server(talk)


def test_too_many_connections_are_closed() -> None:
    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> bytes:
        return await _read(reader)

    assert talk_to_server(talk, ServingLimits(0, 256)) == b""


def test_a_client_in_time_is_answered() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(ASK)
        first = await reader.readuntil(b"xx")
        writer.write(ASK.replace(b"Host", b"Connection: close\r\nHost"))
        return first + await _read(reader)

    assert talk_to_server(talk).count(b"200 OK") == 2


def test_one_address_locks_out_nobody_else() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        peer = writer.get_extra_info("peername")[:2]
        slow = [await asyncio.open_connection(*peer) for _ in range(20)]
        # The oldest are closed, this one among them: new requests are answered.
        assert await _read(reader) == b""
        other = await asyncio.open_connection(*peer, local_addr=("127.0.0.2", 0))
        found = b""
        for each in (slow[-1], other):
            each[1].write(ASK)
            found += await each[0].readuntil(b"xx")
        for _, each_writer in (*slow, other):
            each_writer.close()
        return found

    assert talk_to_server(talk, ServingLimits(2048, 3)).count(b"200 OK") == 2


def test_a_proxy_has_the_connections_of_all() -> None:
    limits = ServingLimits(2048, 3, unlimited=frozenset({"127.0.0.1"}))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        peer = writer.get_extra_info("peername")[:2]
        more = [await asyncio.open_connection(*peer) for _ in range(20)]
        writer.write(ASK)
        found = await reader.readuntil(b"xx")
        for _, each_writer in more:
            each_writer.close()
        return found

    assert b"200 OK" in talk_to_server(talk, limits)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"), ("fe80::1%eth0", "fe80::/64"),
     ("2001:db8::1:2:3:4", "2001:db8::/64"), ("::ffff:10.0.0.1", "10.0.0.1"),
     ("nonsense", "nonsense"), ("", "")],
)  # fmt: skip
def test_a_client_may_have_a_network_of_addresses(address: str, expected: str) -> None:
    assert network(address) == expected


@pytest.mark.slow
def test_a_body_in_tiny_chunks_is_refused() -> None:
    """Each chunk takes time of the event loop, and so of all other clients."""
    head = (
        b"POST / HTTP/1.1\r\nHost: store\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    def send(chunk: bytes, count: int) -> bytes:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            with contextlib.suppress(OSError):
                writer.write(head)
                for _ in range(count):
                    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            return await _read(reader)

        return talk_to_server(talk, LimitedConnection.limits._replace(body=8 << 20))

    assert send(b"x", 100_000)[:12] in {b"HTTP/1.1 400", b""}
    assert send(b"x", 5_000).startswith(b"HTTP/1.1 200")
    assert send(b"x" * 64, 20_000).startswith(b"HTTP/1.1 200")
