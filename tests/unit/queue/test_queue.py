"""The queue of a sink: on disk while that works."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.errors import EncodingError
from ccagent.queue.queue import Queue, make_directory_name
from ccagent.queue.segment import DEAD
from ccagent.queue.segment_directory import read_files
from ccagent.records.message import Message
from tests.support import damage

DIRECTORY = make_directory_name("backend")


def message(text: str, size: int = 10, kind: str = "sample") -> Message:
    return Message("c", "n", kind, "sonar", 1.5, text.encode().ljust(size), "", text)


def drained(queue: Queue) -> list[str]:
    """Take everything out."""
    found: list[str] = []
    while batch := queue.next_batch():
        found += [waiting.message.id for waiting in batch]
        queue.remove([waiting.number for waiting in batch])
    return found


def settings(directory: Path) -> OutboxSettings:
    return OutboxSettings(directory=str(directory))


def test_messages_survive_the_process(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path / "made"))
    queue.put([message("0"), message("1")])
    del queue
    again = Queue("backend", settings(tmp_path / "made"))
    assert again.count() == 2
    assert drained(again) == ["0", "1"]
    again.close()


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_the_bytes_that_wait_are_counted(tmp_path: Path, *, is_on_disk: bool) -> None:
    queue = Queue("backend", settings(tmp_path) if is_on_disk else OutboxSettings())
    assert queue.size() == 0
    queue.put([message("0", 1000)])
    queue.put([message("1", 500)])
    assert 1500 < queue.size() < 2000
    drained(queue)
    assert queue.size() == 0
    queue.close()


# Only root may use what it has created with 0o777.
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o077 if os.geteuid() else 0o777])
def test_only_its_owner_can_read_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        queue = Queue("backend", settings(tmp_path / "made"))
        queue.put([message("0")])
    finally:
        os.umask(old)
    directory = tmp_path / "made" / DIRECTORY
    assert {path.stat().st_mode & 0o777 for path in (directory, directory.parent)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    queue.close()


def test_a_sink_of_any_name_has_a_directory_of_its_own() -> None:
    assert (
        make_directory_name("--sink nats://x:4222/../a b")
        == "--sink%20nats%3A%2F%2Fx%3A4222%2F..%2Fa%20b.queue"
    )


def test_a_file_damaged_while_it_is_used_loses_no_undamaged_message(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    queue.put([message("1")])
    (path,) = (tmp_path / DIRECTORY).iterdir()
    with path.open("r+b") as opened:
        opened.write(b"\xff" * 100)
    queue.put([message("2")])
    assert drained(queue) == ["0", "1", "2"]
    queue.close()


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with messages of many sizes, some deleted, and dead letters."""
    directory = tmp_path_factory.mktemp("intact") / "closed"
    damage.write_intact(directory)
    return directory


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a killed process leaves it: with space that is allocated and not used."""
    directory = tmp_path_factory.mktemp("intact") / "killed"
    damage.write_intact(directory, is_closed=False)
    return directory


@pytest.mark.parametrize("seed", range(30))
def test_random_damage_costs_no_undamaged_message(
    intact: Path, killed: Path, tmp_path: Path, seed: int
) -> None:
    """`python -m tests.support.damage` does the same 1,500 times."""
    work = tmp_path / "work"
    shutil.copytree((intact, killed)[seed % 2], work)
    outcome = damage.deliver(work, damage.damage(work, seed))
    assert outcome.lost == set()
    assert outcome.delivered[-1] == "new"
    assert (outcome.tracebacks, outcome.restarts, outcome.is_alive) == (0, 0, True)


def test_dead_letters_survive_memory_and_removal(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path / "x"))
    queue.put([message("0"), message("1")])
    queue.reject(queue.next_batch(1)[0].number, "on disk")
    shutil.rmtree(tmp_path / "x")
    queue.put([message("2")])
    queue.reject(queue.next_batch(1)[0].number, "later")
    queue.close()
    files = read_files(queue.path, queue.owner).values()
    letters = [each for content in files for each in content.messages if each.state == DEAD]
    assert [letter.reason for letter in letters] == ["on disk", "later"]


def test_what_was_in_memory_keeps_its_age(tmp_path: Path) -> None:
    queue = Queue("backend", OutboxSettings(directory=str(tmp_path), max_age=Duration("7d")))
    queue._moment = queue.now()._replace(clock=8 * 86400.0)
    queue._fail(OSError(28, "No space left on device"))
    queue.put([message("0")])
    assert queue.count(in_memory=True) == 1
    queue._retry_at = 0.0
    queue.check()
    queue.put([message("1")])
    assert (queue.count(in_memory=True), queue.dropped, queue.error) == (0, 0, "")
    assert drained(queue) == ["0", "1"]
    queue.close()


def test_a_message_under_way_while_it_moves_to_the_disk_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0"), message("1")])
    batch = queue.next_batch(1)
    (tmp_path / DIRECTORY).unlink()
    queue._retry_at = 0.0
    queue.check()
    assert queue.count(in_memory=True) == 0
    queue.remove([queued.number for queued in batch])
    queue.close()
    assert drained(Queue("backend", settings(tmp_path))) == ["1"]


def test_memory_is_bounded_and_drops_nothing_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.queue.queue._MEMORY_BYTES", 20_000)
    queue = Queue("backend", OutboxSettings(directory=str(tmp_path), max_bytes=100_000))
    queue.put([message("disk")])
    queue._fail(OSError(5, "Input/output error"))
    queue._seal(queue._written[False])
    for number in range(50):
        queue.put([message(str(number), 1000)])
    left = queue.count(in_memory=True)
    assert (10 < left < 20, queue.dropped) == (True, 50 - left)
    assert drained(queue) == ["disk", *(str(number) for number in range(50 - left, 50))]
    queue.close()


def test_a_message_rejected_while_the_disk_fails_is_a_dead_letter_in_its_file(
    tmp_path: Path,
) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    queue._fail(OSError(28, "No space left on device"))
    queue.reject(queue.next_batch()[0].number, "422")
    (content,) = read_files(queue.path, queue.owner).values()
    assert [each.reason for each in content.messages] == ["the reason could not be stored"]
    queue.close()


def test_a_message_that_cant_be_stored_costs_itself(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    with pytest.raises(EncodingError, match="can't be stored"):
        queue.put([Message("c", "n\ud800", "sample", "sonar", 1.5, b"{}")])
    assert drained(queue) == ["0"]
    assert [path for path in tmp_path.iterdir() if "damaged" in path.name] == []
    queue.close()


@pytest.mark.parametrize("truncated", [0, 1, 50, 511, 4095, 4096, 20_000])
def test_a_truncated_file_is_no_obstacle(intact: Path, tmp_path: Path, truncated: int) -> None:
    (tmp_path / DIRECTORY).mkdir()
    file = min((intact / DIRECTORY).iterdir())
    (tmp_path / DIRECTORY / file.name).write_bytes(file.read_bytes()[:truncated])
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("new")])
    assert drained(queue)[-1] == "new"
    assert queue.error == ""
    queue.close()


def test_a_removed_directory_is_noticed_and_its_messages_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("backend", settings(tmp_path / "made"))
    queue.put([message("0"), message("1")])
    shutil.rmtree(tmp_path / "made")
    queue.put([message("2")])
    queue.close()
    assert "removed or replaced; 3 messages are kept" in caplog.text
    assert drained(Queue("backend", settings(tmp_path / "made"))) == ["0", "1", "2"]


def test_acknowledged_messages_of_a_removed_file_stay_acknowledged(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0"), message("1"), message("2")])
    queue.remove([queue.next_batch()[0].number])
    shutil.rmtree(tmp_path / DIRECTORY)
    queue.check()
    assert drained(queue) == ["1", "2"]
    queue.close()


def test_a_directory_that_was_moved_away_keeps_its_messages(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    (tmp_path / DIRECTORY).rename(tmp_path / "moved")
    queue.check()
    queue.put([message("1")])
    assert drained(queue) == ["1"]
    queue.close()
    (tmp_path / DIRECTORY).rmdir()
    (tmp_path / "moved").rename(tmp_path / DIRECTORY)
    assert drained(Queue("backend", settings(tmp_path))) == ["0"]


def test_files_of_two_sinks_that_were_exchanged_are_not_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("backend", "other"):
        queue = Queue(name, settings(tmp_path))
        queue.put([message(name)])
        queue.close()
    one, other = tmp_path / DIRECTORY, tmp_path / make_directory_name("other")
    one.rename(tmp_path / "x")
    other.rename(one)
    (tmp_path / "x").rename(other)
    for name in ("backend", "other"):
        queue = Queue(name, settings(tmp_path))
        assert drained(queue) == []
        assert "1 files are of another sink or machine" in queue.notice
        assert queue.error == ""
        queue.close()
    assert "for sink other, so it is set aside" in caplog.text


def test_a_directory_that_cant_be_made_is_logged_and_memory_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    queue = Queue("backend", settings(tmp_path / "file" / "below"))
    queue.put([message("0")])
    assert queue.count(in_memory=True) == 1
    assert drained(queue) == ["0"]
    assert "messages are kept in memory" in caplog.text
    assert queue.error
    queue.close()


def test_what_is_in_memory_alone_at_the_end_is_lost_and_counted(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0"), message("1")])
    assert "not a directory" in queue.error.lower()
    queue.close()
    assert queue.count(in_memory=True) == 2


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    queue = Queue("backend", settings(tmp_path / "open"))
    queue.put([message("0")])
    assert "every user can create files in it" in queue.error
    assert queue.count(in_memory=True) == 1
    queue.close()


def test_a_disk_that_is_tried_again_and_again_costs_no_descriptors(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    queue = Queue("backend", settings(tmp_path))
    queue.retry_after = queue._retry_at = 0.0
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        queue.check()
    assert len(os.listdir("/proc/self/fd")) <= before
    queue.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files to another user")
@pytest.mark.parametrize("name", [DIRECTORY, f"{DIRECTORY}/000000000001.log"])
@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
def test_no_link_of_another_user_is_followed(tmp_path: Path, name: str, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"root's own")
    place = tmp_path / "nobody" / name
    place.parent.mkdir(parents=True)
    match kind:
        case "symlink":
            place.symlink_to(victim)
        case "hard link":
            place.hardlink_to(victim)
        case _:
            os.mkfifo(place)
    for path in (place, *place.parents):
        if path.is_relative_to(tmp_path / "nobody"):
            os.chown(path, 65534, 65534, follow_symlinks=False)
    queue = Queue("backend", settings(tmp_path / "nobody"))
    queue.put([message("0")])
    assert queue.error
    queue.close()
    assert queue.count(in_memory=True) == (name == DIRECTORY)
    assert victim.read_bytes() == b"root's own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files to another user")
def test_what_root_creates_belongs_to_the_owner_of_the_directory_above(tmp_path: Path) -> None:
    service = tmp_path / "service"
    service.mkdir(mode=0o700)
    os.chown(service, 65534, 65534)
    queue = Queue("backend", settings(service / "outbox"))
    queue.put([message("0")])
    owners = {path.stat().st_uid for path in (service / "outbox").rglob("*")}
    assert owners == {65534}
    assert (service / "outbox").stat().st_uid == 65534
    queue.close()


def test_memory_is_used_on_demand(tmp_path: Path) -> None:
    queue = Queue("backend", OutboxSettings(directory=str(tmp_path), memory=True))
    queue.put([message("0")])
    assert queue.path == ""
    assert list(tmp_path.iterdir()) == []
    queue.close()


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_a_full_queue_may_refuse_new_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_on_disk: bool
) -> None:
    directory = str(tmp_path) if is_on_disk else ""
    queue = Queue(
        "backend", OutboxSettings(directory=directory, max_bytes=20_000, when_full="refuse-new")
    )
    taken = [number for number in range(30) if queue.put([message(str(number), 1000)])]
    assert taken == list(range(len(taken)))
    assert 14 < len(taken) < 20
    assert (queue.refused, queue.dropped) == (30 - len(taken), 0)
    assert "new messages are refused; see outbox.when-full" in caplog.text
    assert drained(queue) == [str(number) for number in taken]
    assert queue.put([message("x")])
    queue.close()
