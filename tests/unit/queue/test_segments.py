"""The messages of a queue in segments on disk."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.machine.clock import Clock
from ccagent.queue.failures import ANY
from ccagent.queue.queue import Queue
from ccagent.queue.record_log import LogFile, frame
from ccagent.queue.segment import (
    DEAD,
    DONE,
    WAITING,
    Moment,
    QueuedMessage,
    QueueEntry,
    QueueOwner,
    SegmentHeader,
    encode_entry,
    encode_header,
    parse_segment,
)
from ccagent.queue.segment_directory import read_files
from ccagent.records.message import Message

OWNER = QueueOwner("backend", "c1", 17)


def message(text: str, size: int = 10, kind: str = "sample") -> Message:
    return Message("c", "n", kind, "sonar", 1.5, text.encode().ljust(size), "", f"id-{text}")


class Machine(Clock):
    """A machine whose clock is set by hand."""

    def __init__(self) -> None:
        self.up = 5000.0
        self.boot = b"first boot"

    def uptime(self) -> float:
        return self.up

    def boot_id(self) -> bytes:
        return self.boot

    def open(self, path: Path, owner: QueueOwner = OWNER, **keys: Any) -> Queue:
        options: dict[str, Any] = {"max_bytes": 100_000, "max_age": Duration("100s")}
        settings = OutboxSettings(directory=str(path.parent), **options | keys)
        return Queue(path.stem, settings, owner=owner, clock=self)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "outbox" / "backend.queue"


def put(box: Queue, *messages: Message) -> None:
    box.put(messages)


def oldest(box: Queue, count: int = 1000, **choice: Any) -> list[QueuedMessage]:
    return box.next_batch(count, ANY._replace(**choice))


def texts(box: Queue, **choice: Any) -> list[str]:
    return [queued.message.body.decode().strip() for queued in oldest(box, **choice)]


def used_bytes(box: Queue) -> int:
    return sum(segment.file.size for segment in box._segments.values())


def files(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def content(place: Path, suffix: str = ".log") -> list[bytes]:
    """Return the bytes of each file, without those that are only allocated."""
    return [path.read_bytes().rstrip(b"\0") for path in sorted(place.glob(f"*{suffix}"))]


def letters(box: Queue) -> list[tuple[str, str]]:
    """Return id and reason of each dead letter in the files."""
    return [
        (each.entry.message.id if each.entry else "", each.reason)
        for content in read_files(box.path, box.owner).values()
        for each in content.messages
        if each.state == DEAD
    ]


def test_messages_come_back_whole_and_in_order_also_after_a_restart(place: Path) -> None:
    sent = [message(str(number), 3000) for number in range(50)]
    box = Machine().open(place)
    put(box, *sent[:30])
    put(box, *sent[30:32])
    box.close()
    again = Machine().open(place)
    put(again, *sent[32:])
    assert len(files(place)) > 3
    assert [queued.message for queued in oldest(again)] == sent[-len(oldest(again)) :]
    again.close()


def test_a_finished_segment_is_deleted_and_the_last_one_used_again(place: Path) -> None:
    box = Machine().open(place)
    put(box, *(message(str(number), 5000) for number in range(10)))
    assert len(files(place)) == 5
    box.remove([queued.number for queued in oldest(box)])
    assert (box.count(), box.size(), files(place)) == (0, 0, [])
    put(box, message("x"))
    assert len(files(place)) == 1
    box.remove([oldest(box)[0].number])
    box.close()
    assert files(place) == []


def test_batches_are_bounded_by_count_and_bytes_but_hold_at_least_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)
    put(box, *(message(str(number), 1000) for number in range(30)))
    assert len(oldest(box, 2)) == 2
    assert len(oldest(box, 25)) == 25
    for size, length in ((2500, 2), (1, 1)):
        monkeypatch.setattr("ccagent.queue.queue._BATCH_BYTES", size)
        assert len(oldest(box, 5)) == length


def test_kinds_and_numbers_can_be_left_out(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1", kind="job"), message("2"), message("3", kind="job"))
    assert texts(box, without_kinds=["c.sample"]) == ["1", "3"]
    first, second, *_ = [queued.number for queued in oldest(box)]
    assert texts(box, without_numbers=[first]) == ["1", "2", "3"]
    assert texts(box, without_kinds=["c.job"], without_numbers=[first]) == ["2"]
    assert texts(box, number=second) == ["1"]


def test_messages_behind_many_failing_ones_are_found(place: Path) -> None:
    box = Machine().open(place)
    put(box, *(message(str(number), 5000, kind="job") for number in range(15)), message("x"))
    assert texts(box, without_kinds=["c.job"]) == ["x"]


def test_too_much_drops_the_oldest_whole_segments_and_counts_them(place: Path) -> None:
    box = Machine().open(place)
    for number in range(100):
        put(box, message(str(number), 3000))
        assert used_bytes(box) <= 100_000
    left = texts(box)
    assert left == [str(number) for number in range(100 - len(left), 100)]
    assert box.dropped == 100 - len(left)
    assert used_bytes(box) > 80_000
    box.close()
    assert Machine().open(place).all_dropped == 100 - len(left)


def test_a_message_larger_than_all_room_is_kept_alone(place: Path) -> None:
    box = Machine().open(place, max_bytes=300)
    put(box, message("0", 100))
    put(box, message("1", 9000))
    assert texts(box) == ["1"]


def test_dead_letters_give_way_first(place: Path) -> None:
    box = Machine().open(place)
    put(box, *(message(str(number), 3000) for number in range(20)))
    for queued in oldest(box, 10):
        box.reject(queued.number, "no")
    put(box, *(message(str(number), 3000) for number in range(20, 37)))
    assert texts(box)[0] == "10"
    assert 0 < len(letters(box)) < 10


def test_a_rejected_message_is_a_dead_letter_with_its_reason(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1"))
    box.reject(oldest(box)[0].number, "422: unknown field")
    assert texts(box) == ["1"]
    box.close()
    again = Machine().open(place)
    assert letters(again) == [("id-0", "422: unknown field")]
    assert texts(again) == ["1"]


def test_without_room_a_message_is_a_dead_letter_without_its_reason(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1"))
    with monkeypatch.context() as context:
        context.setattr(LogFile, "append", refuse)
        box.reject(oldest(box)[0].number, "422")
    assert box.failure == "No space left on device"
    box.close()
    again = Machine().open(place)
    assert letters(again) == [("id-0", "the reason could not be stored")]
    assert texts(again) == ["1"]


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_the_state_of_a_message_is_overwritten_in_place(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1"))
    (before,) = content(place)
    box.remove([oldest(box)[0].number])
    (after,) = content(place)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [(WAITING, DONE)]


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_state_changes_nothing(bit: int) -> None:
    for state in (WAITING, DONE):
        head = encode_header(SegmentHeader(Moment(0.0, b"boot", 0.0), 0, OWNER))
        record = stored(message("0"), state)
        data = bytearray(head + record)
        data[-1] ^= 1 << bit
        (found,) = parse_segment(bytes(data), OWNER).messages
        assert found.state == state


def stored(one: Message, state: int = WAITING) -> bytes:
    return frame(encode_entry(QueueEntry(0.0, 0.0, one)), seed=OWNER.seed, trailer=bytes((state,)))


def test_a_flipped_bit_costs_only_its_message(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("before"), message("here it is"), message("after"))
    box.close()
    (path,) = place.iterdir()
    path.write_bytes(path.read_bytes().replace(b"here it is", b"here it iz"))
    again = Machine().open(place)
    assert texts(again) == ["before", "after"]
    assert again.damaged == 1


@pytest.mark.parametrize("is_truncated", [True, False])
def test_a_missing_last_state_costs_no_message(place: Path, *, is_truncated: bool) -> None:
    box = Machine().open(place)
    put(box, message("a"), message("b"))
    box.close()
    (path,) = place.iterdir()
    written = path.read_bytes()[:-1]
    path.write_bytes(written if is_truncated else written.ljust(5000, b"\0"))
    box = Machine().open(place)
    assert (texts(box), box.damaged) == (["a", "b"], 0)
    box.close()


def test_a_message_damaged_while_it_waits_is_left_out(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("before"), message("here it is"), message("after"))
    (path,) = place.iterdir()
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"here it is"))
        file.write(b"HERE")
    assert texts(box) == ["before", "after"]
    assert (box.damaged, box.count()) == (1, 2)


def test_a_damaged_header_costs_no_message(place: Path) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1"))
    box.close()
    (path,) = place.iterdir()
    path.write_bytes(b"\0" * 60 + path.read_bytes()[60:])
    again = Machine().open(place)
    assert texts(again) == ["0", "1"]
    put(again, message("2"))
    assert texts(again) == ["0", "1", "2"]


def test_a_text_that_looks_like_a_record_is_none(place: Path) -> None:
    box = Machine().open(place)
    inner = stored(message("forged"))
    with pytest.raises(UnicodeDecodeError):
        inner.decode()  # no JSON text and no line contains a marker
    box.close()


@pytest.mark.parametrize("size", [0, 1, 60, 5000])
def test_a_file_of_anything_else_is_no_obstacle(place: Path, size: int) -> None:
    place.mkdir(parents=True)
    (place / "000000000001.log").write_bytes(b"nonsense"[:size] * (size // 8 or 1))
    box = Machine().open(place)
    put(box, message("0"))
    assert texts(box) == ["0"]
    assert [name for name in files(place) if name.endswith(".damaged")] == [
        name for name in files(place) if size and not name.endswith(".log")
    ]


@pytest.mark.parametrize(
    "other",
    [QueueOwner("other", "c1", 17), QueueOwner("backend", "c2", 18), QueueOwner("x", "c2", 0)],
)
def test_a_file_of_another_sink_or_machine_is_set_aside(
    place: Path, other: QueueOwner, caplog: pytest.LogCaptureFixture
) -> None:
    box = Machine().open(place, other)
    put(box, message("secret"))
    box.close()
    mine = Machine().open(place)
    put(mine, message("0"))
    assert texts(mine) == ["0"]
    (aside,) = mine.set_aside
    assert aside.endswith(".foreign")
    assert f"queued by host {other.host} for sink {other.sink}" in caplog.text
    # Also if its header is damaged nothing of it is sent to this sink.
    (place / aside).rename(place / "000000000009.log")
    path = place / "000000000009.log"
    path.write_bytes(b"\0" * 60 + path.read_bytes()[60:])
    if other.sink != OWNER.sink:
        mine.look()
        assert texts(mine) == ["0"]
        assert [name for name in files(place) if name.endswith(".damaged")]


@pytest.mark.parametrize(
    "renamed", [QueueOwner("backend", "new", 17), QueueOwner("backend", "c1", 99)]
)
def test_a_renamed_machine_and_one_without_a_disk_keep_their_messages(
    place: Path, renamed: QueueOwner
) -> None:
    box = Machine().open(place)
    put(box, message("0"))
    box.close()
    assert texts(Machine().open(place, renamed)) == ["0"]


def test_too_old_ones_are_dropped_and_counted(place: Path) -> None:
    machine = Machine()
    box = machine.open(place)
    put(box, message("0"))
    machine.up += 60
    put(box, message("1"))
    machine.up += 60
    put(box, message("2"))
    assert texts(box) == ["1", "2"]
    assert box.dropped == 1
    machine.up += 1000
    put(box, message("3"))
    assert texts(box) == ["3"]
    assert box.dropped == 3


def test_dead_letters_grow_old_too(place: Path) -> None:
    machine = Machine()
    box = machine.open(place)
    put(box, message("0"))
    box.reject(oldest(box)[0].number, "no")
    machine.up += 120
    put(box, message("1"))
    assert letters(box) == []
    assert box.dropped == 1


def test_age_goes_on_over_restarts_and_counts_what_passed_since_a_boot(place: Path) -> None:
    machine = Machine()
    box = machine.open(place)
    put(box, message("0"))
    box.close()
    machine.up += 40
    box = machine.open(place)
    assert box.now().clock == 40
    put(box, message("1"))
    box.close()
    # Off for nobody knows how long, then up for 30 s.
    machine.boot, machine.up = b"second boot", 30.0
    box = machine.open(place)
    assert box.now().clock == 70
    machine.up += 35
    put(box, message("2"))
    assert texts(box) == ["1", "2"]
    box.close()
    machine.up += 5
    assert machine.open(place).now().clock == 110


def test_a_damaged_clock_drops_nothing(place: Path) -> None:
    machine = Machine()
    box = machine.open(place)
    machine.up += 1000
    put(box, message("0"))
    box.close()
    (path,) = place.iterdir()
    path.write_bytes(b"\0" * 60 + path.read_bytes()[60:])
    box = machine.open(place)
    put(box, message("1"))
    assert texts(box) == ["0", "1"]


def test_a_process_sends_nothing_while_another_one_sends_older_messages(place: Path) -> None:
    one, other = Machine().open(place), Machine().open(place)
    put(one, message("0"))
    other.look()
    put(other, message("1"))
    assert texts(one) == ["0"]
    assert (texts(other), other.is_blocked(), other.count()) == ([], True, 2)
    one.close()
    other.look()
    assert texts(other) == ["0", "1"]


def test_a_message_of_a_finished_process_is_taken_over(place: Path) -> None:
    daemon, once = Machine().open(place), Machine().open(place)
    put(daemon, message("0"))
    once.look()
    put(once, message("1"))
    once.close()
    daemon.look()
    assert texts(daemon) == ["0", "1"]
    daemon.remove([queued.number for queued in oldest(daemon)])
    put(daemon, message("2"))
    assert texts(daemon) == ["2"]


def test_processes_that_run_one_after_the_other_share_a_segment(place: Path) -> None:
    for number in range(5):
        box = Machine().open(place)
        put(box, message(str(number)))
        box.close()
    assert len(files(place)) == 1
    assert texts(Machine().open(place)) == ["0", "1", "2", "3", "4"]


def test_an_acknowledgement_that_cant_be_written_is_written_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)
    put(box, message("0"), message("1"), message("2"))

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", fail)
        box.remove([oldest(box)[0].number])
    assert texts(box) == ["1", "2"]
    (data,) = content(place)
    states = [each.state for each in parse_segment(data, OWNER).messages]
    assert states == [WAITING, WAITING, WAITING]
    box.remove([oldest(box)[0].number])
    (data,) = content(place)
    states = [each.state for each in parse_segment(data, OWNER).messages]
    assert states == [DONE, DONE, WAITING]


def test_a_segment_that_cant_be_deleted_is_sent_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)
    put(box, *(message(str(number), 5000) for number in range(10)))

    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as context:
        context.setattr(os, "unlink", fail)
        context.setattr(os, "pwrite", fail)
        box.remove([queued.number for queued in oldest(box)])
        box.look()
        assert texts(box) == []
        assert len(files(place)) == 5
    box.look()
    assert len(files(place)) == 1


def test_what_cant_be_deleted_is_not_counted_as_dropped(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "unlink", fail)
        for number in range(60):
            put(box, message(str(number), 3000))
    assert texts(box) == [str(number) for number in range(60)]
    assert box.dropped == 0


def test_a_file_that_cant_be_read_is_not_written_any_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Machine().open(place)
    put(box, message("0"))

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "pread", fail)
        assert texts(box) == []
    put(box, message("1"))
    assert len(files(place)) == 2
    box._retry_at = 0.0
    box.check()
    assert texts(box) == ["0", "1"]


@pytest.mark.parametrize(("durability", "is_synced"), [("process", False), ("power", True)])
def test_durability_decides_whether_the_disk_is_waited_for(
    place: Path, durability: str, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    box = Machine().open(place, durability=durability)
    put(box, message("0"))
    assert bool(synced) is is_synced


def test_few_files_are_open_whatever_waits(place: Path) -> None:
    box = Machine().open(place, max_bytes=1 << 20)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    put(box, *(message(str(number), 50_000) for number in range(20)))
    assert len(files(place)) > 8
    assert texts(box, without_kinds=["c.job"])[-1] == "19"
    assert len(os.listdir("/proc/self/fd")) - before < 8
    box.close()
    again = Machine().open(place, max_bytes=1 << 20)
    assert len(texts(again)) == 20


@given(st.lists(st.one_of(st.integers(1, 2000), st.just("remove"), st.just("reject"))))
def test_it_behaves_as_a_bounded_queue(steps: list[int | str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        box = Machine().open(Path(name, "x.queue"), max_bytes=20_000)
        queued: list[int] = []
        for step in steps:
            if isinstance(step, int):
                put(box, message("", step))
                queued.append(step)
                assert used_bytes(box) <= 20_000
                del queued[: len(queued) - len(oldest(box))]
            elif queued:
                (first, *_) = oldest(box, 1)
                queued.pop(0)
                if step == "remove":
                    box.remove([first.number])
                else:
                    box.reject(first.number, "no")
                    del queued[: len(queued) - len(oldest(box))]
            assert [len(each.message.body) for each in oldest(box)] == queued
            assert box.count() == len(queued)
        box.close()
        again = Machine().open(Path(name, "x.queue"), max_bytes=20_000)
        assert [len(each.message.body) for each in oldest(again)] == queued
        again.close()


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_segment(data: bytes) -> None:
    found = parse_segment(data, OWNER)
    assert found.messages == []
