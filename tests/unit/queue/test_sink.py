"""The thread of a sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.errors import RejectedError, RetryableError
from ccagent.queue import sender as module
from ccagent.queue import sink as sink_module
from ccagent.queue.queue import Queue
from ccagent.queue.sink import Sink
from ccagent.records.message import Message
from ccagent.transports.base import SinkSettings, Transport


class Receiver(Transport):
    """Takes what `answer` lets it take."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.closed = False
        self.judge: Callable[[Message], Exception | None] = lambda _: None

    def send(self, messages: Sequence[Message]) -> None:
        for number, message in enumerate(messages):
            error = self.judge(message)
            if isinstance(error, (RetryableError, RejectedError)):
                error.delivered = number
            if error is not None:
                raise error
            self.taken.append(message.body)

    def close(self) -> None:
        self.closed = True


def message(text: str) -> Message:
    return Message("c", "n", "sample", "sonar", 0.0, text.encode())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.005)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def sink(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sink]:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    where = OutboxSettings(directory=str(tmp_path / "queue"), max_bytes=100_000)
    box = Sink("test", SinkSettings(url="test:"), receiver, where)
    yield box
    box.close()
    box.join(5)


def test_messages_arrive_in_order(sink: Sink, receiver: Receiver) -> None:
    sent = [f"{n}" for n in range(500)]  # all fit, also if the thread is late
    for text in sent:
        sink.put(message(text))
    until(lambda: sink.is_idle)
    assert receiver.taken == [text.encode() for text in sent]


