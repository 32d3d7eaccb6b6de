"""Messages in SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.message import Message
from ccagent.spool import MEMORY, Spool


def message(text: str, size: int = 10) -> Message:
    return Message("c", "n", "sample", "sonar", 1.5, text.encode().ljust(size), "", f"id-{text}")


def spool(path: Path | str = MEMORY, **keys: Any) -> Spool:
    options: dict[str, Any] = {"max_bytes": 1000, "max_age": 100.0}
    return Spool(str(path), **options | keys)


def texts(box: Spool, count: int = 1000) -> list[str]:
    return [waiting.message.body.decode().strip() for waiting in box.oldest(count, 10**9)]


def test_messages_come_back_whole_and_in_order_also_after_a_restart(tmp_path: Path) -> None:
    box = spool(tmp_path / "x")
    sent = [message(str(n)) for n in range(10)]
    box.put(sent[:7])
    box.put(sent[7:])
    box.close()

    again = spool(tmp_path / "x")

    assert [waiting.message for waiting in again.oldest(100, 10**9)] == sent
    again.close()


def test_what_is_removed_is_gone() -> None:
    box = spool()
    box.put([message(str(n)) for n in range(5)])
    box.remove([waiting.number for waiting in box.oldest(2, 10**9)])
    assert texts(box) == ["2", "3", "4"]
    assert not box.is_empty()
    box.remove([waiting.number for waiting in box.oldest(3, 10**9)])
    assert box.is_empty()


def test_batches_are_bounded_by_count_and_bytes_but_hold_at_least_one() -> None:
    box = spool()
    box.put([message(str(n), 100) for n in range(5)])
    assert texts(box, 2) == ["0", "1"]
    assert len(box.oldest(5, 250)) == 2
    assert len(box.oldest(5, 1)) == 1


def test_too_much_drops_the_oldest_and_counts_them() -> None:
    box = spool(max_bytes=300)
    assert box.put([message(str(n), 100) for n in range(3)]) == 0
    assert box.put([message("3", 100), message("4", 100)]) == 2
    assert texts(box) == ["2", "3", "4"]
    assert box.summary().dropped == 2
    assert box.summary().size == 300


def test_a_message_larger_than_all_room_is_kept_alone() -> None:
    box = spool(max_bytes=300)
    box.put([message("0", 100)])
    box.put([message("1", 1000)])
    assert texts(box) == ["1"]


def test_too_old_ones_are_dropped_and_counted() -> None:
    now = [1000.0]
    box = spool(now=lambda: now[0])
    box.put([message("0")])
    now[0] += 60
    box.put([message("1")])
    assert box.summary().age == 60
    now[0] += 60
    box.put([message("2")])
    assert texts(box) == ["1", "2"]
    assert box.summary().dropped == 1


def test_a_refused_message_is_set_aside_with_its_reason() -> None:
    box = spool(now=lambda: 1000.0)
    box.put([message("0"), message("1")])
    (first, _) = box.oldest(2, 10**9)
    box.set_aside(first.number, "422: unknown field")
    assert texts(box) == ["1"]
    (refused,) = box.refused()
    assert (refused.message, refused.stored, refused.reason) == (
        message("0"),
        1000.0,
        "422: unknown field",
    )
    assert box.summary().refused == 1


def test_two_processes_may_use_one_file(tmp_path: Path) -> None:
    one, other = spool(tmp_path / "x"), spool(tmp_path / "x")
    one.put([message("0")])
    other.put([message("1")])
    assert texts(one) == texts(other) == ["0", "1"]
    one.remove([1])
    assert other.summary().messages == 1
    assert other.summary().size == 10
    one.close()
    other.close()


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
def test_durability_decides_whether_the_disk_is_waited_for(
    tmp_path: Path, durability: str, synchronous: int
) -> None:
    box = spool(tmp_path / "x", durability=durability)
    assert box._database.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert box._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    box.close()


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nonsense" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        spool(tmp_path / "x")


@given(st.lists(st.one_of(st.integers(1, 200), st.just("remove"), st.just("aside"))))
def test_it_behaves_as_a_bounded_queue(steps: list[int | str]) -> None:
    box = spool(max_bytes=500)
    model: list[int] = []
    for step in steps:
        if isinstance(step, int):
            box.put([message("", step)])
            model.append(step)
            while sum(model) > 500 and len(model) > 1:
                model.pop(0)
        elif model:
            (first, *_) = box.oldest(1, 1)
            if step == "remove":
                box.remove([first.number])
            else:
                box.set_aside(first.number, "no")
            model.pop(0)
        assert [len(w.message.body) for w in box.oldest(1000, 10**9)] == model
        assert box.summary().size == sum(model)
        assert box.summary().messages == len(model)
    box.close()
