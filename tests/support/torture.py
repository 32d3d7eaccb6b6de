"""A sender that is killed again and again, with damaged messages, a full disk and refused logins.

    python -m tests.support.torture [KILLS [MESSAGES]]

as root, since the full disk is a small file system that is mounted. Prints what became of the
messages; all must be delivered except for those that were damaged on purpose.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from ccagent.queue.queue import make_directory_name
from ccagent.queue.segment import WAITING, find_owner, parse_segment

_DISK = "8m"
_PATIENCE = 300.0


class Result(NamedTuple):
    """Numbers of messages: stored, damaged, delivered, lost, and repetitions."""

    stored: int
    damaged: int
    delivered: int
    lost: int
    repeated: int
    refused_logins: int


class Collector(ThreadingHTTPServer):
    """Takes messages, or refuses the login while told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.numbers: Counter[int] = Counter()
        self.refuses_logins = False
        self.refused = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Expect clients that are killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        collector = self.server
        assert isinstance(collector, Collector)
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        if collector.refuses_logins:
            collector.refused += 1
        else:
            collector.numbers[json.loads(body)["number"]] += 1
        self.send_response(401 if collector.refuses_logins else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
        """Print nothing."""


class Torture:
    """One series of kills, in a directory of its own."""

    def __init__(self, directory: Path, kills: int, messages: int) -> None:
        self.directory = directory
        self.kills = kills
        self.messages = messages
        self.collector = Collector()
        self.damaged: set[int] = set()
        self.outbox = directory / "outbox" / make_directory_name("backend")
        self._chance = random.Random(kills)

    def run(self) -> Result:
        """Kill, damage, fill and refuse; then let everything arrive."""
        refused_from, refused_to = self.kills // 4, self.kills // 2
        for number in range(self.kills):
            self.collector.refuses_logins = refused_from <= number < refused_to
            process = self._start(pause=0.0005)
            time.sleep(self._chance.uniform(0.3, 0.6))
            if number == self.kills // 3:
                self._fill_disk()
            process.kill()
            process.wait()
            if number % 5 == 4:
                self._damage_message()
        self.collector.refuses_logins = False
        process = self._start(pause=0.0)
        try:
            process.wait(_PATIENCE)
        finally:
            process.kill()
            process.wait()
        stored = {int(line) for line in (self.directory / "progress").read_text().split()}
        delivered = set(self.collector.numbers)
        return Result(
            stored=len(stored),
            damaged=len(self.damaged - delivered),
            delivered=len(delivered),
            lost=len(stored - delivered - self.damaged),
            repeated=self.collector.numbers.total() - len(delivered),
            refused_logins=self.collector.refused,
        )

    def close(self) -> None:
        """Stop the server."""
        self.collector.shutdown()
        self.collector.server_close()

    def _start(self, *, pause: float) -> subprocess.Popen[bytes]:
        table = {
            "url": f"http://127.0.0.1:{self.collector.server_address[1]}",
            "time-limit": "2s",
        }
        command = [sys.executable, "-m", "tests.support.sender", str(self.directory)]
        with (self.directory / "stderr").open("ab") as log:
            return subprocess.Popen(
                [*command, json.dumps(table), str(self.messages), str(pause)], stderr=log
            )

    def _fill_disk(self) -> None:
        """Fill the disk for a while, and wait until nothing is in memory alone any more."""
        fill = self.directory / "outbox" / "fill"
        with fill.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        time.sleep(1)
        fill.unlink()
        # The disk is tried again after 10 s, within 5 s.
        time.sleep(20)

    def _damage_message(self) -> None:
        """Damage a message of the files at random, and remember which one."""
        for path in sorted(self.outbox.glob("*.log"), key=lambda _: self._chance.random()):
            content = bytearray(path.read_bytes())
            waiting = [
                each
                for each in parse_segment(bytes(content), find_owner("backend")).messages
                if each.state == WAITING
            ]
            if not waiting:
                continue
            chosen = self._chance.choice(waiting)
            assert chosen.entry is not None
            self.damaged.add(json.loads(chosen.entry.message.body)["number"])
            content[chosen.position - 1 - self._chance.randrange(chosen.size - 1)] ^= 0xFF
            path.write_bytes(content)
            return


def torture(kills: int, messages: int) -> Result:
    """Run a series on a small file system that is mounted for it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        outbox = directory / "outbox"
        outbox.mkdir(mode=0o700)
        options = f"size={_DISK},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(outbox)], check=True)
        series = Torture(directory, kills, messages)
        try:
            return series.run()
        finally:
            series.close()
            print((directory / "stderr").read_text()[-2000:], file=sys.stderr)
            subprocess.run(["umount", str(outbox)], check=True)


def main() -> None:
    """Run a series and print its figures."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    messages = int(sys.argv[2]) if len(sys.argv) > 2 else kills * 150
    for name, value in torture(kills, messages)._asdict().items():
        print(f"{name.replace('_', ' '):15} {value:8}")


if __name__ == "__main__":
    main()
