"""The outbox of a sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ccagent import outbox as module
from ccagent.config import OutboxSettings
from ccagent.errors import RejectedError, RetryableError
from ccagent.message import Message
from ccagent.outbox import Outbox
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
def outbox(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Outbox]:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    # A thousand of the messages of ten bytes that the test of the bound sends.
    where = OutboxSettings(directory=str(tmp_path / "spool"), max_bytes=10_000)
    box = Outbox("test", SinkSettings(url="test:"), receiver, where)
    yield box
    box.close()
    box.join(5)


def test_messages_arrive_in_order(outbox: Outbox, receiver: Receiver) -> None:
    sent = [f"{n}" for n in range(1000)]
    for text in sent:
        outbox.put(message(text))
    until(lambda: outbox.is_idle)
    assert receiver.taken == [text.encode() for text in sent]


def test_what_is_refused_for_now_is_sent_again_in_order(outbox: Outbox, receiver: Receiver) -> None:
    tries: list[bytes] = []

    def answer(got: Message) -> Exception | None:
        tries.append(got.body)
        return RetryableError("busy") if got.body == b"2" and tries.count(b"2") < 4 else None

    receiver.judge = answer
    for text in "123":
        outbox.put(message(text))
    until(lambda: outbox.is_idle)
    assert receiver.taken == [b"1", b"2", b"3"]
    assert tries.count(b"2") == 4


@pytest.mark.parametrize("error", [RejectedError("never"), RuntimeError("a bug")])
def test_a_message_that_can_never_be_sent_does_not_stop_the_others(
    outbox: Outbox, receiver: Receiver, error: Exception
) -> None:
    receiver.judge = lambda got: error if got.body == b"2" else None
    for text in "123":
        outbox.put(message(text))
        until(lambda: outbox.is_idle)
    assert receiver.taken == [b"1", b"3"]


def test_it_is_bounded_and_drops_the_oldest(outbox: Outbox, receiver: Receiver) -> None:
    receiver.judge = lambda _: RetryableError("away")
    for number in range(1040):
        outbox.put(message(f"{number:010d}"))
    receiver.judge = lambda _: None
    until(lambda: outbox.is_idle)
    assert len(receiver.taken) == 1000
    assert receiver.taken[-1] == b"0000001039"
    assert receiver.taken == sorted(receiver.taken)


def test_putting_never_waits_for_the_sink(outbox: Outbox, receiver: Receiver) -> None:
    hanging = threading.Event()

    def hang(got: Message) -> Exception | None:
        del got
        hanging.wait(10)
        return None

    receiver.judge = hang
    begin = time.monotonic()
    for number in range(100):
        outbox.put(message(str(number)))
    assert time.monotonic() - begin < 1
    hanging.set()


def test_closing_sends_what_waits(outbox: Outbox, receiver: Receiver) -> None:
    for number in range(250):
        outbox.put(message(str(number)))
    outbox.close()
    outbox.join(5)
    assert len(receiver.taken) == 250
    assert receiver.closed
