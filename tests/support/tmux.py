"""A program in a terminal of tmux: keys in, screens out."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self


class Terminal:
    """A terminal of its own server. `command` is run by a shell, which then prints its status."""

    def __init__(self, directory: Path, command: str, width: int = 80, height: int = 24) -> None:
        self._socket = str(directory / "tmux")
        # pytest sets the size that its own output has.
        self._environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
        self._run(
            "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
            f"{command}; echo status=$?; sleep 60",
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server")

    def press(self, *keys: str) -> None:
        """Press keys, by their names in tmux: a character, Enter, Escape, Up, F10."""
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def lines(self) -> list[str]:
        return self._run("capture-pane", "-p").splitlines()

    def wait(self, wanted: Callable[[list[str]], bool]) -> list[str]:
        """Return the first screen that is as wanted."""
        deadline = time.monotonic() + 60
        while True:
            found = self.lines()
            if wanted(found):
                return found
            assert time.monotonic() < deadline, "\n".join(found)
            time.sleep(0.05)

    def _run(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, *arguments], check=True, capture_output=True, text=True,
            timeout=60, env=self._environment,
        ).stdout  # fmt: skip
