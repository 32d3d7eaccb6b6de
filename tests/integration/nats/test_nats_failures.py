"""`nats://`: servers that are away, that never answer, or that are none."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import RetryableError
from tests.support.nats_server import Bench, Script, ScriptedServer, greet, message

if TYPE_CHECKING:
    pass


def mute(server: ScriptedServer, connected: socket.socket) -> None:
    server.hang()


def mute_after_hello(server: ScriptedServer, connected: socket.socket) -> None:
    greet(connected)
    server.hang()


def mute_after_login(server: ScriptedServer, connected: socket.socket) -> None:
    greet(connected)
    connected.recv(65536)
    connected.sendall(b"PONG\r\n")
    server.hang()


def mute_but_reading(server: ScriptedServer, connected: socket.socket) -> None:
    greet(connected)
    connected.recv(65536)
    connected.sendall(b"PONG\r\n")
    for _ in server.lines(connected):
        pass


@pytest.mark.parametrize("script", [mute, mute_after_hello, mute_after_login, mute_but_reading])
@pytest.mark.parametrize("jetstream", [False, True])
def test_a_server_that_never_answers(bench: Bench, script: Script, jetstream: bool) -> None:
    server = bench.pretend(script)
    transport = bench.connect(server.url, time_limit=Duration("500ms"), jetstream=jetstream)
    begin = time.monotonic()
    with pytest.raises(RetryableError, match="no answer within 0.5 s$") as caught:
        # More than all buffers on the way can take.
        transport.send([message(b" " * 1_000_000) for _ in range(30)])
    assert 0.4 < time.monotonic() - begin < 30
    assert caught.value.delivered == 0


def test_closing_does_not_wait_for_a_server_that_never_answers(bench: Bench) -> None:
    silent = threading.Event()

    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected)
        for line in server.lines(connected):
            if silent.is_set():
                server.hang()
            if line == b"PING":
                connected.sendall(b"PONG\r\n")

    transport = bench.connect(bench.pretend(script).url)
    transport.send([message()])
    silent.set()
    begin = time.monotonic()
    transport.close()
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the server does not speak NATS"),
        (b"INFO {not json}\r\n", "the server does not speak NATS"),
        (b"\x00\xff" * 100_000, ""),
        (b"", "the server does not speak NATS"),
        (b"INFO {}\r\n", "the server closed the connection during the login"),
        (b"INFO []\r\n", "the server does not speak NATS"),
        (b"INFO {" + b" " * 100_000, "the server does not speak NATS: its first line is too long"),
        (b"INFO {}\r\nPONG\r\nMSG x 1 9999999999\r\n", "the server sends more than 1048576 bytes"),
        (
            b"INFO {}\r\nPONG\r\nHMSG x 1 12 9999999999\r\n",
            "the server sends more than 1048576 bytes",
        ),
        (
            b"INFO {}\r\nPONG\r\nINFO " + b"x" * 1_100_000,
            "the server sends more than 1048576 bytes",
        ),
        (b'INFO {"max_payload":0}\r\nPONG\r\n', "the server takes messages of 0 bytes only"),
        (b'INFO {"max_payload":"x"}\r\nPONG\r\n', "the server takes messages of 0 bytes only"),
        (b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n", "maximum connections exceeded"),
        (b"INFO {}\r\n-ERR '\x1b[2J" + b"x" * 500 + b"'\r\n", r"\\x1b\[2Jx+"),
    ],
)
def test_a_server_that_is_none(bench: Bench, said: bytes, reason: str) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        connected.sendall(said)
        connected.shutdown(socket.SHUT_WR)
        for _ in server.lines(connected):
            pass

    server = bench.pretend(script)
    with pytest.raises(RetryableError, match=f"^{server.url}: {reason}") as caught:
        bench.connect(server.url, time_limit=Duration("3s")).send([message()])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_nobody_listens(bench: Bench) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RetryableError, match=f"^{url}: connection refused$"):
            bench.connect(url).send([message()])


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70])
def test_no_such_host(bench: Bench, host: str) -> None:
    with pytest.raises(RetryableError, match=f"^nats://{host}:4222: the name does not resolve: "):
        bench.connect(f"nats://{host}").send([message()])


def test_one_of_several_servers_is_enough(bench: Bench) -> None:
    server = bench.stream_server()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        for _ in range(4):
            bench.connect(
                f"nats://{dead},localhost:{server.port},nowhere.invalid", jetstream=True
            ).send([message()])
        assert server.count() == 4
        server.kill()
        with pytest.raises(RetryableError) as caught:
            bench.connect(f"nats://{dead},nats://nowhere.invalid").send([message()])
    assert f"nats://{dead}: connection refused" in str(caught.value)
    assert "nats://nowhere.invalid:4222: the name does not resolve" in str(caught.value)
