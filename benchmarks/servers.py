"""Servers that benchmarks start on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


_WITHOUT_COMPILED = "PYTHONDONTWRITEBYTECODE"


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def server(port: int, *command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a program during the context. Wait until a process listens on the port."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    program = shutil.which(command[0], path=path)
    if program is None:
        sys.exit(f"{command[0]} is not installed")
    quiet = subprocess.DEVNULL
    # A package has its modules compiled.
    environment = {key: text for key, text in os.environ.items() if key != _WITHOUT_COMPILED}
    process = subprocess.Popen([program, *command[1:]], stdout=quiet, stderr=quiet, env=environment)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()
