"""`ccagent outbox` and its commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.files import make_file_name
from ccagent.queue.queue import Queue
from ccagent.records.message import Message
from tests.support.http_server import Server


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Path:
    """A configuration, with three messages queued and two dead letters."""
    (tmp_path / "ccagent.toml").write_text(
        f'cluster = "x"\n[outbox]\ndirectory = "{tmp_path}/outbox"\n'
        f'[sinks.backend]\nurl = "http://{server.place}"\n'
    )
    queue = Queue("backend", OutboxSettings(directory=str(tmp_path / "outbox")))
    queue.put([Message("x", "n", "sample", "sonar", 1.0, b"{}", "", f"id{n}") for n in range(5)])
    batch = queue.next_batch(2)
    for waiting, reason in zip(batch.messages, ("422 no such field", "403"), strict=True):
        queue.reject(batch, waiting.number, reason)
    queue.close()
    return tmp_path


def outbox(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "outbox", "--config", str(site / "ccagent.toml")]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_queues_and_dead_letters_are_listed(site: Path) -> None:
    done = outbox(site)
    assert (done.returncode, done.stderr) == (0, "")
    head, backend, *letters = done.stdout.splitlines()
    assert head.split() == ["sink", "messages", "bytes", "oldest", "dead", "letters", "dropped"]
    assert backend.split()[:2] == ["backend", "3"]
    assert [line.rpartition(": ")[2] for line in letters] == ["422 no such field", "403"]


def test_dead_letters_are_sent_again(site: Path, server: Server) -> None:
    done = outbox(site, "retry", "--reason", "FIELD")
    assert (done.returncode, done.stdout) == (0, "queued again: 1\n")
    assert outbox(site, "flush").returncode == 0
    assert len(server.requests) == 4
    assert outbox(site, "retry", "--sink", "backend").stdout == "queued again: 1\n"


def test_dead_letters_are_deleted_on_demand_only(site: Path) -> None:
    assert outbox(site, "drop", "--reason", "403").stdout == "deleted: 1\n"
    assert outbox(site, "drop").stdout == "deleted: 1\n"
    assert outbox(site).stdout.splitlines()[1].split()[1] == "3"
    assert outbox(site, "drop", "--all").stdout == "deleted: 3\n"
    assert outbox(site).stdout.splitlines()[1].split()[1] == "0"


def test_an_unknown_sink_is_an_error_that_names_those_there_are(site: Path) -> None:
    done = outbox(site, "retry", "--sink", "backed")
    assert done.returncode == 2
    assert done.stderr == "ccagent: --sink backed: has no queue; existing queues: backend\n"


@pytest.mark.parametrize("arguments", [(), ("retry",), ("drop",), ("flush",)])
def test_a_file_that_cant_be_used_is_a_sentence_and_exit_status_1(
    site: Path, arguments: tuple[str, ...]
) -> None:
    file = site / "outbox" / make_file_name("backend")
    file.unlink()
    file.mkdir()
    done = outbox(site, *arguments)
    assert done.returncode == 1
    assert "not a regular file" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("retry",), ("drop",)])
def test_a_damaged_file_is_a_sentence_and_exit_status_1(
    site: Path, arguments: tuple[str, ...]
) -> None:
    file = site / "outbox" / make_file_name("backend")
    file.write_bytes(b"\0" * 100 + file.read_bytes()[100:])
    done = outbox(site, *arguments)
    assert done.returncode == 1
    assert "file is not a database" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_flush_sends_what_is_undamaged(site: Path, server: Server) -> None:
    file = site / "outbox" / make_file_name("backend")
    file.write_bytes(b"\0" * 100 + file.read_bytes()[100:])
    done = outbox(site, "flush")
    assert done.returncode == 0
    assert "3 messages are recovered" in done.stderr
    assert len(server.requests) == 3


def test_without_a_queue_there_is_nothing_to_show(site: Path) -> None:
    for path in (site / "outbox").iterdir():
        path.unlink()
    (site / "outbox").rmdir()
    done = outbox(site)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert outbox(site, "flush").returncode == 0
