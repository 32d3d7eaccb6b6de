"""A jobstats store in a process of its own, requests to it, and arrays for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self


class StoreAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


BEGIN = datetime.now(UTC).replace(hour=10, minute=0, second=0, microsecond=0) - timedelta(days=2)
"""Two days ago at 10:00: a store drops what is older than its retention."""


class RunningJobstatsStore:
    """`options` follow `ccagent store jobstats`."""

    def __init__(
        self, directory: Path, *options: str, is_ready: bool = True, files: int = 0
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.log = directory / "store.log"
        self.options = options
        self.files = files
        """Descriptors that the process may have; 0: as many as this one."""
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start(is_ready=is_ready)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, is_ready: bool = True) -> None:
        limit = ("prlimit", f"--nofile={self.files}", "--") if self.files else ()
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*limit, sys.executable, "-m", "ccagent", "store", "jobstats", "-v",
                 "--listen", f"127.0.0.1:{self.port}", *self.options],
                stderr=stderr,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            said = self.log.read_bytes()[begin:].decode()
            found = re.search(r"listening on \S+ port (\d+)", said)
            if found and (not is_ready or "is ready" in said):
                self.port = int(found[1])
                return
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """With -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """With SIGTERM; return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def resident(self) -> int:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(
        self, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
    ) -> StoreAnswer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return StoreAnswer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def post(self, records: object, token: str = "") -> StoreAnswer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.ask("POST", "/lustre", json.dumps(records), headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()


def record(
    seconds: float, counters: dict[str, int] | None = None, /, **fields: Any
) -> dict[str, Any]:
    """Return a record of the entry `5:1001:c1` at seconds since BEGIN."""
    begin = BEGIN.timestamp()
    moment = datetime.fromtimestamp(begin + seconds, UTC).isoformat(timespec="milliseconds")
    found: dict[str, Any] = {
        "target": "fs-OST0000",
        "entry_id": "5:1001:c1",
        "server": "a",
        "timestamp": moment,
        "snapshot_time": int(begin + seconds) - 5,
        **(counters or {}),
        **fields,
    }
    return {name: value for name, value in found.items() if value is not ...}


def zeros(seconds: float, **fields: Any) -> dict[str, Any]:
    """Return the record that marks a beginning."""
    return record(seconds, {"write_bytes": 0}, snapshot_time=None, **fields)
