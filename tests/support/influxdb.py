"""A running InfluxDB of version 1."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.support.ports import free_port

CONFIGURATION = """
reporting-enabled = false
bind-address = "127.0.0.1:0"
[meta]
  dir = "{directory}/meta"
[data]
  dir = "{directory}/data"
  wal-dir = "{directory}/wal"
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
"""


class Influx:
    """A running server with an empty database `x`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/ping", timeout=30) as answer:
                return bool(answer.status == 204)
        except OSError:
            return False

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of all series, with the series' tags."""
        arguments = urlencode({"db": "x", "epoch": "s", "q": text}).encode()
        request = Request(f"{self.url}/query", data=arguments)
        with urlopen(request, timeout=30) as answer:
            (result,) = json.load(answer)["results"]
        assert "error" not in result, result
        return [
            dict(zip(series["columns"], values, strict=True)) | series.get("tags", {})
            for series in result.get("series", [])
            for values in series["values"]
        ]


@contextmanager
def running_influxd(directory: Path) -> Generator[Influx]:
    """Run a server with its files below a directory."""
    program = shutil.which("influxd")
    if program is None:
        pytest.fail("influxd is not installed: apt-get install influxdb")
    port = free_port()
    configuration = directory / "influxdb.conf"
    configuration.write_text(CONFIGURATION.format(directory=directory, port=port))
    log = directory / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [program, "-config", str(configuration)], stdout=output, stderr=output
        )
    influx = Influx(port)
    try:
        _await(influx, server, log)
        yield influx
    finally:
        server.terminate()
        server.wait(60)


def _await(influx: Influx, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not influx.answers():
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"influxd doesn't answer:\n{log.read_text()}")
        time.sleep(0.05)
