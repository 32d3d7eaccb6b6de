"""Messages in SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.queue.database import MEMORY, QueueDatabase
from ccagent.queue.rows import QueuedMessage
from ccagent.records.message import Message


def message(text: str, size: int = 10, kind: str = "sample") -> Message:
    return Message("c", "n", kind, "sonar", 1.5, text.encode().ljust(size), "", f"id-{text}")


def database(path: Path | str = MEMORY, **keys: Any) -> QueueDatabase:
    options: dict[str, Any] = {"max_bytes": 100_000, "max_age": 100.0}
    return QueueDatabase(str(path), **options | keys)


def oldest(
    box: QueueDatabase, count: int = 1000, size: int = 10**9, **keys: Any
) -> list[QueuedMessage]:
    found, damaged = box.read_oldest(count, size, **keys)
    assert damaged == []
    return found


def texts(box: QueueDatabase, **keys: Any) -> list[str]:
    return [waiting.message.body.decode().strip() for waiting in oldest(box, **keys)]


def test_messages_come_back_whole_and_in_order_also_after_a_restart(tmp_path: Path) -> None:
    box = database(tmp_path / "x")
    sent = [message(str(n)) for n in range(10)]
    box.put(sent[:7])
    box.put(sent[7:])
    box.close()

    again = database(tmp_path / "x")

    assert [waiting.message for waiting in oldest(again)] == sent
    again.close()


def test_what_is_removed_is_gone() -> None:
    box = database()
    box.put([message(str(n)) for n in range(5)])
    box.remove([waiting.number for waiting in oldest(box, 2)])
    assert texts(box) == ["2", "3", "4"]
    assert box.count() == 3
    box.remove([waiting.number for waiting in oldest(box)])
    assert (box.count(), box.size()) == (0, 0)


def test_batches_are_bounded_by_count_and_bytes_but_hold_at_least_one() -> None:
    box = database()
    box.put([message(str(n), 1000) for n in range(5)])
    assert len(oldest(box, 2)) == 2
    assert len(oldest(box, 5, 2500)) == 2
    assert len(oldest(box, 5, 1)) == 1


def test_kinds_and_numbers_can_be_left_out() -> None:
    box = database()
    box.put([message("0"), message("1", kind="job"), message("2"), message("3", kind="job")])
    assert texts(box, without_kinds=["c.sample"]) == ["1", "3"]
    first = oldest(box)[0].number
    assert texts(box, without_numbers=[first]) == ["1", "2", "3"]
    assert texts(box, without_kinds=["c.job"], without_numbers=[first]) == ["2"]
    assert texts(box, only_number=first + 1) == ["1"]


def test_too_much_drops_the_oldest_and_counts_them() -> None:
    box = database(max_bytes=3450)
    assert box.put([message(str(n), 1000) for n in range(3)]) == 0
    assert box.put([message("3", 1000), message("4", 1000)]) == 2
    assert texts(box) == ["2", "3", "4"]
    assert box.summarise().dropped == 2
    assert 3000 < box.summarise().size <= 3450


def test_a_message_larger_than_all_room_is_kept_alone() -> None:
    box = database(max_bytes=300)
    box.put([message("0", 100)])
    box.put([message("1", 1000)])
    assert texts(box) == ["1"]


def test_dead_letters_count_in_max_bytes_and_give_way_first() -> None:
    box = database(max_bytes=3450)
    box.put([message(str(n), 1000) for n in range(3)])
    for waiting in oldest(box, 2):
        box.reject(waiting.number, "no")
    assert box.put([message("3", 1000)]) == 1
    assert [letter.entry.message.id for letter in box.read_dead_letters() if letter.entry] == [
        "id-1"
    ]
    assert texts(box) == ["2", "3"]
    assert box.put([message("4", 1000), message("5", 1000)]) == 2
    assert box.read_dead_letters() == []
    assert texts(box) == ["3", "4", "5"]


def test_a_rejected_message_is_a_dead_letter_with_its_reason() -> None:
    box = database(wall_clock=lambda: 1000.0)
    box.put([message("0"), message("1")])
    box.reject(oldest(box)[0].number, "422: unknown field")
    assert texts(box) == ["1"]
    (letter,) = box.read_dead_letters()
    assert letter.entry is not None
    assert letter.entry.message == message("0")
    assert (letter.rejected, letter.reason) == (1000.0, "422: unknown field")
    summary = box.summarise()
    assert (summary.messages, summary.dead_letters) == (1, 1)


def test_a_dead_letter_can_be_sent_again_or_dropped() -> None:
    box = database()
    box.put([message("0"), message("1"), message("2")])
    for waiting in oldest(box, 2):
        box.reject(waiting.number, "no")
    first, second = box.read_dead_letters()
    box.retry([first.number])
    box.drop([second.number])
    assert texts(box) == ["2", "0"]
    assert box.read_dead_letters() == []


@pytest.mark.parametrize(
    "damage",
    ["NULL", "'text'", "17", "x''", "x'00'", "substr(entry, 1, 20)", "entry || x'00'"],
)
def test_an_entry_of_anything_else_costs_only_itself(tmp_path: Path, damage: str) -> None:
    box = database(tmp_path / "x")
    box.put([message("0"), message("1"), message("2")])
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute(f"UPDATE messages SET entry = {damage} WHERE number = 2")
    found, damaged = box.read_oldest(10, 10**9)
    assert [waiting.message.id for waiting in found] == ["id-0", "id-2"]
    ((number, reason),) = damaged
    assert number == 2
    assert "damaged" in reason
    box.reject(number, reason)
    (letter,) = box.read_dead_letters()
    assert letter.entry is None
    assert box.summarise().messages == 2
    box.close()


def test_a_flipped_bit_in_a_body_is_noticed(tmp_path: Path) -> None:
    box = database(tmp_path / "x")
    box.put([message("before"), message("here it is"), message("after")])
    box.close()
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(content.replace(b"here it is", b"here it iz"))
    again = database(tmp_path / "x")
    found, damaged = again.read_oldest(10, 10**9)
    assert [waiting.message.id for waiting in found] == ["id-before", "id-after"]
    assert [reason for _, reason in damaged] == ["damaged: the checksum of the message is wrong"]
    again.close()


def test_messages_that_a_damaged_file_still_shows_after_removal_are_an_error(
    tmp_path: Path,
) -> None:
    box = database(tmp_path / "x")
    box.put([message("0"), message("1")])
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute(
            "CREATE TRIGGER stays BEFORE DELETE ON messages BEGIN SELECT RAISE(IGNORE); END"
        )
    with pytest.raises(sqlite3.DatabaseError, match="still there"):
        box.remove([1])
    box.close()


@pytest.mark.parametrize("value", ["9e18", "-5", "'x'", "NULL"])
def test_damaged_totals_drop_nothing(tmp_path: Path, value: str) -> None:
    box = database(tmp_path / "x")
    box.put([message("0")])
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute(f"UPDATE state SET bytes = {value}, messages = {value}")
    assert box.put([message("1")]) == 0
    assert texts(box) == ["0", "1"]
    assert box.summarise().messages == 2
    box.close()


class Machine:
    """A machine whose clocks are set by hand."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.up = 5000.0
        self.boot = b"first boot"

    def open(self, path: Path | str = MEMORY) -> QueueDatabase:
        return database(
            path,
            wall_clock=lambda: self.wall,
            uptime=lambda: self.up,
            boot_id=lambda: self.boot,
        )

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds


