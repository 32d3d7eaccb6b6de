"""A real VictoriaMetrics, and what is written in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable

PRECISION = 1e-11
"""It keeps numbers as decimals of twelve digits or more (lib/decimal in its source)."""

_LABEL = "db"


class Series(NamedTuple):
    """tags: sorted pairs."""

    name: str
    tags: tuple[tuple[str, str], ...]


Points = dict[Series, list[tuple[float, float]]]
"""By series: seconds since 1970 and value."""


def series(name: str, tags: Iterable[tuple[str, str]]) -> Series:
    return Series(name, tuple(sorted(tags)))


class VictoriaMetrics:
    """A server on a port of its own, with all it keeps below a directory."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("victoria-metrics")
        assert program, "no victoria-metrics: apt-get install victoria-metrics"
        self.place = f"127.0.0.1:{free_port()}"
        self.log = directory / "log"
        command = [
            program,
            f"-storageDataPath={directory / 'data'}",
            f"-httpListenAddr={self.place}",
            "-retentionPeriod=100y",
            "-memory.allowedBytes=64MiB",
            # Else `load` would be `load_value`.
            "-influxSkipSingleField",
            "-search.disableCache",
            "-loggerTimezone=UTC",
        ]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=os.environ | {"GOMAXPROCS": "2"}
            )
        try:
            self._wait(60)
        except BaseException:
            self.stop()
            raise

    def url(self, database: str) -> str:
        """Where points are written to; a database is a tag to this server."""
        return f"http://{self.place}/write?db={database}&precision=s"

    def read(self, database: str) -> Points:
        """Return seconds since 1970 and value of all points, by series."""
        self._get("/internal/force_flush")
        selected = urlencode({"match[]": f'{{{_LABEL}="{database}"}}'})
        found: Points = {}
        for line in self._get(f"/api/v1/export?{selected}").splitlines():
            one = json.loads(line)
            tags: dict[str, str] = one["metric"]
            del tags[_LABEL]
            name = tags.pop("__name__")
            times = [milliseconds / 1000 for milliseconds in one["timestamps"]]
            found[series(name, tags.items())] = list(zip(times, one["values"], strict=True))
        return found

    def refused(self) -> list[str]:
        """What it complained of: it says nothing of a line that it can't read to the sender."""
        return [line for line in self.log.read_text().splitlines() if "cannot unmarshal" in line]

    def stop(self) -> None:
        """SIGTERM; it is given a minute."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _get(self, path: str) -> str:
        with urlopen(f"http://{self.place}{path}", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return self._get("/health") == "OK"
        except OSError:
            return False
