"""Killing the sender again and again while it sends."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def send_while_killed(
    directory: Path,
    table: dict[str, Any],
    total: int,
    *,
    kills: int,
    pause: float,
    meanwhile: Callable[[], None] = lambda: None,
    seconds: float = 240,
) -> None:
    """Send `total` messages with a process that is killed with SIGKILL `kills` times.

    `meanwhile` runs some time before each kill: it may do the same to the server.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.sender",
        str(directory),
        json.dumps(table),
        str(total),
    ]
    deadline = time.monotonic() + seconds
    with (directory / "stderr").open("ab") as log:
        for _ in range(kills):
            process = subprocess.Popen([*command, str(pause)], stderr=log)
            time.sleep(random.uniform(0.4, 0.7))
            meanwhile()
            time.sleep(random.uniform(0.0, 0.3))
            process.kill()
            process.wait()
        process = subprocess.Popen([*command, "0"], stderr=log)
        try:
            process.wait(max(1.0, deadline - time.monotonic()))
        finally:
            process.kill()
            process.wait()
    stored = (directory / "progress").read_text().splitlines()
    assert [int(line) for line in stored] == list(range(total))
