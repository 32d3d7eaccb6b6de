"""How answers get to the broker: each once, whatever ends in between."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ccagent.agents.fast.kept_state import StateFile
from ccagent.agents.fast.session import AnswerQueue, FastSession, next_number
from ccagent.net.mqtt_broker import (
    LastWill,
    MqttLostError,
    MqttOptions,
    NumberedReply,
    ReceivedMessage,
)
from ccagent.transports.mqtt import MqttSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Sent(NamedTuple):
    """What went to the broker: `publish`, `again` or `release`."""

    what: str
    number: int
    payload: bytes = b""


class FakeConnection:
    """Records what is sent."""

    def __init__(self, *, has_session: bool = True) -> None:
        self.has_session = has_session
        self.sent: list[Sent] = []
        self.is_oversized = False
        self.confirmed: list[int] = []
        self.published: list[bytes] = []
        self.ended = ""
        self.is_lost = False

    def has_room(self, _size: int, reserve: int) -> bool:
        return reserve == 1

    def publish(self, _key: int, _topic: str, payload: bytes) -> None:
        if self.is_lost:
            raise MqttLostError("lost")
        self.published.append(payload)

    def publish_numbered(self, number: int, topic: str, payload: bytes, *, repeats: bool) -> None:
        assert topic == "fast/agent/c1/status"
        self.sent.append(Sent("again" if repeats else "publish", number, payload))

    def release(self, number: int) -> None:
        self.sent.append(Sent("release", number))

    def confirm(self, received: ReceivedMessage) -> None:
        self.confirmed.append(received.number)

    def abandon(self) -> None:
        pass


class FakeUser:
    """Takes messages, and fails at those that say so."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def on_connected(self) -> None:
        pass

    def on_turn(self) -> None:
        pass

    def filters(self) -> Iterable[str]:
        return []

    def on_message(self, received: ReceivedMessage) -> None:
        self.got.append(received.payload)
        if received.payload == b"bug":
            raise ZeroDivisionError


