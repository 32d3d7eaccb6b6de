"""What a store says when it listens, and when it can't."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import until


def start(*arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", "ccagent", *arguments], stderr=output)


def test_a_store_names_its_addresses_without_being_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    web = ("--web", "127.0.0.1:0")
    store = start(
        "store", "metrics", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", *web, log=log
    )
    try:
        until(lambda: log.read_text().count("\n") >= 2)
        told = sorted(line.removeprefix("ccagent: info: ") for line in log.read_text().splitlines())
        assert re.fullmatch(r"listening on 127\.0\.0\.1, port (\d+): http://127.0.0.1:\1/", told[0])
        assert re.fullmatch(r"pages at http://127\.0\.0\.1:\d+/", told[1])
    finally:
        store.terminate()
        assert store.wait(60) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("store", "metrics", "--data", "data", "--listen"),
        ("store", "metrics", "--data", "data", "--listen", "127.0.0.1:0", "--web"),
        ("try", "--web"),
    ],
)
def test_a_used_port_is_named_with_its_reason(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "ccagent", *arguments, place],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"{place}: address already in use")
    assert "Errno" not in done.stderr
