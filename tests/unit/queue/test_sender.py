"""Sending what is queued, with a clock set by hand and a scripted transport."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.records.message import Message
from ccagent.transports.base import SinkSettings, Transport
from tests.support.dead_letters import read_dead_letters


class Script(Transport):
    """Takes a message unless `verdict` returns an error for it."""

    def __init__(self) -> None:
        super().__init__(SinkSettings(url="script:"))
        self.tried: list[str] = []
        self.taken: list[str] = []
        self.bodies: list[bytes] = []
        self.closed = 0
        self.verdict: Callable[[Message], Exception | None] = lambda _: None

    def send(self, messages: Sequence[Message]) -> None:
        for number, message in enumerate(messages):
            self.tried.append(message.id)
            error = self.verdict(message)
            if error is not None:
                if isinstance(error, (RetryableError, RejectedError)):
                    error.delivered = number
                raise error
            self.taken.append(message.id)
            self.bodies.append(message.body)

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A queue, a scripted transport, and a clock."""

    def __init__(self, where: OutboxSettings | None = None) -> None:
        self.now: float = 0.0
        self.transport = Script()
        self.queue = Queue("test", where or OutboxSettings())
        self.sender = Sender(
            "test",
            self.queue,
            self.transport,
            monotonic=lambda: self.now,
            jitter=lambda _, longest: longest,
        )

    def put(self, *names: str, size: int = 2) -> None:
        """Queue messages; what stands before a dash in a name is the kind."""
        self.queue.put([message(name, size) for name in names])

    def run(self, seconds: float) -> None:
        """Advance the clock as the sink's thread does."""
        end = self.now + seconds
        while self.now < end:
            outcome = self.sender.send_next()
            if outcome.wait is None:
                self.now = end
            else:
                self.now += outcome.wait

    def dead(self) -> list[tuple[str, str]]:
        """Return id and reason of each dead letter."""
        return [(each.message.id, each.reason) for each in read_dead_letters(self.queue)]


def message(name: str, size: int = 2) -> Message:
    kind = name.partition("-")[0]
    return Message("c", "n", kind, "line", 1.5, b"x" * size + b"\n", "", name)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_messages_are_sent_in_order_and_leave_the_queue(bench: Bench) -> None:
    names = [f"sample-{n}" for n in range(1200)]
    bench.put(*names)
    bench.run(0.001)
    assert bench.transport.taken == names
    assert bench.queue.count() == 0
    assert bench.sender.counters.acknowledged == 1200


