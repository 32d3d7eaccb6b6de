"""A NATS server, and control services of composed machines that listen to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.controls.nats_requests import RequestConnection, connect_client
from ccagent.controls.settings import ControlsSettings
from ccagent.records.line_protocol import Line, decode_lines
from tests.support.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT = 30.0


class RunningService:
    """A service of a machine, and what it has written to stderr."""

    def __init__(self, directory: Path, root: Path, table: str, hang: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.config = directory / "c.toml"
        self.root = root
        self._hang = hang
        self.config.write_text(
            table + f'state-directory = "{directory}/state"\nsocket = "{directory}/run/c.sock"\n'
        )
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.control_service", str(self.config),
                   str(self.root), *filter(None, (self._hang,))]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            size = log.tell()
            self.process = subprocess.Popen(command, stderr=log)
        wanted = "connected to" if "url" in self.config.read_text() else "started"
        self.wait_for(lambda: wanted in self.log[size:])
        return self.process

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT)


class ControlClient:
    """Asks as the reference's client does: a reply subject, one second of patience."""

    def __init__(self, url: str, **login: Any) -> None:
        settings = ControlsSettings(url=url, **login)
        self.link: RequestConnection = connect_client(settings, "test", 10.0)
        self._count = 0

    def listen(self, subject: str) -> None:
        """Receive the messages of one more subject."""
        link = self.link

        async def subscribe() -> None:
            await link.session.subscribe(subject, link._on_message)
            await link.session.flush()

        link._wait(link.session.run_limited(subscribe()))

    def ask(
        self,
        body: str,
        subject: str = "cc-control",
        *,
        headers: dict[str, str] | None = None,
        answers: int = 1,
        seconds: float = WAIT,
    ) -> list[Line]:
        """Return the answers; fewer than expected if they do not come within `seconds`."""
        self._count += 1
        reply = f"{self.link.inbox}.{self._count}"
        self.link.publish([(subject, body.encode(), headers, reply)])
        found: list[Line] = []
        deadline = time.monotonic() + seconds
        while len(found) < answers and (rest := deadline - time.monotonic()) > 0:
            message = self.link.receive(rest)
            if message is not None and message.subject == reply:
                if (message.headers or {}).get("Status") == "503":
                    return []  # nobody listens
                found += decode_lines(message.data.decode(), "ns")
        return found

    def send(self, subject: str, body: str) -> None:
        """Send a message that needs no answer."""
        self.link.publish([(subject, body.encode(), None, "")])

    def close(self) -> None:
        self.link.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    found = NatsServer(tmp_path / "nats", with_jetstream=False)
    yield found
    found.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningService]]:
    """Start services; each is killed at the end."""
    services: list[RunningService] = []

    def started(root: Path, table: str, hang: str = "") -> RunningService:
        directory = tmp_path / f"service{len(services)}"
        services.append(RunningService(directory, root, table, hang))
        return services[-1]

    yield started
    for service in services:
        service.kill()


@pytest.fixture
def client(server: NatsServer) -> Iterator[ControlClient]:
    found = ControlClient(server.url)
    yield found
    found.close()