def test_too_old_ones_are_dropped_and_counted() -> None:
    machine = Machine()
    box = machine.open()
    box.put([message("0")])
    machine.passes(60)
    box.put([message("1")])
    assert box.summarise().age == 60
    machine.passes(60)
    assert box.put([message("2")]) == 1
    assert texts(box) == ["1", "2"]
    assert box.summarise().dropped == 1


def test_dead_letters_grow_old_too() -> None:
    machine = Machine()
    box = machine.open()
    box.put([message("0")])
    box.reject(oldest(box)[0].number, "no")
    machine.passes(120)
    assert box.put([message("1")]) == 1
    assert box.read_dead_letters() == []


@pytest.mark.parametrize("jump", [8 * 86400.0, -1_699_000_000.0])
def test_a_wrong_wall_clock_drops_nothing(tmp_path: Path, jump: float) -> None:
    machine = Machine()
    box = machine.open(tmp_path / "x")
    box.put([message("0")])
    machine.wall += jump
    box.put([message("1")])
    box.close()
    machine.wall -= jump
    box = machine.open(tmp_path / "x")
    machine.passes(1)
    box.put([message("2")])
    assert texts(box) == ["0", "1", "2"]
    box.close()


def test_age_goes_on_over_restarts_and_counts_what_passed_since_a_boot(tmp_path: Path) -> None:
    machine = Machine()
    box = machine.open(tmp_path / "x")
    box.put([message("0")])
    box.close()
    machine.passes(40)
    box = machine.open(tmp_path / "x")
    assert box.summarise().age == 40
    box.put([message("1")])
    box.close()
    # Off for nobody knows how long, then up for 30 s.
    machine.boot, machine.up, machine.wall = b"second boot", 30.0, 0.0
    box = machine.open(tmp_path / "x")
    assert box.summarise().age == 70
    machine.passes(35)
    assert box.put([message("2")]) == 1
    assert texts(box) == ["1", "2"]
    box.close()


def test_a_damaged_clock_drops_nothing(tmp_path: Path) -> None:
    machine = Machine()
    box = machine.open(tmp_path / "x")
    machine.passes(1000)
    box.put([message("0")])
    box.close()
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute("UPDATE state SET moment = randomblob(56)")
    box = machine.open(tmp_path / "x")
    box.put([message("1")])
    assert texts(box) == ["0", "1"]
    assert box.summarise().age < 100
    box.close()


