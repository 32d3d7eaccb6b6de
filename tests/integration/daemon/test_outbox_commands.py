"""`ccagent outbox` and its commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.queue.queue import Queue, make_directory_name
from ccagent.records.message import Message
from tests.support.http_server import Server

DIRECTORY = make_directory_name("backend")


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
    for waiting, reason in zip(batch, ("422 no such field", "403"), strict=True):
        queue.reject(waiting.number, reason)
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


@pytest.mark.parametrize("name", ["backend", "older"])
def test_a_file_of_the_version_before_is_listed(site: Path, name: str) -> None:
    (site / "outbox" / f"{name}.outbox").touch()
    done = outbox(site)
    assert (done.returncode, done.stderr) == (0, "")
    # The table breaks the line anywhere, after a long path of the directory.
    assert f"{name}.outbox:waitsforitsconversion" in "".join(done.stdout.split())
    assert (site / "outbox" / f"{name}.outbox").exists()


def test_dead_letters_are_sent_again(site: Path, server: Server) -> None:
    done = outbox(site, "retry", "--reason", "FIELD")
    assert (done.returncode, done.stdout) == (0, "queued again: 1\n")
    assert outbox(site, "flush").returncode == 0
    assert len(server.requests) == 4
    assert outbox(site, "retry", "--sink", "backend").stdout == "queued again: 1\n"


def test_messages_in_the_wrong_directory_return_to_their_sink(site: Path, server: Server) -> None:
    config = site / "ccagent.toml"
    outbox_directory = site / "outbox"
    other = Queue("other", OutboxSettings(directory=str(outbox_directory)))
    other.put([Message("x", "n", "sample", "sonar", 1.0, b'{"for": "other"}', "", "id")])
    other.close()
    (segment,) = (outbox_directory / make_directory_name("other")).iterdir()
    segment.rename(outbox_directory / DIRECTORY / f"{10**11}.log")
    Queue("backend", OutboxSettings(directory=str(outbox_directory))).close()  # sets it aside
    config.write_text(config.read_text() + f'[sinks.other]\nurl = "http://{server.place}/other"\n')
    assert outbox(site, "retry", "--reason", "for sink other").stdout == "queued again: 1\n"
    assert outbox(site, "flush").returncode == 0
    assert [r.path for r in server.requests if b"other" in r.body] == ["/other/sample"]


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


def test_all_messages_are_deleted_beside_a_process_that_sends_them(site: Path) -> None:
    queue = Queue("backend", OutboxSettings(directory=str(site / "outbox")))
    queue.put([Message("x", "n", "sample", "sonar", 1.0, b"{}", "", "new")])
    assert outbox(site, "drop", "--all").stdout == "deleted: 6\n"
    assert queue.next_batch() == []
    assert queue.count() == 0
    queue.close()


def test_files_of_another_sink_are_shown_and_sent_on_demand_only(
    site: Path, server: Server
) -> None:
    queue = Queue("other", OutboxSettings(directory=str(site / "outbox")))
    queue.put([Message("x", "n", "sample", "sonar", 1.0, b"{}", "", "other")])
    queue.close()
    (file,) = (site / "outbox" / make_directory_name("other")).iterdir()
    file.rename(site / "outbox" / DIRECTORY / "000000000099.log")
    file.parent.rmdir()
    assert outbox(site, "flush").returncode == 0
    assert len(server.requests) == 3
    assert "for sink other" in outbox(site).stdout
    assert outbox(site, "retry", "--reason", "sink other").stdout == "queued again: 1\n"
    assert outbox(site, "flush").returncode == 0
    assert len(server.requests) == 4
    assert "for sink other" not in outbox(site).stdout


@pytest.mark.parametrize("arguments", [(), ("retry",), ("drop",), ("flush",)])
def test_a_directory_that_cant_be_used_is_a_sentence_and_exit_status_1(
    site: Path, arguments: tuple[str, ...]
) -> None:
    directory = site / "outbox" / DIRECTORY
    shutil.rmtree(directory)
    directory.touch()
    done = outbox(site, *arguments)
    assert done.returncode == 1
    assert "not a directory" in " ".join((done.stdout + done.stderr).lower().split())
    assert "Traceback" not in done.stderr


def test_damage_is_shown_and_flush_sends_what_is_undamaged(site: Path, server: Server) -> None:
    (file,) = (site / "outbox" / DIRECTORY).glob("*.log")
    file.write_bytes(b"\0" * 100 + file.read_bytes()[100:])
    shown = outbox(site)
    assert shown.returncode == 0
    assert "bytes are damaged" in shown.stdout
    done = outbox(site, "flush")
    assert done.returncode == 0
    assert "are damaged; 3 undamaged messages are sent" in " ".join(done.stderr.split())
    assert len(server.requests) == 3


def test_without_a_queue_there_is_nothing_to_show(site: Path) -> None:
    shutil.rmtree(site / "outbox")
    done = outbox(site)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert outbox(site, "flush").returncode == 0
