"""Nothing is lost: outboxes on disk, in front of a real HTTP receiver that misbehaves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.killing import send_while_killed

CCAGENT = [sys.executable, "-m", "ccagent"]


FAULTS = ("500", "429", "cut", "cut after", "silence")


class Receiver(ThreadingHTTPServer):
    """Records what it has taken; every `fault_every`th request meets the next of the faults."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault_every = 0
        self.requests = 0
        self.answer = 200
        self.taken: list[bytes] = []
        self.answers: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is what these tests are about."""

    def next_fault(self) -> str:
        self.requests += 1
        if not self.fault_every or self.requests % self.fault_every:
            return ""
        return FAULTS[self.requests // self.fault_every % len(FAULTS)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the sender was killed meanwhile
            return
        receiver = self.server
        assert isinstance(receiver, Receiver)
        fault = receiver.next_fault()
        receiver.answers[fault or str(receiver.answer)] += 1
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "silence":
            time.sleep(0.4)
            self.close_connection = True
            return
        if fault == "cut after":
            receiver.taken.append(body)
            self.close_connection = True
            return
        status = int(fault or receiver.answer)
        if status == 200:
            receiver.taken.append(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Be quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def numbers(bodies: list[bytes]) -> Counter[int]:
    return Counter(json.loads(body)["number"] for body in bodies)


def test_all_arrive_although_the_agent_is_killed_and_the_receiver_fails(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.fault_every = 300
    total = 6_000
    table = {"url": receiver.url, "time-limit": "200ms"}
    send_while_killed(tmp_path, table, total, kills=12, pause=0.0005)
    found = numbers(receiver.taken)
    assert set(found) == set(range(total))
    assert min(receiver.answers[fault] for fault in FAULTS) >= 3
    # Each kill and each lost answer may repeat the batch that was under way, and nothing else.
    repeated = sum(found.values()) - total
    print(f"{repeated} messages came twice; answers: {dict(receiver.answers)}")
    assert repeated <= 1500


def test_they_arrive_oldest_first(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = 503
    send_later = [sys.executable, "-m", "tests.support.sender", str(tmp_path)]
    table = json.dumps({"url": receiver.url})
    process = subprocess.Popen([*send_later, table, "300", "0"])
    time.sleep(1.5)
    process.kill()
    process.wait()
    receiver.answer = 200
    subprocess.run([*send_later, table, "400", "0"], check=True)
    assert [json.loads(body)["number"] for body in receiver.taken] == list(range(400))


def configuration(directory: Path, receiver: Receiver) -> str:
    file = directory / "ccagent.toml"
    file.write_text(
        f"""
        cluster = "x.org"
        [outbox]
        directory = "{directory}/spool"
        [agents.sample]
        every = "1s"
        exclude-system-jobs = true
        [sinks.backend]
        url = "{receiver.url}"
        [sinks.tree]
        url = "dir:{directory}/tree"
        """
    )
    return str(file)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CCAGENT, *arguments], capture_output=True, text=True, check=False)


def test_what_one_run_could_not_send_goes_with_the_next(receiver: Receiver, tmp_path: Path) -> None:
    file = configuration(tmp_path, receiver)
    receiver.answer = 503
    for _ in range(3):
        result = run("sample", "--config", file)
        assert result.returncode == 0
        assert "503" in result.stderr
    shown = run("outbox", "--config", file).stdout.splitlines()
    assert shown[1].split()[:2] == ["backend", "3"]
    receiver.answer = 200
    assert run("sample", "--config", file).returncode == 0
    assert len(receiver.taken) == 4
    times = [json.loads(body)["data"]["attributes"]["time"] for body in receiver.taken]
    assert times == sorted(times)
    assert run("outbox", "--config", file).stdout.splitlines()[1].split()[:2] == ["backend", "0"]


def test_flush_sends_what_waits(receiver: Receiver, tmp_path: Path) -> None:
    file = configuration(tmp_path, receiver)
    receiver.answer = 503
    run("sample", "--config", file)
    assert run("outbox", "--config", file, "flush").returncode == 1
    receiver.answer = 200
    assert run("outbox", "--config", file, "flush").returncode == 0
    assert len(receiver.taken) == 1


def test_a_refused_message_is_shown_with_the_answer_and_the_queue_goes_on(
    receiver: Receiver, tmp_path: Path
) -> None:
    file = configuration(tmp_path, receiver)
    receiver.answer = 422
    assert run("sample", "--config", file).returncode == 0
    receiver.answer = 200
    assert run("sample", "--config", file).returncode == 0
    assert len(receiver.taken) == 1
    shown = run("outbox", "--config", file).stdout
    assert "422" in shown.splitlines()[2]
    assert shown.splitlines()[1].split() == ["backend", "0", "0", "0:00", "1", "0"]


def test_an_outage_delays_neither_sampling_nor_another_sink(
    receiver: Receiver, tmp_path: Path
) -> None:
    file = configuration(tmp_path, receiver)
    receiver.answer = 503
    daemon = subprocess.Popen([*CCAGENT, "run", "--config", file], stderr=subprocess.DEVNULL)
    time.sleep(5.5)
    receiver.answer = 200
    deadline = time.monotonic() + 60
    while len(receiver.taken) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    daemon.terminate()
    assert daemon.wait(60) == 0
    (tree,) = (tmp_path / "tree").rglob("*.json")
    written = tree.read_text().splitlines()
    seconds = [json.loads(line)["data"]["attributes"]["time"] for line in written]
    assert len(set(seconds)) == len(seconds) >= 5
    assert [body.decode() for body in receiver.taken] == written[: len(receiver.taken)]
    assert len(receiver.taken) >= 6