def test_two_processes_may_use_one_file(tmp_path: Path) -> None:
    one, other = database(tmp_path / "x"), database(tmp_path / "x")
    one.put([message("0")])
    other.put([message("1")])
    assert texts(one) == texts(other) == ["0", "1"]
    one.remove([1])
    assert other.summarise().messages == 1
    one.close()
    other.close()


def test_messages_of_version_0_1_are_taken_over(tmp_path: Path) -> None:
    import msgspec

    with sqlite3.connect(tmp_path / "x") as old:
        old.executescript(
            "CREATE TABLE waiting (number INTEGER PRIMARY KEY AUTOINCREMENT, stored REAL NOT NULL,"
            " size INTEGER NOT NULL, message BLOB NOT NULL);"
            "CREATE TABLE refused (number INTEGER PRIMARY KEY, stored REAL NOT NULL,"
            " reason TEXT NOT NULL, message BLOB NOT NULL);"
            "CREATE TABLE totals (size INTEGER NOT NULL, dropped INTEGER NOT NULL);"
            "INSERT INTO totals VALUES (0, 0);"
            "CREATE TRIGGER stored AFTER INSERT ON waiting BEGIN"
            " UPDATE totals SET size = size + NEW.size; END;"
            "CREATE TRIGGER removed AFTER DELETE ON waiting BEGIN"
            " UPDATE totals SET size = size - OLD.size; END;"
        )
        encode = msgspec.msgpack.encode
        for content in (encode(message("0")), b"\xff", encode(message("1"))):
            old.execute(
                "INSERT INTO waiting (stored, size, message) VALUES (1, ?, ?)",
                (len(content), content),
            )
        old.execute("INSERT INTO refused VALUES (9, 1, 'no', ?)", (encode(message("2")),))
    old.close()
    box = database(tmp_path / "x")
    assert texts(box) == ["0", "1"]
    assert [(letter.entry is None, letter.reason[:7]) for letter in box.read_dead_letters()] == [
        (True, "damaged"),
        (False, "no"),
    ]
    box.put([message("3")])
    box.close()
    assert texts(database(tmp_path / "x")) == ["0", "1", "3"]


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
def test_durability_decides_whether_the_disk_is_waited_for(
    tmp_path: Path, durability: str, synchronous: int
) -> None:
    box = database(tmp_path / "x", durability=durability)
    assert box._database.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert box._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    box.close()


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nonsense" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        database(tmp_path / "x")


@given(st.lists(st.one_of(st.integers(1, 2000), st.just("remove"), st.just("reject"))))
def test_it_behaves_as_a_bounded_queue(steps: list[int | str]) -> None:
    box = database(max_bytes=5000)
    waiting: list[int] = []
    letters: list[int] = []
    for step in steps:
        if isinstance(step, int):
            box.put([message("", step)])
            waiting.append(step)
            sizes = [each + overhead(each) for each in waiting]
            dead = [each + overhead(each) for each in letters]
            while dead and sum(sizes) + sum(dead) > 5000:
                dead.pop(0)
                letters.pop(0)
            while sum(sizes) > 5000 and len(sizes) > 1:
                sizes.pop(0)
                waiting.pop(0)
        elif waiting:
            (first, *_) = oldest(box, 1, 1)
            if step == "remove":
                box.remove([first.number])
                waiting.pop(0)
            else:
                box.reject(first.number, "no")
                letters.append(waiting.pop(0))
        assert [len(each.message.body) for each in oldest(box)] == waiting
        bodies = [len(each.entry.message.body) for each in box.read_dead_letters() if each.entry]
        assert bodies == letters
        assert box.count() == box.summarise().messages == len(waiting)
        assert box.size() == box.summarise().size
    box.close()


def overhead(size: int) -> int:
    """Return the bytes of an entry beside its body."""
    from ccagent.queue.entry import QueueEntry, encode_entry

    return len(encode_entry(QueueEntry(0.0, 0.0, message("", size)))) - size


def test_undecodable_rows_keep_no_others_from_growing_old(tmp_path: Path) -> None:
    machine = Machine()
    box = machine.open(tmp_path / "x")
    box.put([message(str(number)) for number in range(150)])
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute("UPDATE messages SET entry = NULL WHERE number <= 120")
    machine.passes(1000)
    assert box.put([message("new")]) == 30
    box.close()


@pytest.mark.parametrize("value", ["NULL", "-27", "0"])
def test_a_damaged_count_hides_no_message(tmp_path: Path, value: str) -> None:
    box = database(tmp_path / "x")
    box.put([message(str(number)) for number in range(9)])
    with sqlite3.connect(tmp_path / "x") as other:
        other.execute(f"UPDATE state SET messages = {value}")
    assert box.has_messages()
    box.close()
    again = database(tmp_path / "x")
    assert again.count() == 9
    again.close()