class SessionScene:
    """A session without a broker, which a test can restart."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.user = FakeUser()
        self.start()

    def close(self) -> None:
        """Close what a process that ends would."""
        self.answers.close()
        self.session._wake_up.close()

    def restart(self) -> None:
        """Begin as a new process, with what the last one left on disk."""
        self.close()
        self.start()

    def start(self) -> None:
        self.kept = StateFile(self.directory, "c1")
        self.kept.load()
        self.answers = AnswerQueue(self.directory, "fox", "c1")
        options = MqttOptions(MqttSettings(url="mqtt://127.0.0.1"), "x", LastWill("t", b""))
        self.session = FastSession(
            options,
            self.user,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            self.answers,
            self.kept,
        )

    def connect(self, *, has_session: bool = True) -> FakeConnection:
        made = FakeConnection(has_session=has_session)
        self.session._connection = made  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue]
        self.session._delivery.resume(made)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        return made

    def send_next(self, connection: FakeConnection) -> None:
        self.session._delivery.send_next(connection, 10.0)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    def reply(self, number: int, *, released: bool = False, reason: int = 0) -> None:
        self.session._on_reply(NumberedReply(number, released, reason))

    def put(self, key: str) -> None:
        self.answers.put(key, "fast/agent/c1/status", key.encode())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[SessionScene]:
    made = SessionScene(tmp_path)
    yield made
    made.close()


def test_answers_go_one_by_one_with_the_whole_handshake(scene: SessionScene) -> None:
    connection = scene.connect()
    scene.put("a")
    scene.put("b")
    scene.send_next(connection)
    scene.send_next(connection)
    assert connection.sent == [Sent("publish", 60000, b"a")]
    scene.reply(60000, released=True)
    assert connection.sent[1:] == [Sent("release", 60000)]
    scene.reply(60000)
    assert scene.answers.count() == 1
    scene.send_next(connection)
    assert connection.sent[2:] == [Sent("publish", 60001, b"b")]


def test_a_broker_without_qos_2_acknowledges_at_once(scene: SessionScene) -> None:
    connection = scene.connect()
    scene.put("a")
    scene.send_next(connection)
    scene.reply(60000)
    assert scene.answers.count() == 0


def test_a_restart_before_the_broker_had_it_sends_it_again(scene: SessionScene) -> None:
    scene.put("a")
    scene.send_next(scene.connect())
    scene.restart()
    assert scene.connect().sent == [Sent("again", 60000, b"a")]


def test_a_restart_after_the_broker_had_it_only_releases_it(scene: SessionScene) -> None:
    scene.put("a")
    scene.send_next(scene.connect())
    scene.reply(60000, released=True)
    scene.restart()
    connection = scene.connect()
    assert connection.sent == [Sent("release", 60000)]
    scene.reply(60000, reason=0x92)
    assert scene.answers.count() == 0


def test_a_broker_that_lost_the_session_gets_it_as_new(scene: SessionScene) -> None:
    scene.put("a")
    scene.send_next(scene.connect())
    scene.reply(60000, released=True)
    scene.restart()
    assert scene.connect(has_session=False).sent == [Sent("publish", 60000, b"a")]


def test_a_lost_connection_puts_a_release_into_doubt(scene: SessionScene) -> None:
    """A broker that was killed may say of an answer that it lost that it is complete."""
    scene.put("a")
    scene.send_next(scene.connect())
    scene.reply(60000, released=True)
    scene.session._leave()
    assert scene.connect().sent == [Sent("again", 60000, b"a")]


def test_a_restart_after_the_last_word_sends_nothing(scene: SessionScene) -> None:
    scene.put("a")
    scene.send_next(scene.connect())
    scene.reply(60000, released=True)
    scene.reply(60000)
    scene.restart()
    assert scene.connect().sent == []


def test_a_refused_answer_makes_room_for_the_next(
    scene: SessionScene, caplog: pytest.LogCaptureFixture
) -> None:
    connection = scene.connect()
    scene.put("a")
    scene.put("b")
    scene.send_next(connection)
    scene.reply(60000, reason=0x87)
    assert "refuses an answer to fast/agent/c1/status (reason 0x87)" in caplog.text
    scene.send_next(connection)
    assert connection.sent[-1].payload == b"b"


def test_replies_that_nobody_waits_for_are_ignored(scene: SessionScene) -> None:
    connection = scene.connect()
    scene.reply(60000, released=True)
    scene.reply(1)
    scene.put("a")
    scene.send_next(connection)
    scene.reply(61000)
    assert scene.answers.count() == 1
    assert len(connection.sent) == 1


def test_a_broker_that_never_answers_loses_the_connection(
    scene: SessionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = scene.connect()
    scene.put("a")
    scene.send_next(connection)
    monkeypatch.setattr(scene.session._delivery, "_sent_at", -1e9)
    with pytest.raises(MqttLostError, match="no acknowledgement came within 10 s"):
        scene.send_next(connection)


def test_a_message_that_breaks_us_is_acknowledged_and_logged(
    scene: SessionScene, caplog: pytest.LogCaptureFixture
) -> None:
    connection = scene.connect()
    for number, payload in enumerate((b"bug", b"fine")):
        scene.session._on_message(
            ReceivedMessage("t", payload, number, 1, is_repeated=False, is_retained=False)
        )
    assert connection.confirmed == [0, 1]
    assert scene.user.got == [b"bug", b"fine"]
    assert "a message on t failed" in caplog.text


def test_reports_that_wait_when_a_connection_is_lost_are_counted(scene: SessionScene) -> None:
    connection = scene.connect()
    scene.session.publish("t", b"sent")
    connection.is_lost = True
    assert scene.session.publish("t", b"waits")
    scene.session._leave()
    assert (connection.published, scene.session.dropped) == ([b"sent"], 1)
    assert not scene.session.publish("t", b"too late")
    assert scene.session.dropped == 2


def test_a_flood_is_left_at_the_broker(
    scene: SessionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    scene.session._filled_at = now
    scene.connect()
    count = 0
    for _ in range(10_000):
        if scene.session._rest() > 0:
            now += 0.01
            continue
        count += 1
        message = ReceivedMessage("t", b"x", count, 1, is_repeated=False, is_retained=False)
        scene.session._on_message(message)
    assert count < 100 + 51 * (now - 1000)
    assert count > 50 * (now - 1000)


def test_identifiers_of_answers_stay_in_their_range() -> None:
    assert [next_number(0), next_number(60000), next_number(65535)] == [60000, 60001, 60000]


@pytest.mark.parametrize(
    ("error", "served_for", "before", "pause"),
    [
        ("connection refused", None, 0.0, 0.5),
        ("connection refused", None, 4.0, 8.0),
        ("connection refused", None, 50.0, 60.0),
        ("the broker closed the connection", 1.0, 2.0, 2.0),
        ("the broker closed the connection", 60.0, 60.0, 0.5),
        ("session taken over: another client calls itself x", 60.0, 0.5, 60.0),
    ],
)
def test_pauses_between_connections(
    scene: SessionScene, error: str, served_for: float | None, before: float, pause: float
) -> None:
    scene.session.error = error
    if served_for is not None:
        scene.session._served_since = time.monotonic() - served_for
    assert scene.session._next_pause(before) == pause
