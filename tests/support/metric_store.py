"""A metric store in a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RunningStore:
    """`options` follow `ccagent store metrics`."""

    def __init__(self, directory: Path, *options: str, port: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.options = options
        self.log = directory / "stderr"
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ccagent", "store", "metrics", "-v",
                 "--data", str(self.directory / "data"), "--listen", f"127.0.0.1:{self.port}",
                 *self.options],
                stderr=stderr,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            said = self.log.read_bytes()[begin:].decode()
            found = re.search(r"listening on \S+ port (\d+)", said)
            if found:
                self.port = int(found[1])
                return
            assert self.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)

    def kill(self) -> None:
        """With -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """With SIGTERM."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60) == 0, self.log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def ask(
        self, method: str, path: str, body: bytes | str = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = body.encode() if isinstance(body, str) else body
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def write(self, lines: str, cluster: str = "fox") -> Answer:
        return self.ask("POST", f"/api/write/?cluster={cluster}", lines)

    def query(self, start: int, end: int, *queries: dict[str, Any], **more: Any) -> Any:
        body = {"cluster": "fox", "from": start, "to": end, "queries": list(queries), **more}
        answer = self.ask("GET", "/api/query/", json.dumps(body))
        assert answer.status == 200, answer
        return answer.json()["results"]

    def resident(self) -> int:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
