"""The queue of a sink: on disk while that works."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.errors import EncodingError
from ccagent.queue.database import QueueDatabase
from ccagent.queue.files import make_file_name
from ccagent.queue.queue import Queue
from ccagent.records.message import Message
from tests.support import damage


def message(text: str, size: int = 10, kind: str = "sample") -> Message:
    return Message("c", "n", kind, "sonar", 1.5, text.encode().ljust(size), "", text)


def drained(queue: Queue) -> list[str]:
    """Take everything out."""
    found: list[str] = []
    while (batch := queue.next_batch()).messages:
        found += [waiting.message.id for waiting in batch.messages]
        queue.remove(batch, [waiting.number for waiting in batch.messages])
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
    queue.put([message("2", 1000)])
    queue.close()
    assert queue.size() == 0


# Only root may use what it has created with 0o777.
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o077 if os.geteuid() else 0o777])
def test_only_its_owner_can_read_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        queue = Queue("backend", settings(tmp_path / "made"))
        queue.put([message("0")])
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    queue.close()


def test_a_sink_of_any_name_has_a_file_of_its_own() -> None:
    assert (
        make_file_name("--sink nats://x:4222/../a b")
        == "--sink%20nats%3A%2F%2Fx%3A4222%2F..%2Fa%20b.outbox"
    )


@pytest.mark.parametrize("content", [b"nonsense" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / make_file_name("backend")
    file.write_bytes(content)
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    assert drained(queue) == ["0"]
    queue.close()
    (aside,) = (path for path in tmp_path.glob("*.damaged-*") if path.name[-1].isdigit())
    assert aside.read_bytes() == content
    assert "0 messages are recovered from the damaged file" in caplog.text


def test_a_foreign_database_is_set_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / make_file_name("backend")) as other:
        other.executescript("CREATE TABLE messages (x); CREATE TABLE state (y)")
    other.close()
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    assert queue.error == ""
    assert drained(queue) == ["0"]
    queue.close()


def test_a_file_damaged_while_it_is_used_loses_nothing(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    queue.put([message("1")])
    file = tmp_path / make_file_name("backend")
    for path in (file, Path(f"{file}-wal")):
        with path.open("r+b") as opened:
            opened.write(b"\xff" * 100)
    other = Queue("backend", settings(tmp_path))
    other.put([message("2")])
    assert "2" in drained(other)
    queue.put([message("3")])
    queue.close()
    other.close()
    # The one that had the file open has moved to the new one.
    assert "3" in drained(Queue("backend", settings(tmp_path)))


def test_of_many_damaged_files_two_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.queue.disk._REPLACED_AT_MOST_EVERY", 0.0)
    for _ in range(5):
        (tmp_path / make_file_name("backend")).write_bytes(b"nonsense" * 1000)
        queue = Queue("backend", settings(tmp_path))
        queue.check()
        queue.close()
    assert len([path for path in tmp_path.glob("*.damaged-*") if path.name[-1].isdigit()]) == 2


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with messages of many sizes, some deleted, and dead letters."""
    directory = tmp_path_factory.mktemp("intact") / "closed"
    damage.write_intact(directory)
    return directory / damage.FILE


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a killed process leaves it: what it has done is in the write-ahead log."""
    directory = tmp_path_factory.mktemp("intact") / "killed"
    damage.write_intact(directory, is_closed=False)
    return directory / damage.FILE


# With seed 50 a damaged message shares pages with an undamaged one.
@pytest.mark.parametrize("seed", [*range(30), 50])
def test_random_damage_costs_no_undamaged_message(
    intact: Path, killed: Path, tmp_path: Path, seed: int
) -> None:
    """`python -m tests.support.damage` does the same 1,500 times."""
    work = tmp_path / "work"
    shutil.copytree((intact, killed)[seed % 2].parent, work)
    outcome = damage.deliver(work, damage.damage(work, seed))
    assert outcome.lost == set()
    assert outcome.delivered[-1] == "new"
    assert (outcome.tracebacks, outcome.restarts, outcome.is_alive) == (0, 0, True)


def test_a_recovery_that_was_interrupted_is_finished_by_the_next_process(tmp_path: Path) -> None:
    damage.write_intact(tmp_path / "x")
    file = tmp_path / "x" / damage.FILE
    # Killed after the damaged file was renamed, and some of its messages were moved.
    file.rename(f"{file}.recovering-17")
    partly = Queue("backend", settings(tmp_path / "x"))
    partly._disk.is_recovering = False
    partly.put([damage.message(int(number)) for number in damage.expected()[:5]])
    del partly
    queue = Queue("backend", settings(tmp_path / "x"))
    assert queue.has_work()
    assert sorted(drained(queue), key=int) == damage.expected()
    queue.close()
    assert [path.suffix for path in (tmp_path / "x").glob("*.damaged-17")] != []


def test_a_recovery_for_which_there_is_no_room_goes_on_later(tmp_path: Path) -> None:
    damage.write_intact(tmp_path / "x")
    file = tmp_path / "x" / damage.FILE
    file.rename(f"{file}.recovering-17")
    queue = Queue("backend", settings(tmp_path / "x"))
    queue._disk.retry_after = 0.0
    real = queue._disk.database
    assert real is not None

    def refuse(*_: object) -> int:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = 13
        raise error

    with pytest.MonkeyPatch.context() as context:
        context.setattr(real, "restore", refuse)
        queue.check()
        assert "recovering-17 are not recovered yet" in queue.error
    assert drained(queue) == damage.expected()
    queue.close()


def test_a_flipped_salt_of_the_log_loses_no_message(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path / "x"))
    queue.put([message(str(number), 3000) for number in range(300)])
    drained(queue)
    assert queue._disk.database is not None
    queue._disk.database._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for number in range(5):
        queue.put([message(f"new{number}")])
    shutil.copytree(tmp_path / "x", tmp_path / "killed")
    queue.close()
    log = tmp_path / "killed" / f"{make_file_name('backend')}-wal"
    content = bytearray(log.read_bytes())
    content[17] ^= 4
    log.write_bytes(content)
    again = Queue("backend", settings(tmp_path / "killed"))
    assert drained(again) == [f"new{number}" for number in range(5)]
    again.close()


def test_dead_letters_survive_memory_and_removal(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path / "x"))
    queue.put([message("0"), message("1")])
    batch = queue.next_batch(1)
    queue.reject(batch, batch.messages[0].number, "on disk")
    shutil.rmtree(tmp_path / "x")
    queue.put([message("2")])
    batch = queue.next_batch(1)
    queue.reject(batch, batch.messages[0].number, "later")
    queue.close()
    assert queue._disk._file is None
    letters = QueueDatabase(
        str(tmp_path / "x" / make_file_name("backend")), max_bytes=1 << 30, max_age=1e6
    ).read_dead_letters()
    assert [letter.reason for letter in letters] == ["on disk", "later"]


def test_what_was_in_memory_keeps_its_age_on_a_disk_whose_clock_is_ahead(tmp_path: Path) -> None:
    where = OutboxSettings(directory=str(tmp_path), max_age=Duration("7d"))
    queue = Queue("backend", where)
    assert queue._disk.database is not None
    queue._disk.database._now = queue._disk.database._now._replace(clock=8 * 86400.0)
    queue._disk.postpone("database is locked")
    queue.put([message("0")])
    assert queue.count_in_memory() == 1
    queue._disk.retry_at = 0.0
    queue.check()
    queue.put([message("1")])
    assert (queue.count_in_memory(), queue.dropped, queue.error) == (0, 0, "")
    assert drained(queue) == ["0", "1"]
    queue.close()


def test_a_message_that_cant_be_stored_costs_itself(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0")])
    with pytest.raises(EncodingError, match="can't be stored"):
        queue.put([Message("c", "n\ud800", "sample", "sonar", 1.5, b"{}")])
    assert drained(queue) == ["0"]
    assert [path for path in tmp_path.iterdir() if "damaged" in path.name] == []
    queue.close()


def test_messages_in_a_log_that_was_never_checkpointed_are_recovered(tmp_path: Path) -> None:
    from ccagent.queue.salvage import salvage

    queue = Queue("backend", settings(tmp_path))
    for number in range(30):
        queue.put([message(str(number), 6000)])
    file = tmp_path / make_file_name("backend")
    found = salvage(file.read_bytes(), Path(f"{file}-wal").read_bytes())
    assert [entry.message.id for _, _, entry in found] == [str(number) for number in range(30)]
    queue.close()


@pytest.mark.parametrize("truncated", [0, 1, 50, 511, 4095, 4096, 20_000])
def test_a_truncated_file_is_no_obstacle(intact: Path, tmp_path: Path, truncated: int) -> None:
    (tmp_path / make_file_name("backend")).write_bytes(intact.read_bytes()[:truncated])
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("new")])
    assert drained(queue)[-1] == "new"
    assert queue.error == ""
    queue.close()


def test_a_removed_file_is_noticed_and_its_messages_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("backend", settings(tmp_path / "made"))
    queue.put([message("0"), message("1")])
    shutil.rmtree(tmp_path / "made")
    queue.put([message("2")])
    queue.close()
    assert "removed or replaced; 3 messages are moved" in caplog.text
    assert drained(Queue("backend", settings(tmp_path / "made"))) == ["0", "1", "2"]


def test_a_removed_file_that_takes_no_writes_is_read(tmp_path: Path) -> None:
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0"), message("1"), message("2")])
    assert queue._disk.database is not None
    queue._disk.database._database.execute("PRAGMA busy_timeout = 0")
    busy = sqlite3.connect(tmp_path / make_file_name("backend"), isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")  # refuses writes as a full disk does
    batch = queue.next_batch()
    queue.remove(batch, [batch.messages[0].number])
    for path in tmp_path.iterdir():
        path.unlink()
    queue.check()
    assert drained(queue) == ["1", "2"]
    queue.close()
    busy.close()


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    one = Queue("backend", settings(tmp_path))
    one.put([message("0")])
    for path in tmp_path.iterdir():
        path.unlink()
    other = Queue("backend", settings(tmp_path))
    other.put([message("1")])
    one.put([message("2")])
    assert sorted(drained(other)) == ["0", "1", "2"]
    one.close()
    other.close()


def test_a_directory_that_cant_be_made_is_logged_and_memory_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    queue = Queue("backend", settings(tmp_path / "file" / "below"))
    queue.put([message("0")])
    assert queue.count_in_memory() == 1
    assert drained(queue) == ["0"]
    assert "messages are kept in memory" in caplog.text
    assert queue.error
    queue.close()


def test_what_is_in_memory_alone_at_the_end_is_lost_and_counted(tmp_path: Path) -> None:
    (tmp_path / make_file_name("backend")).mkdir()
    queue = Queue("backend", settings(tmp_path))
    queue.put([message("0"), message("1")])
    assert "not a regular file" in queue.error
    queue.close()
    assert queue.lost == 2


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    queue = Queue("backend", settings(tmp_path / "open"))
    queue.put([message("0")])
    assert "every user can create files in it" in queue.error
    assert queue.count_in_memory() == 1
    queue.close()


def test_a_disk_that_is_tried_again_and_again_costs_no_descriptors(tmp_path: Path) -> None:
    (tmp_path / make_file_name("backend")).mkdir()
    queue = Queue("backend", settings(tmp_path))
    queue._disk.retry_after = 0.0
    queue._disk.retry_at = 0.0
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        queue.check()
    assert len(os.listdir("/proc/self/fd")) <= before
    queue.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files to another user")
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
def test_no_link_of_another_user_is_followed(tmp_path: Path, suffix: str, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"root's own")
    directory = tmp_path / "nobody"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    place = directory / (make_file_name("backend") + suffix)
    match kind:
        case "symlink":
            place.symlink_to(victim)
        case "hard link":
            place.hardlink_to(victim)
        case _:
            os.mkfifo(place)
    os.chown(place, 65534, 65534, follow_symlinks=False)
    queue = Queue("backend", settings(directory))
    queue.put([message("0")])
    assert queue.error
    queue.close()
    assert queue.lost == 1
    assert victim.read_bytes() == b"root's own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files to another user")
def test_what_root_creates_belongs_to_the_owner_of_the_directory_above(tmp_path: Path) -> None:
    service = tmp_path / "service"
    service.mkdir(mode=0o700)
    os.chown(service, 65534, 65534)
    queue = Queue("backend", settings(service / "outbox"))
    queue.put([message("0")])
    owners = {path.stat().st_uid for path in (service / "outbox").iterdir()}
    assert owners == {65534}
    assert (service / "outbox").stat().st_uid == 65534
    queue.close()


def test_memory_is_used_on_demand(tmp_path: Path) -> None:
    queue = Queue("backend", OutboxSettings(directory=str(tmp_path), memory=True))
    queue.put([message("0")])
    assert not queue.is_on_disk
    assert list(tmp_path.iterdir()) == []
    queue.close()
