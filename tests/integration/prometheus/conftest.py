"""A daemon with an exporter, node_exporter beside it, and a Prometheus that scrapes.

NODE_EXPORTER in the environment is the path of another node_exporter than Debian's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ccagent.exporter.settings import NodeExporterSettings
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.running import CCAGENT, Running, until


def get(url: str, **headers: str) -> str:
    """Return the body of an answer."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
        return body.decode()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


ON_DEMAND = ("interrupts", "mountstats", "processes", "tcpstat")
"""Collectors that node_exporter and ccagent run on demand only."""


NODE_EXPORTER = os.environ.get("NODE_EXPORTER", "prometheus-node-exporter")


class Exporter(Running):
    """A daemon that runs nothing but an exporter."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/metrics"

    def serve(self, keys: str = "") -> None:
        """Start, and wait until it listens. keys: of [exporter], without `listen`."""
        self.start(self.configured(keys))
        until(lambda: is_open(self.port))

    def configured(self, keys: str) -> str:
        return f'status-socket = ""\n[exporter]\nlisten = ["127.0.0.1:{self.port}"]\n{keys}\n'


@pytest.fixture
def exporter(tmp_path: Path) -> Generator[Exporter]:
    made = Exporter(tmp_path)
    yield made
    made.kill()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def node_exporter() -> Generator[str]:
    """The address of a real node_exporter with ccagent's defaults and collectors on demand."""
    port = free_port()
    excluded = NodeExporterSettings()
    with subprocess.Popen(
        [
            NODE_EXPORTER,
            f"--web.listen-address=127.0.0.1:{port}",
            f"--collector.diskstats.device-exclude={excluded.disk_exclude}",
            f"--collector.filesystem.mount-points-exclude={excluded.filesystem_exclude}",
            f"--collector.filesystem.fs-types-exclude={excluded.filesystem_types_exclude}",
            f"--collector.netdev.device-exclude={excluded.network_exclude}",
            *(f"--collector.{name}" for name in ON_DEMAND),
        ],
        stderr=subprocess.DEVNULL,
    ) as process:
        until(lambda: is_open(port))
        yield f"http://127.0.0.1:{port}/metrics"
        process.kill()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A file of users: ada with the password `right`."""
    line = subprocess.run(
        [*CCAGENT, "export", "password", "ada"], input=b"right\n", capture_output=True, check=True
    ).stdout
    path = tmp_path / "users"
    path.write_bytes(line)
    path.chmod(0o600)
    return path


class Prometheus:
    """A real Prometheus with some scrape jobs."""

    def __init__(self, directory: Path, jobs: list[dict[str, Any]], interval: str = "1s") -> None:
        self.port = free_port()
        directory.mkdir()
        times = {"scrape_interval": interval, "scrape_timeout": interval}
        configuration = {"global": times, "scrape_configs": jobs}
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(configuration))  # YAML, too
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={file}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=debug",
                ],
                stdout=log, stderr=log, env=os.environ | {"GOMAXPROCS": "1"},
            )  # fmt: skip

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression at this moment."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            answer = json.loads(get(f"http://127.0.0.1:{self.port}/api/v1/query?{query}"))
        except (OSError, urllib.error.URLError):
            return []
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        """Return the value of an expression that has one series, None without one."""
        series = self.query(expression)
        return float(series[0]["value"][1]) if series else None

    def wait(self, expression: str, seconds: float = 90) -> float:
        """Wait until an expression has a value."""
        deadline = time.monotonic() + seconds
        while (found := self.value(expression)) is None:
            assert time.monotonic() < deadline, f"{expression}: {self.log.read_text()[-2000:]}"
            time.sleep(0.2)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[[list[dict[str, Any]]], Prometheus]
"""Starts a Prometheus with scrape jobs."""


@pytest.fixture
def prometheus(tmp_path: Path) -> Generator[Start]:
    started: list[Prometheus] = []

    def start(jobs: list[dict[str, Any]]) -> Prometheus:
        started.append(Prometheus(tmp_path / f"prometheus{len(started)}", jobs))
        return started[-1]

    yield start
    for each in started:
        each.close()