def test_a_sink_that_is_away_is_tried_with_one_message_and_growing_pauses(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RetryableError("refused")
    bench.put("sample-0", "sample-1", "sample-2")
    pauses: list[float] = []
    for _ in range(9):
        outcome = bench.sender.send_next()
        while outcome.wait == 0:
            outcome = bench.sender.send_next()
        assert outcome.wait
        pauses.append(outcome.wait)
        bench.now += outcome.wait
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    bench.transport.verdict = lambda _: None
    bench.run(0.001)
    assert bench.transport.taken == ["sample-0", "sample-1", "sample-2"]


def test_a_long_outage_costs_neither_messages_nor_their_order(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RetryableError("refused")
    names = [f"{('sample', 'job', 'metrics')[n % 3]}-{n}" for n in range(300)]
    bench.put(*names)
    bench.run(7200)
    bench.transport.verdict = lambda _: None
    bench.run(120)
    assert sorted(bench.transport.taken) == sorted(names)
    for kind in ("sample", "job", "metrics"):
        of_kind = [name for name in bench.transport.taken if name.startswith(kind)]
        assert of_kind == [name for name in names if name.startswith(kind)]
    assert bench.dead() == []


def test_the_sink_says_how_long_it_wants_to_be_left_alone(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RetryableError("429", after=500.0)
    bench.put("sample-0")
    assert bench.sender.send_next().wait == 500
    bench.now += 499
    assert bench.sender.send_next().wait == 1
    assert bench.transport.tried == ["sample-0"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        ImportError("no module"),
        KeyError("a defect"),
    ],
)
def test_an_unforeseen_error_destroys_nothing(bench: Bench, error: Exception) -> None:
    bench.transport.verdict = lambda _: error
    names = [f"sample-{n}" for n in range(3000)]
    bench.put(*names)
    bench.run(3600)
    assert bench.queue.count() == 3000
    assert bench.dead() == []
    assert len(bench.transport.tried) < 150
    assert bench.transport.closed >= 50  # nothing stays open between the attempts
    bench.transport.verdict = lambda _: None
    bench.run(61)
    assert sorted(bench.transport.taken) == sorted(names)


def test_what_was_taken_before_an_error_is_not_sent_again(bench: Bench) -> None:
    errors = [RetryableError("cut")]
    bench.transport.verdict = lambda got: errors.pop() if got.id == "sample-3" and errors else None
    names = [f"sample-{n}" for n in range(6)]
    bench.put(*names)
    bench.run(10)
    assert bench.transport.taken == names


def test_a_refused_message_becomes_a_dead_letter_and_the_others_go_on(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        RejectedError("422: no such field") if got.id == "sample-1" else None
    )
    bench.put("sample-0", "sample-1", "sample-2")
    bench.run(0.001)
    assert bench.transport.taken == ["sample-0", "sample-2"]
    assert bench.dead() == [("sample-1", "422: no such field")]
    assert bench.sender.counters.rejected == 1


def test_one_kind_that_fails_holds_up_no_other(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        RetryableError("no stream takes c.job", is_about_message=True)
        if got.kind == "job"
        else None
    )
    bench.put("job-0", "sample-0", "job-1", "sample-1", "job-2", "job-3", "job-4")
    bench.run(1)
    assert bench.transport.taken == ["sample-0", "sample-1"]
    bench.run(3600)
    assert bench.dead() == []
    bench.transport.verdict = lambda _: None
    bench.run(700)
    assert sorted(bench.transport.taken[2:]) == [f"job-{n}" for n in range(5)]


def test_a_message_that_crashes_its_receiver_holds_up_nothing_for_long(bench: Bench) -> None:
    """The receiver closes the connection: nothing says that the message is to blame."""
    bench.transport.verdict = lambda got: (
        RetryableError("connection closed") if got.id == "sample-1" else None
    )
    for n in range(200):
        bench.put(f"sample-{n}")
        bench.run(60)
    bench.run(3600)
    taken = bench.transport.taken
    assert sorted(taken) == sorted(f"sample-{n}" for n in range(200) if n != 1)
    assert taken.index("sample-2") < 10
    assert bench.dead() == [("sample-1", "connection closed; repeatedly, while others were taken")]


@pytest.mark.parametrize("is_about_message", [True, False])
def test_many_such_messages_in_a_row_hold_up_nothing_for_ever(
    bench: Bench, *, is_about_message: bool
) -> None:
    bad = {f"sample-{n}" for n in range(1, 11)}
    bench.transport.verdict = lambda got: (
        RetryableError("failed", is_about_message=is_about_message) if got.id in bad else None
    )
    for n in range(200):
        bench.put(f"sample-{n}")
        bench.run(60)
    bench.run(3600)
    assert len(bench.transport.taken) == 190
    assert {name for name, _ in bench.dead()} == bad


@pytest.mark.parametrize("is_about_message", [True, False])
def test_a_sink_that_takes_one_message_in_ten_makes_no_dead_letters(
    bench: Bench, *, is_about_message: bool
) -> None:
    chance = random.Random(1)
    bench.transport.verdict = lambda _: (
        RetryableError("overloaded", is_about_message=is_about_message)
        if chance.random() < 0.9
        else None
    )
    for n in range(200):
        bench.put(f"sample-{n}")
        bench.run(600)
    assert bench.dead() == []


def test_what_a_full_sink_has_no_room_for_is_no_dead_letter(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        RetryableError("full", is_about_message=True, is_busy=True) if got.id == "a-0" else None
    )
    for n in range(100):
        bench.put(f"a-{n}")
        bench.run(600)
    assert bench.dead() == []
    bench.transport.verdict = lambda _: None
    bench.run(700)
    assert len(bench.transport.taken) == 100


def test_among_other_kinds_such_a_message_is_passed_sooner(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        RetryableError("connection closed") if got.id == "errors-0" else None
    )
    bench.put("errors-0", "sample-0", "sample-1", "errors-1")
    bench.run(30)
    assert bench.transport.taken == ["sample-0", "sample-1", "errors-1"]


def test_large_messages_are_sent_in_parts(bench: Bench) -> None:
    bench.transport.largest_body = 2000
    lines = b"".join(b"m,n=%04d v=1 1\n" % n for n in range(500))
    bench.queue.put([Message("c", "n", "metrics", "line", 1.5, lines, "", "a")])
    bench.put("sample-0")
    bench.run(0.001)
    *parts, last = bench.transport.bodies
    assert all(len(part) <= 2000 for part in parts)
    assert b"".join(parts) == lines
    assert len(set(bench.transport.taken)) == len(bench.transport.taken)
    assert last == b"xx\n"
    assert bench.queue.count() == 0


@pytest.mark.parametrize("limit", [2000, None])
def test_a_limit_that_shows_only_when_a_message_is_refused_is_learned(
    bench: Bench, limit: int | None
) -> None:
    bench.transport.verdict = lambda got: (
        TooLargeError("413", limit=limit) if len(got.body) > 2000 else None
    )
    lines = b"".join(b"m,n=%04d v=1 1\n" % n for n in range(500))
    bench.queue.put([Message("c", "n", "metrics", "line", 1.5, lines, "", "a")])
    bench.run(0.001)
    assert b"".join(bench.transport.bodies) == lines
    assert bench.dead() == []


def test_a_message_refused_at_any_size_becomes_a_dead_letter(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        TooLargeError("413") if got.id.startswith("sample-1") else None
    )
    bench.put("sample-0", "sample-1", "sample-2", size=3000)
    bench.run(0.001)
    assert bench.transport.taken == ["sample-0", "sample-2"]
    assert [name for name, _ in bench.dead()] == ["sample-1"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1500, 5000])
@pytest.mark.parametrize("limit", [1, 1000, None])
def test_a_limit_that_no_message_meets_is_the_receivers_fault(
    bench: Bench, limit: int | None, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench.transport.verdict = lambda _: TooLargeError("the broker takes 1 byte", limit=limit)
    names = [f"sample-{number}" for number in range(20)]
    bench.queue.put([lines(name, *(f"m{n}" for n in range(size // 14))) for name in names])
    bench.run(86400)
    assert bench.dead() == []
    assert bench.queue.count() == 20
    assert "a limit below 1024 bytes is wrong: correct it at the receiver" in caplog.text
    bench.transport.verdict = lambda _: None
    bench.run(3600)
    assert bench.queue.count() == 0
    assert set(bench.transport.taken) >= {*names}


def test_an_announced_limit_that_no_message_meets_is_waited_for(bench: Bench) -> None:
    bench.transport.largest_body = 1
    bench.put("sample-0", "sample-1")
    bench.run(86400)
    assert (bench.transport.tried, bench.dead(), bench.queue.count()) == ([], [], 2)
    bench.transport.largest_body = None
    bench.run(3600)
    assert bench.queue.count() == 0


def test_one_small_message_that_is_too_large_becomes_a_dead_letter_later(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        TooLargeError("413") if got.id.startswith("sample-bad") else None
    )
    bench.put("sample-bad", size=500)
    for number in range(300):
        bench.put(f"sample-{number}", size=500)
        bench.run(60)
    assert [name for name, _ in bench.dead()] == ["sample-bad"]


def test_a_command_that_runs_once_tries_another_message_before_it_gives_up(bench: Bench) -> None:
    bench.transport.verdict = lambda got: (
        RetryableError("connection closed") if got.id == "sample-0" else None
    )
    bench.put("sample-0", "sample-1", "sample-2")
    assert not bench.sender.send_all()
    assert bench.transport.taken == ["sample-1", "sample-2"]
    assert bench.queue.count() == 1


def test_a_command_that_runs_once_gives_up_after_two_attempts(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RetryableError("away")
    bench.put(*(f"sample-{n}" for n in range(100)))
    assert not bench.sender.send_all()
    assert len(bench.transport.tried) == 501 or len(set(bench.transport.tried)) == 2
    assert bench.queue.count() == 100


def test_a_command_that_runs_once_tries_its_only_message_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.transport.verdict = lambda _: RetryableError("away")
    bench.transport.is_one_shot = True
    bench.put("sample-0")
    assert not bench.sender.send_all()
    assert bench.transport.tried == ["sample-0"]
    assert [record.getMessage() for record in caplog.records] == ["sink test: away"]


def test_only_one_process_sends_what_is_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    where = OutboxSettings(directory=str(tmp_path))
    one, other = Bench(where), Bench(where)
    one.put("sample-0")
    other.put("sample-1")
    assert not other.sender.send_all()
    assert "another process sends the 2 messages" in caplog.text
    one.sender.send_all()
    one.sender.close()
    assert other.sender.send_all()
    assert (one.transport.taken, other.transport.taken) == (["sample-0"], ["sample-1"])
    other.sender.close()


def test_damaged_messages_cost_only_themselves(tmp_path: Path) -> None:
    bench = Bench(OutboxSettings(directory=str(tmp_path)))
    bench.put("sample-0", "sample-1", "sample-2")
    (path,) = tmp_path.rglob("*.log")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"sample-1"))
        file.write(b"SAMPLE")
    assert bench.sender.send_all()
    assert bench.transport.taken == ["sample-0", "sample-2"]
    assert bench.queue.damaged == 1
    bench.sender.close()


def test_nothing_leaks_over_many_failed_attempts(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RuntimeError("can't start new thread")
    bench.put("sample-0")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    bench.run(3600)
    assert len(os.listdir("/proc/self/fd")) == before


def lines(name: str, *texts: str) -> Message:
    body = "".join(f"{text} value=1 7\n" for text in texts).encode()
    return Message("c", "n", name.partition("-")[0], "line", 1.5, body, "", name)


def test_only_the_record_that_is_refused_becomes_a_dead_letter(bench: Bench) -> None:
    def verdict(got: Message) -> Exception | None:
        return RejectedError(f"422 for {got.id}") if b"bad" in got.body else None

    bench.transport.verdict = verdict
    bench.queue.put([lines("metrics-0", *"abcd", "bad", *"efg"), lines("metrics-1", "h")])
    bench.run(0.001)
    assert [each.message.body for each in read_dead_letters(bench.queue)] == [b"bad value=1 7\n"]
    passed = b"".join(bench.transport.bodies).replace(b" value=1 7\n", b"")
    assert sorted(passed.decode()) == [*"abcdefgh"]
    assert bench.queue.count() == 0


def test_a_part_of_a_large_message_that_is_refused_is_halved(bench: Bench) -> None:
    def verdict(got: Message) -> Exception | None:
        if len(got.body) > 3000:
            return TooLargeError("413", limit=3000)
        return RejectedError("422") if b"bad" in got.body else None

    bench.transport.verdict = verdict
    bench.queue.put([lines("metrics-0", *(f"m{n}" for n in range(300)), "bad")])
    bench.run(0.001)
    assert [each.message.body for each in read_dead_letters(bench.queue)] == [b"bad value=1 7\n"]
    assert b"".join(bench.transport.bodies).count(b"\n") == 300


def test_a_sink_that_fails_at_a_half_gets_the_message_again(bench: Bench) -> None:
    away = [True]

    def verdict(got: Message) -> Exception | None:
        if got.id == "metrics-0-2" and away:
            away.clear()
            return RetryableError("503")
        return RejectedError("422") if b"bad" in got.body else None

    bench.transport.verdict = verdict
    bench.queue.put([lines("metrics-0", "a", "bad", "b", "c")])
    bench.run(60)
    assert [body for body in bench.transport.bodies if b"b " in body] == [
        b"b value=1 7\nc value=1 7\n"
    ]
    assert len(bench.dead()) == 1
    assert bench.queue.count() == 0


def test_a_sink_that_refuses_all_is_asked_a_few_times_per_message(bench: Bench) -> None:
    bench.transport.verdict = lambda _: RejectedError("422")
    bench.queue.put([lines(f"metrics-{n}", *map(str, range(100))) for n in range(11)])
    bench.run(0.001)
    assert len(bench.transport.tried) <= (1 + 64) + 10 * (1 + 6)
    assert [identity for identity, _ in bench.dead()] == [f"metrics-{n}" for n in range(11)]
    # Once something passes, what is refused is sought again.
    bench.transport.verdict = lambda got: RejectedError("422") if b"99 " in got.body else None
    bench.queue.put([lines("metrics-x", *map(str, range(100)))])
    bench.run(0.001)
    assert b"".join(bench.transport.bodies).count(b"\n") == 99


def test_one_bad_record_alone_makes_no_sink_suspect(bench: Bench) -> None:
    bench.transport.verdict = lambda got: RejectedError("422") if b"bad" in got.body else None
    texts = [f"m{n}" if n % 4 else f"bad{n}" for n in range(32)]
    bench.queue.put([lines("metrics-0", "bad"), lines("metrics-1", *texts)])
    bench.run(0.001)
    assert b"".join(bench.transport.bodies).count(b"\n") == 24


def test_parts_that_were_taken_are_not_sent_again(bench: Bench) -> None:
    bench.transport.largest_body = 2000
    lines = b"".join(b"m,n=%04d v=1 1\n" % n for n in range(700))
    bench.transport.verdict = lambda got: (
        RetryableError("500", is_about_message=True) if b"n=0690" in got.body else None
    )
    bench.queue.put([Message("c", "n", "metrics", "line", 1.5, lines, "", "a")])
    bench.run(86400)
    assert len(bench.transport.taken) == len(set(bench.transport.taken))
    bench.transport.verdict = lambda _: None
    bench.run(700)
    assert b"".join(bench.transport.bodies) == lines
    assert bench.queue.count() == 0


def test_what_failed_in_a_file_says_nothing_of_the_next_file(tmp_path: Path) -> None:
    bench = Bench(OutboxSettings(directory=str(tmp_path)))
    bench.transport.verdict = lambda got: (
        RetryableError("500", is_about_message=True) if got.id == "sample-0" else None
    )
    bench.put("sample-0", "sample-1")
    bench.run(60)
    assert bench.transport.taken == ["sample-1"]
    shutil.rmtree(tmp_path / "test.queue")
    bench.transport.verdict = lambda _: RetryableError("500", is_about_message=True)
    bench.put("sample-2")
    before = len(bench.transport.tried)
    assert bench.sender.send_next().wait == 0
    assert len(bench.transport.tried) > before
    assert bench.sender._queue.count() == 2
    bench.sender.close()


def test_one_refused_record_is_found_among_very_many(bench: Bench) -> None:
    bench.transport.verdict = lambda got: RejectedError("422") if b"bad" in got.body else None
    bench.queue.put([lines("metrics-0", "bad", "bad", *(f"m{n}" for n in range(5000)))])
    bench.run(0.001)
    assert b"".join(bench.transport.bodies).count(b"\n") == 5000
