"""A hostile server costs a real ccagent neither memory nor time without limit."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.hostile import MODES, Flood
from tests.support.running import CCAGENT

_MOST_MEGABYTES = 60
_SECONDS = 2


def peak(process: subprocess.Popen[str]) -> int:
    """Return the largest resident size in kB that a process had by its end (VmHWM)."""
    most = 0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        most = max(most, int(found[1]) if found else 0)
        time.sleep(0.003)
    return most


@pytest.mark.parametrize("name", MODES)
def test_a_flood_is_bounded(name: str) -> None:
    server = Flood(MODES[name])
    begin = time.monotonic()
    options = ["--sink-set", f"time-limit={_SECONDS}s", "--cluster", "x.org"]
    if server.url.startswith(("mqtt", "ws")):
        options += ["--sink-set", "status-topic="]
    if server.url.startswith("nats"):
        options += ["--sink-set", "jetstream=true"]
    try:
        process = subprocess.Popen(
            [*CCAGENT, "sinks", "test", server.url, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        megabytes = peak(process) / 1024
        out, err = process.communicate()
    finally:
        server.stop()
    seconds = time.monotonic() - begin
    print(f"| {name} | {megabytes:.0f} MB | {seconds:.1f} s | {(err or out).strip()[:150]} |")
    assert 5 < megabytes < _MOST_MEGABYTES
    assert seconds < 4 * _SECONDS + 10
    assert "Traceback" not in err
    is_endless_success = MODES[name].scheme == "http" and process.returncode == 0
    assert process.returncode == 1 or is_endless_success
    assert len(err.splitlines()) == (0 if is_endless_success else 1)
