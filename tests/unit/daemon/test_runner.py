"""An agent in a thread of its own, whatever it does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ccagent.agents.base import Agent, AgentSettings
from ccagent.config.configuration import OutboxSettings
from ccagent.config.duration import Duration
from ccagent.daemon.runner import Runner
from ccagent.errors import RetryableError, UnparsableError
from ccagent.machine.node import Node
from ccagent.queue.sink import Sink
from ccagent.records.envelopes import ClusterEnvelope, SysinfoEnvelope
from ccagent.records.json_encoding import ErrorObject, MetadataObject
from ccagent.records.message import FORMATS, Format, Message, Record
from ccagent.records.points import Point
from ccagent.transports.base import SinkSettings, Transport
from tests.support.written_lines import written_lines


class Obedient(Agent[AgentSettings]):
    """Does what the test tells it."""

    name = "obedient"
    formats: ClassVar[frozenset[Format]] = frozenset({"sonar"})
    Settings = AgentSettings

    def __init__(self, time_limit: str = "60s") -> None:
        super().__init__(AgentSettings(time_limit=Duration(time_limit)), frozenset({"sonar"}))
        self.on_prepare: Callable[[], None] = lambda: None
        self.on_sample: Callable[[], None] = lambda: None
        self.records: list[Record] = []
        self.samples = 0
        self.closed = False
        self.settlements = 0

    def prepare(self, node: Node) -> float:
        self.on_prepare()
        return 0.0

    def sample(self, node: Node) -> Iterator[Record]:
        self.samples += 1
        self.on_sample()
        yield from self.records
        yield SysinfoEnvelope(meta=MetadataObject(producer="x", version="1.0.0"))

    def save_state(self) -> None:
        self.settlements += 1

    def close(self) -> None:
        self.closed = True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.005)


@pytest.fixture
def agent() -> Obedient:
    return Obedient("100ms")


@pytest.fixture
def runner(agent: Obedient) -> Iterator[Runner]:
    runner = Runner(agent, Node(hostname="c1", cluster="x"), [])
    yield runner
    runner.close()
    runner.join(5)


def raise_(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


def test_a_sample_with_errors_only_counts_as_failed(agent: Obedient, runner: Runner) -> None:
    """A dead Slurm: each envelope is an error, and nothing is raised."""
    error = ErrorObject(time="2026-01-31T12:00:00Z", detail="sinfo: no answer")
    meta = MetadataObject(producer="x", version="1.0.0")
    agent.records = [ClusterEnvelope(meta=meta, errors=[error])]
    runner.start(sample_now=True)
    until(lambda: agent.counters.errors == 1)
    assert (agent.counters.samples, agent.counters.last_error) == (0, "sinfo: no answer")
    agent.records = []
    runner.tick()
    until(lambda: agent.counters.samples == 1)
    assert agent.counters.last_error == ""


@pytest.mark.parametrize("error", [UnparsableError("odd"), ZeroDivisionError("a bug")])
def test_a_failed_sample_is_logged_and_the_next_one_comes(
    agent: Obedient, runner: Runner, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    agent.on_sample = raise_(error)
    runner.start(sample_now=True)
    until(lambda: runner.is_idle)
    agent.on_sample = lambda: None
    runner.tick()
    until(lambda: agent.samples == 2 and runner.is_idle)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "agent obedient" in caplog.text


def test_a_record_that_cant_be_encoded_is_counted_and_costs_itself(
    agent: Obedient, runner: Runner
) -> None:
    agent.wanted = frozenset(FORMATS)
    agent.records = [Point("load", {"room": ""}, 1, 1.0)] * 3
    with written_lines() as lines:
        runner.start(sample_now=True)
        until(lambda: runner.is_idle)
    counters = agent.counters
    assert (counters.samples, counters.errors, counters.unencodable) == (1, 0, 3)
    (line,) = lines
    assert line == (
        "agent obedient: metric load can't be encoded and is left out: tag 'room': '' is empty, or "
        "has control characters or a final backslash"
    )


def test_a_failed_first_reading_does_not_keep_it_from_sampling(
    agent: Obedient, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    agent.on_prepare = raise_(RuntimeError("not today"))
    runner.start(sample_now=False)
    until(lambda: runner.is_idle)
    runner.tick()
    until(lambda: agent.samples == 1)
    assert "first reading failed" in caplog.text


def test_a_tick_during_the_first_reading_is_not_lost(agent: Obedient, runner: Runner) -> None:
    ready = threading.Event()
    agent.on_prepare = lambda: assert_(ready.wait(10))
    runner.start(sample_now=False)
    runner.tick()
    ready.set()
    until(lambda: agent.samples == 1)


def assert_(condition: bool) -> None:
    assert condition


def test_an_agent_that_hangs_is_said_once_and_leaves_samples_out(
    agent: Obedient, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    on = threading.Event()
    agent.on_sample = lambda: assert_(on.wait(10))
    runner.start(sample_now=True)
    time.sleep(0.2)
    for _ in range(3):
        runner.watch()
        runner.tick()
    on.set()
    until(lambda: runner.is_idle)
    assert agent.samples == 1
    assert caplog.text.count("not finished after 100ms") == 1
    assert "a sample is skipped" in caplog.text
    runner.tick()
    until(lambda: agent.samples == 2)


def test_ending_closes_the_agent(agent: Obedient, runner: Runner) -> None:
    runner.start(sample_now=True)
    runner.close()
    runner.join(5)
    assert agent.samples == 1
    assert agent.closed


def test_a_thread_that_an_error_ends_is_started_again_and_counted(
    agent: Obedient, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    agent.on_sample = raise_(SystemExit(3))
    runner.start(sample_now=True)
    until(lambda: not runner.is_alive)
    agent.on_sample = lambda: None
    runner.watch()
    until(lambda: runner.is_idle)
    runner.tick()
    until(lambda: agent.samples == 2 and runner.is_idle)
    assert agent.counters.restarts == 1
    assert "its thread failed and is started again" in caplog.text


def test_a_thread_that_cant_be_started_is_tried_again(
    agent: Obedient,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raise_no_thread)
        runner.start(sample_now=True)
        runner.watch()
    assert "no thread could be started: can't start new thread" in caplog.text
    runner.watch()
    until(lambda: agent.samples == 1)
    assert agent.counters.restarts == 2


def test_ending_does_not_wait_for_a_thread_that_never_started(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", raise_no_thread)
    runner.start(sample_now=True)
    runner.close()
    runner.join(5)
    assert not runner.is_alive


def raise_no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_closing_does_not_start_a_thread_again(agent: Obedient, runner: Runner) -> None:
    agent.on_sample = raise_(SystemExit(3))
    runner.start(sample_now=True)
    until(lambda: not runner.is_alive)
    runner.close()
    runner.watch()
    assert not runner.is_alive
    assert agent.counters.restarts == 0


def test_an_agent_that_cant_be_closed_ends_all_the_same(
    agent: Obedient,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(agent, "close", raise_(OSError(5, "Input/output error")))
    runner.start(sample_now=False)
    runner.close()
    runner.join(5)
    assert "it could not be closed" in caplog.text
    assert not runner.is_alive


class Taker(Transport):
    """Takes messages once the test lets it."""

    def __init__(self) -> None:
        super().__init__(SinkSettings(url="test:"))
        self.is_there = False

    def send(self, messages: Sequence[Message]) -> None:
        del messages
        if not self.is_there:
            raise RetryableError("away")


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_an_agent_writes_what_it_has_sent_when_that_is_acknowledged_or_on_disk(
    agent: Obedient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_on_disk: bool
) -> None:
    monkeypatch.setattr("ccagent.queue.sender._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("ccagent.queue.sender._LONGEST_PAUSE", 0.05)
    where = OutboxSettings(directory=str(tmp_path / "outbox") if is_on_disk else "")
    taker = Taker()
    sink = Sink("backend", SinkSettings(url="test:"), taker, where)
    runner = Runner(agent, Node(hostname="c1", cluster="x"), [sink])
    runner.start(sample_now=True)
    try:
        until(lambda: agent.counters.samples == 1 and runner.is_idle)
        if is_on_disk:
            until(lambda: agent.settlements == 1)
        else:
            assert agent.settlements == 0
        taker.is_there = True
        until(lambda: agent.settlements == 1 and sink.is_idle)
    finally:
        runner.close()
        runner.join(5)
        sink.close()
        sink.join(5)
    assert agent.settlements == 1


class Forgetful(Agent[AgentSettings]):
    """Remembers nothing of what it sent."""

    name = "forgetful"
    formats: ClassVar[frozenset[Format]] = frozenset({"sonar"})
    Settings = AgentSettings

    def sample(self, node: Node) -> Iterator[Record]:
        yield SysinfoEnvelope(meta=MetadataObject(producer="x", version="1.0.0"))


class CuriousSink(Sink):
    """Counts how often somebody asks whether its records are safe."""

    questions = 0

    @property
    def unsaved(self) -> int:
        self.questions += 1
        return super().unsaved


@pytest.mark.parametrize(("kind", "is_asked"), [(Forgetful, False), (Obedient, True)])
def test_only_an_agent_that_remembers_waits_until_its_records_are_safe(
    kind: type[Agent[AgentSettings]], *, is_asked: bool
) -> None:
    agent = Obedient() if kind is Obedient else kind(AgentSettings(), frozenset({"sonar"}))
    taker = Taker()
    taker.is_there = True
    sink = CuriousSink("files", SinkSettings(url="test:"), taker, OutboxSettings())
    runner = Runner(agent, Node(hostname="c1", cluster="x"), [sink])
    runner.start(sample_now=True)
    until(lambda: agent.counters.samples == 1 and runner.is_idle)
    runner.close()
    runner.join(5)
    sink.close()
    sink.join(5)
    assert (sink.questions > 0) is is_asked
