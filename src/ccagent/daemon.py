"""The daemon: one schedule for all agents, until it is told to stop."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from typing import TYPE_CHECKING

from ccagent import __version__
from ccagent.config import build_agent, build_transport
from ccagent.counters import Counters, resident_memory
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.lock import Lock
from ccagent.log import logger, say
from ccagent.node import Node
from ccagent.notify import Notifier
from ccagent.queue.sink import Sink
from ccagent.runner import Runner
from ccagent.schedule import Schedule
from ccagent.status import Status
from ccagent.status_socket import StatusSocket

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ccagent.clock import Clock
    from ccagent.config import Configuration
    from ccagent.duration import Cadence

_LONGEST_WAIT = 5.0
"""The clock is looked at this often, in case it was set."""

_STOP_WITHIN = 4.5


class Daemon:
    """Runs the agents of a configuration.

    `load` gives the configuration, at the start and again at SIGHUP. SIGTERM and SIGINT end it,
    SIGUSR1 has it log its counters.
    """

    def __init__(
        self, load: Callable[[], Configuration], clock: Clock, *, serves_status: bool = False
    ) -> None:
        self._load = load
        self._clock = clock
        self._configuration = load()
        self._lock: Lock | None = None
        self._runners: dict[str, tuple[Schedule | None, Runner]] = {}
        self._outboxes: dict[str, Sink] = {}
        self._leaving_runners: list[Runner] = []
        self._leaving_outboxes: list[Sink] = []
        self._stopping = False
        self._reload = False
        self._report = False
        self._began = clock.monotonic()
        self._serves_status = serves_status
        self._status_socket: StatusSocket | None = None
        self._notifier = Notifier()
        self._wake_up, self._woken = os.pipe()
        os.set_blocking(self._wake_up, False)
        os.set_blocking(self._woken, False)

    @property
    def is_idle(self) -> bool:
        """True when no agent samples and no message waits."""
        runners = all(runner.is_idle for _, runner in self._runners.values())
        return runners and all(outbox.is_idle for outbox in self._outboxes.values())

    def stop(self) -> None:
        """Ask `run` to end. May be called from a signal handler."""
        self._stopping = True
        self._wake()

    def report(self) -> None:
        """Ask `run` to write its counters to the log. May be called from a signal handler."""
        self._report = True
        self._wake()

    def status(self) -> Status:
        """Give what was counted since the start."""
        settings = self._configuration.settings
        node = Node(hostname=settings.hostname, cluster=settings.cluster, clock=self._clock)
        counters = self.counters()
        return Status(
            version=__version__,
            cluster=node.cluster,
            node=node.hostname,
            pid=os.getpid(),
            seconds=self._clock.monotonic() - self._began,
            cpu_seconds=time.process_time(),
            resident_memory=resident_memory(),
            agents=counters.agents,
            sinks=counters.sinks,
        )

    def counters(self) -> Counters:
        """Give what agents and sinks have counted since the start. Any thread may ask."""
        return Counters(
            agents={name: runner.agent.counters for name, (_, runner) in [*self._runners.items()]},
            sinks={name: outbox.counters() for name, outbox in [*self._outboxes.items()]},
        )

    def reload(self) -> None:
        """Ask `run` to read the configuration again. May be called from a signal handler."""
        self._reload = True
        self._wake()

    def run(self) -> None:
        """Run until told to stop. Raises LockedError or ConfigurationError before it begins."""
        directory = self._configuration.settings.lock_directory
        if directory:
            self._lock = Lock(directory)
        if self._serves_status and self._configuration.settings.status_socket:
            path = self._configuration.settings.status_socket
            self._status_socket = StatusSocket(path, self.status)
        try:
            self._apply(self._configuration)
            self._notifier.ready(self._summary())
            while not self._stopping:
                self._notifier.alive()
                if self._reload:
                    self._reload = False
                    self._read_again()
                if self._report:
                    self._report = False
                    say(f"status: {self.status().line()}")
                self._tick()
                self._see_off()
                self._clock.wait(self._until_next(), self._wake_up)
                self._drain_wake_ups()
        finally:
            self._notifier.stopping()
            self._end()

    def handle_signals(self) -> None:
        """Let SIGTERM and SIGINT end the daemon, SIGHUP reload it, SIGUSR1 log its counters."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP:
                self.reload()
            elif number == signal.SIGUSR1:
                self.report()
            else:
                self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, on_signal)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # when it has enough to wake up for
            os.write(self._woken, b"x")

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_up, 512):
                pass

    def _tick(self) -> None:
        now = self._clock.time()
        for schedule, runner in self._runners.values():
            runner.watch()
            if schedule is not None and schedule.is_due(now):
                runner.tick()

    def _until_next(self) -> float:
        if self._stopping or self._reload or self._report:
            return 0.0
        now = self._clock.time()
        longest = min(_LONGEST_WAIT, (self._notifier.watchdog or math.inf) / 2)
        ticks = [schedule.next for schedule, _ in self._runners.values() if schedule is not None]
        return max(0.0, min(min(ticks, default=now + longest) - now, longest))

    def _read_again(self) -> None:
        """Take over a changed configuration; keep the old one if the new one is bad."""
        self._notifier.reloading()
        try:
            configuration = self._load()
            self._apply(configuration)
        except CcagentError as error:
            logger.error("configuration not read again, the old one stays: %s", error)
            self._notifier.ready(f"configuration not read again, the old one stays: {error}")
            return
        logger.info("configuration read again")
        self._notifier.ready(self._summary())

    def _summary(self) -> str:
        """Tell in a line what runs."""
        return f"agents: {', '.join(self._runners)}; sinks: {', '.join(self._outboxes) or 'none'}"

    def _apply(self, configuration: Configuration) -> None:
        """Start what the configuration has and the daemon hasn't, and let go of the rest.

        Agents and sinks whose settings are unchanged go on as they are. All new ones are made
        before anything is changed, so that a bad configuration changes nothing.
        """
        settings = configuration.settings
        node = Node(hostname=settings.hostname, cluster=settings.cluster, clock=self._clock)
        node.own_counters = self.counters
        old = self._configuration.settings
        if settings.lock_directory != old.lock_directory:
            logger.warning("lock-directory: a change takes effect when the daemon is restarted")
        if settings.status_socket != old.status_socket:
            logger.warning("status-socket: a change takes effect when the daemon is restarted")
        transports = {
            name: build_transport(sink)
            for name, sink in configuration.sinks.items()
            if name not in self._outboxes
            or self._outboxes[name].settings != sink
            or configuration.outbox != self._configuration.outbox
        }
        agents = {
            name: build_agent(configuration, name)
            for name in configuration.agents
            if not self._goes_on(name, configuration)
        }
        for name in [*self._runners]:
            if name in agents or name not in configuration.agents:
                _, runner = self._runners.pop(name)
                runner.close()
                self._leaving_runners.append(runner)
        for name in [*self._outboxes]:
            if name in transports or name not in configuration.sinks:
                self._leaving_outboxes.append(self._outboxes.pop(name))
        for name, transport in transports.items():
            self._outboxes[name] = Sink(
                name, configuration.sinks[name], transport, configuration.outbox
            )
        for name in configuration.agents:
            boxes = [self._outboxes[sink] for sink in configuration.sinks_of(name)]
            if name in agents:
                runner = Runner(agents[name], node, boxes, prefix=settings.topic_prefix)
                self._runners[name] = (self._schedule(agents[name].settings.every), runner)
                runner.start(sample_now=agents[name].settings.on_startup)
            else:
                self._runners[name][1].outboxes = boxes
        self._configuration = configuration

    def _goes_on(self, name: str, configuration: Configuration) -> bool:
        """Tell whether a running agent can stay, with what it knows of the last sample."""
        if name not in self._runners:
            return False
        agent, old = self._runners[name][1].agent, self._configuration.settings
        new = configuration.settings
        return (
            agent.settings == configuration.agents[name]
            and agent.wanted == configuration.formats_of(name)
            and (old.cluster, old.hostname, old.topic_prefix)
            == (new.cluster, new.hostname, new.topic_prefix)
        )

    def _schedule(self, every: Cadence | None) -> Schedule | None:
        return None if every is None else Schedule(every.seconds, self._clock.time())

    def _see_off(self) -> None:
        """Close the sinks that a reload has replaced, once nothing goes to them any more.

        What waits for one is left to the sink that has its name now. One whose name has gone goes
        on until it has sent what it has.
        """
        self._leaving_runners = [old for old in self._leaving_runners if old.is_alive]
        if self._leaving_runners:
            return
        self._hand_over()
        for outbox in self._leaving_outboxes:
            if outbox.is_idle:
                outbox.close()
        self._leaving_outboxes = [old for old in self._leaving_outboxes if old.is_alive]

    def _hand_over(self) -> list[Sink]:
        """Leave what waits for replaced sinks to their successors; give the replaced."""
        replaced = [old for old in self._leaving_outboxes if old.name in self._outboxes]
        for outbox in replaced:
            outbox.hand_over(self._outboxes[outbox.name])
        return replaced

    def _end(self) -> None:
        """Let everybody finish what is in hand, agents first, within a few seconds."""
        deadline = self._clock.monotonic() + _STOP_WITHIN
        runners = [runner for _, runner in self._runners.values()]
        runners += self._leaving_runners
        outboxes = [*self._outboxes.values(), *self._leaving_outboxes]
        for runner in runners:
            runner.close()
        for runner in runners:
            runner.join((deadline - self._clock.monotonic()) / 2)
        for outbox in self._hand_over():
            outbox.join((deadline - self._clock.monotonic()) / 2)
        for outbox in outboxes:
            outbox.close()
        for outbox in outboxes:
            outbox.join(deadline - self._clock.monotonic())
        if self._status_socket is not None:
            self._status_socket.close()
        if self._lock is not None:
            self._lock.release()
        self._notifier.close()
        os.close(self._wake_up)
        os.close(self._woken)


def check_runnable(configuration: Configuration) -> None:
    """Raise ConfigurationError for what only the daemon needs: agents, and when they are due."""
    if not configuration.agents:
        raise ConfigurationError(f"{configuration.place}: no [agents.NAME]: nothing to run")
    for name, settings in configuration.agents.items():
        if settings.every is None and not settings.on_startup:
            raise ConfigurationError(
                f"{configuration.place}: agents.{name}.every: missing; how often is it to run?"
            )
