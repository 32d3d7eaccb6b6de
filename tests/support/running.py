"""A daemon in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CCAGENT = [sys.executable, "-m", "ccagent"]


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.05)


class Running:
    """A daemon in a process of its own, with a configuration that the test writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.out = directory / "out"
        self.file = directory / "ccagent.toml"
        self.log = directory / "stderr"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, configuration: str, *options: str) -> None:
        self.file.write_text(configuration.replace("OUT", str(self.out)))
        with self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*CCAGENT, "run", *(options or ["-v"]), "--config", str(self.file)], stderr=stderr
            )

    def reload(self, configuration: str) -> None:
        self.file.write_text(configuration.replace("OUT", str(self.out)))
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def written(self, directory: str = "") -> list[dict[str, Any]]:
        files = sorted((self.out / directory).rglob("0+sample-*.json"))
        # A reader can meet a line that is not complete yet.
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> float:
        """SIGTERM; give the seconds it took."""
        assert self.process is not None
        begin = time.monotonic()
        self.process.terminate()
        assert self.process.wait(60) == 0
        return time.monotonic() - begin