def test_a_message_queued_while_the_thread_finds_nothing_is_sent_at_once(
    sink: Sink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_next = module.Sender.send_next

    def then_queue(sender: module.Sender) -> module.SendOutcome:
        outcome = send_next(sender)
        if outcome.wait is None and receiver.taken == [b"1"]:
            sink.put(message("2"))
        return outcome

    monkeypatch.setattr(sink_module, "_LONGEST_WAIT", 3600.0)
    monkeypatch.setattr(module.Sender, "send_next", then_queue)
    sink.put(message("1"))
    until(lambda: receiver.taken == [b"1", b"2"])


def test_what_is_refused_for_now_is_sent_again_in_order(sink: Sink, receiver: Receiver) -> None:
    tries: list[bytes] = []

    def answer(got: Message) -> Exception | None:
        tries.append(got.body)
        return RetryableError("busy") if got.body == b"2" and tries.count(b"2") < 4 else None

    receiver.judge = answer
    for text in "123":
        sink.put(message(text))
    until(lambda: sink.is_idle)
    assert receiver.taken == [b"1", b"2", b"3"]
    assert tries.count(b"2") == 4


def test_a_message_that_can_never_be_sent_does_not_stop_the_others(
    sink: Sink, receiver: Receiver
) -> None:
    receiver.judge = lambda got: RejectedError("never") if got.body == b"2" else None
    for text in "123":
        sink.put(message(text))
        until(lambda: sink.is_idle)
    assert receiver.taken == [b"1", b"3"]


def test_it_is_bounded_and_drops_the_oldest(sink: Sink, receiver: Receiver) -> None:
    receiver.judge = lambda _: RetryableError("away")
    for number in range(1040):
        sink.put(message(f"{number:010d}"))
    receiver.judge = lambda _: None
    until(lambda: sink.is_idle)
    assert 500 < len(receiver.taken) < 1000
    assert sink.counters().dropped == 1040 - len(receiver.taken)
    assert receiver.taken[-1] == b"0000001039"
    assert receiver.taken == sorted(receiver.taken)


def test_putting_never_waits_for_the_sink(sink: Sink, receiver: Receiver) -> None:
    hanging = threading.Event()

    def hang(got: Message) -> Exception | None:
        del got
        hanging.wait(10)
        return None

    receiver.judge = hang
    begin = time.monotonic()
    for number in range(100):
        sink.put(message(str(number)))
    assert time.monotonic() - begin < 1
    hanging.set()


def test_closing_sends_what_waits(sink: Sink, receiver: Receiver) -> None:
    for number in range(250):
        sink.put(message(str(number)))
    sink.close()
    sink.join(5)
    assert len(receiver.taken) == 250
    assert receiver.closed


def test_an_error_of_the_queue_itself_does_not_end_the_thread(
    sink: Sink, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.queue.sink._RESTART_PAUSE", 0.01)
    errors = [KeyError("a defect"), MemoryError()]
    original = sink._sender.send_next

    def fail() -> object:
        if errors:
            raise errors.pop()
        return original()

    monkeypatch.setattr(sink._sender, "send_next", fail)
    sink.put(message("1"))
    until(lambda: sink.is_idle)
    assert receiver.taken == [b"1"]
    assert sink.counters().restarts == 2
    assert sink.is_alive


def test_a_thread_that_cant_be_started_is_started_with_the_next_message(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        sink = Sink("test", SinkSettings(url="test:"), receiver)
        sink.put(message("1"))
    assert not sink.is_alive
    sink.put(message("2"))
    until(lambda: sink.is_idle)
    assert receiver.taken == [b"1", b"2"]
    sink.close()
    sink.join(5)


def test_what_is_in_memory_alone_at_the_end_is_reported_as_lost(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.judge = lambda _: RetryableError("away")
    (tmp_path / "file").write_text("")
    sink = Sink(
        "test",
        SinkSettings(url="test:"),
        receiver,
        OutboxSettings(directory=str(tmp_path / "file")),
    )
    for text in "123":
        sink.put(message(text))
    sink.close()
    sink.join(5)
    assert "3 messages could not be sent and are lost (" in caplog.text


def test_a_successor_gets_what_is_queued_and_what_comes_yet(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.judge = lambda _: RetryableError("away")
    other = Receiver()
    where = OutboxSettings(directory=str(tmp_path / "queue"))
    for first in (where, None):
        other.taken.clear()
        old = Sink("test", SinkSettings(url="test:"), receiver, first)
        old.put(message("1"))
        new = Sink("test", SinkSettings(url="test:"), other, where)
        old.retire(new)
        old.put(message("2"))
        until(lambda: len(other.taken) == 2)
        old.join(5)
        new.close()
        new.join(5)
        assert sorted(other.taken) == [b"1", b"2"]


def test_a_full_successor_that_refuses_new_messages_gets_the_backlog_as_it_has_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sink_module, "_FILE_RETRIED", 0.01)
    receiver = Receiver()
    receiver.judge = lambda _: RetryableError("not yet")
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    settings = SinkSettings(url="test:")
    old = Sink("test", settings, receiver, OutboxSettings(directory=first))
    small = OutboxSettings(directory=second, max_bytes=16_000, when_full="refuse-new")
    new = Sink("test", settings, receiver, small)
    sent = [f"{number:03}" + 1000 * "x" for number in range(50)]
    for text in sent:
        assert old.put(message(text))
    old.retire(new)
    until(lambda: new.counters().refused > 0)
    receiver.judge = lambda _: None
    until(lambda: len(receiver.taken) >= len(sent))
    old.join(5)
    new.close()
    new.join(5)
    assert [body.decode() for body in receiver.taken] == sent


def test_what_is_in_memory_moves_to_a_disk_that_works_again_without_another_message(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.queue.sink._LONGEST_WAIT", 0.01)
    receiver.judge = lambda _: RetryableError("away")
    place = tmp_path / "queue"
    place.write_text("no directory")
    sink = Sink("test", SinkSettings(url="test:"), receiver, OutboxSettings(directory=str(place)))
    sink._queue.retry_after = 0.01
    sink._queue._retry_at = 0.0
    sink.put(message("1"))
    assert sink.unsaved == 1
    place.unlink()
    until(lambda: sink.unsaved == 0)
    assert not sink.is_idle
    sink.close()
    sink.join(5)


def test_a_sink_without_a_thread_hands_over_what_it_has(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    other = Receiver()
    new = Sink("test", SinkSettings(url="test:"), other)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        old = Sink("test", SinkSettings(url="test:"), receiver)
        old.put(message("1"))
        old.retire(new)
    until(lambda: new.is_idle)
    assert other.taken == [b"1"]
    new.close()
    new.join(5)


def test_a_backlog_is_handed_over_once_another_process_lets_go_of_its_file(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.queue.sink._FILE_RETRIED", 0.01)
    receiver.judge = lambda _: RetryableError("away")
    where = OutboxSettings(directory=str(tmp_path / "old"))
    one_shot = Queue("test", where)
    one_shot.put([message("0")])
    old = Sink("test", SinkSettings(url="test:"), receiver, where)
    old.put(message("1"))
    other = Receiver()
    new = Sink("test", SinkSettings(url="test:"), other)
    old.retire(new)
    time.sleep(0.05)
    assert other.taken == []
    one_shot.close()
    until(lambda: other.taken == [b"0", b"1"])
    old.join(5)
    new.close()
    new.join(5)
