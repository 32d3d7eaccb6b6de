"""A daemon without real time: its clock is a script, its agent and receivers obey the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ccagent.agents.base import Agent, AgentSettings
from ccagent.config.configuration import Configuration, check
from ccagent.daemon.daemon import Daemon
from ccagent.errors import ConfigurationError
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.envelopes import SysinfoEnvelope
from ccagent.records.json_encoding import KVPair, MetadataObject
from ccagent.records.message import Format, Message, Record
from ccagent.transports.base import SinkSettings, Transport

Script = Generator[float | None]
"""Yields the seconds that pass until the next turn of the daemon; None: no time passes."""


def until(condition: Callable[[], object]) -> None:
    """Wait for what other threads do."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        time.sleep(0.001)


class Orders:
    """What the test makes agent and receivers do, and what they have done."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was done, and obey nothing."""
        self.samples = 0
        self.hosts: list[str] = []
        self.taken: dict[str, list[int]] = {}
        self.on_sample: Callable[[int], None] = _nothing
        self.on_send: Callable[[str], None] = _nothing


def _nothing(_: object) -> None:
    pass


orders = Orders()


class ScriptedAgent(Agent[AgentSettings]):
    """Emits a numbered envelope a sample."""

    name = "scripted"
    formats: ClassVar[frozenset[Format]] = frozenset({"sonar"})
    Settings = AgentSettings

    def sample(self, node: Node) -> Iterator[Record]:
        orders.samples = number = orders.samples + 1
        orders.hosts.append(node.hostname)
        orders.on_sample(number)
        attributes = [KVPair(key="number", value=str(number))]
        yield SysinfoEnvelope(meta=MetadataObject(producer="x", version="1.0.0", attrs=attributes))


class ScriptedTransport(Transport):
    """Takes messages for its URL, `scripted:NAME`, unless the test makes it fail or wait."""

    def __init__(self, settings: SinkSettings) -> None:
        self._url = settings.url
        if settings.url == "scripted:bad":
            raise ConfigurationError("scripted:bad: it can't be built")
        if settings.url == "scripted:bug":
            raise ZeroDivisionError("a bug")

    def send(self, messages: Sequence[Message]) -> None:
        orders.on_send(self._url)
        for message in messages:
            number = int(message.body.partition(b'"value":"')[2].partition(b'"')[0])
            orders.taken.setdefault(self._url, []).append(number)


class ScriptedClock(Clock):
    """Passes time as a script says, which runs whenever the daemon waits."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.5
        self.steady = 100.0
        self.script: Script
        self.on_end: Callable[[], None] = lambda: None
        self.error: BaseException | None = None

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.steady

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds

    def wait(self, seconds: float, descriptor: int) -> None:
        del seconds, descriptor
        try:
            self.sleep(next(self.script) or 0.0)
        except StopIteration:
            self.on_end()
        except BaseException as error:  # noqa: BLE001 - the daemon would log it and go on
            self.error = error
            self.on_end()


class Scene:
    """A daemon with a scripted clock, and its configuration."""

    def __init__(self, directory: Path) -> None:
        self.table: dict[str, Any] = {
            "cluster": "x",
            "hostname": "c1",
            "outbox": {"directory": str(directory)},
            "agents": {"scripted": {"every": "1s"}},
            "sinks": {"one": {"url": "scripted:a"}},
        }
        self.on_load: Callable[[], None] = lambda: None
        self.clock = ScriptedClock()
        self.daemon = Daemon(self._load, self.clock)
        self.clock.on_end = self.daemon.stop
        self._held: list[threading.Event] = []

    def play(self, script: Script) -> None:
        """Run the daemon until the script ends."""
        self.clock.script = script
        self.daemon.run()
        if self.clock.error is not None:
            raise self.clock.error

    def turns_until(self, condition: Callable[[], object]) -> Script:
        """Have the daemon take turns, without time passing, until something is the case."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within 60 s"
            time.sleep(0.001)
            yield None

    def tick(self) -> Script:
        """Advance the clock by a second, and wait for the end of the sample that is due then."""
        yield 1.0
        yield from self.turns_until(lambda: not self.daemon.is_sampling)

    def reload(self) -> Script:
        """Have the daemon read the configuration again, and wait for the end of that."""
        self.daemon.reload()
        yield None
        yield from self.turns_until(lambda: not self.daemon.is_loading)
        yield None

    def hold(self) -> threading.Event:
        """Return an event to hang on, which is set at the latest when the test ends."""
        event = threading.Event()
        self._held.append(event)
        return event

    def release(self) -> None:
        """Release everything that hangs."""
        for event in self._held:
            event.set()

    def _load(self) -> Configuration:
        self.on_load()
        return check(self.table, "test")
