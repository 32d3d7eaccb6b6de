"""The daemon: one schedule for all agents, until a signal stops it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent import __version__
from ccagent.config.configuration import build_agent, build_transport
from ccagent.counters import Counters, resident_memory
from ccagent.daemon.notify import Notifier
from ccagent.daemon.runner import Runner
from ccagent.daemon.schedule import Schedule
from ccagent.daemon.signals import ReceivedSignals, ignore_signals, release_blocked
from ccagent.daemon.status import Status
from ccagent.daemon.status_socket import StatusSocket
from ccagent.daemon.wake_up import WakeUp
from ccagent.errors import CcagentError, ConfigurationError, NotPermittedError
from ccagent.log import logger, say
from ccagent.machine.background import BackgroundCall
from ccagent.machine.clock import Clock
from ccagent.machine.lock import Lock
from ccagent.machine.node import Node
from ccagent.machine.private_files import make_directory
from ccagent.queue.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ccagent.agents.base import Agent
    from ccagent.config.configuration import Configuration
    from ccagent.config.duration import Cadence
    from ccagent.transports.base import Transport

_LONGEST_WAIT = 5.0
"""The clock is looked at this often, in case it was set."""

_STOP_WITHIN = 4.5
_LOAD_WITHIN = 10.0
_AFTER_AN_ERROR = 1.0
_NOT_READ = f"not read within {_LOAD_WITHIN:g} s: does a file system hang?"
_LOCK = "ccagent.lock"
_OUTBOX_LOCK = "daemon.lock"


class _Plan(NamedTuple):
    """A configuration, with the agents and transports of it that do not run yet."""

    configuration: Configuration
    agents: dict[str, Agent[Any]]
    transports: dict[str, Transport]


class Daemon:
    """Runs the agents of a configuration.

    `load` returns the configuration, at the start and again at SIGHUP. It is called in a thread of
    its own: a file system that hangs stalls nothing. SIGTERM and SIGINT end the daemon, SIGUSR1
    has it log its counters. Without `serves_status` it belongs to a terminal, and SIGHUP ends it.
    """

    def __init__(
        self, load: Callable[[], Configuration], clock: Clock, *, serves_status: bool = False
    ) -> None:
        self._load = load
        self._clock = clock
        self._configuration: Configuration
        self._locks: dict[str, Lock] = {}
        self._runners: dict[str, tuple[Schedule | None, Runner]] = {}
        self._outboxes: dict[str, Sink] = {}
        self._leaving_runners: list[Runner] = []
        self._leaving_outboxes: list[Sink] = []
        self._stopping = False
        self._reload = False
        self._report = False
        self._loading: BackgroundCall[_Plan] | None = None
        self._loading_since = 0.0
        self._restarts = 0
        self._started = clock.monotonic()
        self._serves_status = serves_status
        self._handles_signals = False
        self._status_socket: StatusSocket | None = None
        self._notifier = Notifier()
        self._wake_up = WakeUp()
        self._signals = ReceivedSignals()
        self.is_output_closed = False
        """True once the reader of standard output has gone, which ended the daemon."""

    @property
    def is_idle(self) -> bool:
        """True when no agent samples, no message waits and no configuration is read."""
        outboxes = all(outbox.is_idle for outbox in self._outboxes.values())
        return outboxes and not self.is_sampling and not self.is_loading

    @property
    def is_sampling(self) -> bool:
        """True while one of the configured agents samples."""
        return not all(runner.is_idle for _, runner in self._runners.values())

    @property
    def is_loading(self) -> bool:
        """True while the configuration is read."""
        return self._loading is not None and not self._loading.is_done

    def stop(self) -> None:
        """Ask `run` to end. Any thread may call it."""
        self._stopping = True
        self._wake_up.set()

    def report(self) -> None:
        """Ask `run` to write its counters to the log. Any thread may call it."""
        self._report = True
        self._wake_up.set()

    def status(self) -> Status:
        """Return what was counted since the start."""
        settings = self._configuration.settings
        node = Node(hostname=settings.hostname, cluster=settings.cluster, clock=self._clock)
        counters = self.counters()
        return Status(
            version=__version__,
            cluster=node.cluster,
            node=node.hostname,
            pid=os.getpid(),
            seconds=self._clock.monotonic() - self._started,
            cpu_seconds=time.process_time(),
            resident_memory=resident_memory(),
            agents=counters.agents,
            sinks=counters.sinks,
            restarts=self._restarts + (self._status_socket.restarts if self._status_socket else 0),
        )

    def counters(self) -> Counters:
        """Return what agents and sinks have counted since the start. Any thread may call it."""
        return Counters(
            agents={name: runner.agent.counters for name, (_, runner) in [*self._runners.items()]},
            sinks={name: outbox.counters() for name, outbox in [*self._outboxes.items()]},
        )

    def reload(self) -> None:
        """Ask `run` to read the configuration again. Any thread may call it."""
        self._reload = True
        self._wake_up.set()

    def run(self) -> None:
        """Run until stopped. Raises CcagentError before it samples."""
        try:
            plan = self._first_plan()
            if plan is None:
                return
            self._start(plan)
            while not self._is_stopped():
                try:
                    self._turn()
                except Exception:  # noqa: BLE001 - nobody foresaw it, and the agents go on
                    self._restarts += 1
                    logger.exception("the scheduling loop failed and is started again")
                    self._clock.sleep(_AFTER_AN_ERROR)
            self._notifier.stopping()
        finally:
            self._end()

    def handle_signals(self) -> None:
        """Handle SIGTERM, SIGINT, SIGHUP and SIGUSR1, from now until the process ends."""
        self._handles_signals = True
        self._signals.receive(self._wake_up.writer, respects_nohup=not self._serves_status)
        release_blocked()

    def _is_stopped(self) -> bool:
        """Do what the signals ask for that arrived; return whether the daemon is to end."""
        for number in self._signals.take():
            if number == signal.SIGUSR1:
                self._report = True
            elif number == signal.SIGHUP and self._serves_status:
                self._reload = True
            else:
                self._stopping = True
        return self._stopping

    def _first_plan(self) -> _Plan | None:
        """Read the configuration; return None if the daemon was stopped meanwhile.

        Raises CcagentError if it takes too long.
        """
        loading = self._start_loading()
        deadline = time.monotonic() + _LOAD_WITHIN
        while not loading.is_done:
            rest = deadline - time.monotonic()
            if self._is_stopped():
                return None
            if rest <= 0:
                # No ConfigurationError, after which systemd does not start it again.
                raise CcagentError(f"configuration: {_NOT_READ}")
            Clock().wait(min(rest, _LONGEST_WAIT), self._wake_up.descriptor)
            self._wake_up.clear()
        self._loading = None
        return loading.result()

    def _start(self, plan: _Plan) -> None:
        """Take the locks, open the status socket, and start all agents and sinks."""
        settings = plan.configuration.settings
        self._configuration = plan.configuration
        if settings.lock_directory:
            path = os.path.join(settings.lock_directory, _LOCK)
            self._locks[path] = Lock(path, "lock-directory")
        self._lock_outboxes(plan)
        if self._serves_status and settings.status_socket:
            self._status_socket = StatusSocket(settings.status_socket, self.status)
        self._apply(plan)
        self._announce("started")
        self._notifier.ready(self._summary())

    def _lock_outboxes(self, plan: _Plan) -> None:
        """Make sure that no other daemon has this outbox directory. Raises LockedError."""
        where = plan.configuration.outbox
        path = os.path.join(where.directory, _OUTBOX_LOCK)
        if not where.directory or where.memory or path in self._locks:
            return
        try:
            make_directory(where.directory)
            self._locks[path] = Lock(path, "outbox.directory")
        except (OSError, NotPermittedError, ConfigurationError) as error:
            # Its messages wait in memory then, which the sinks log.
            logger.error("%s: no lock: another daemon may use it: %s", where.directory, error)

    def _turn(self) -> None:
        """Do what is due, then wait for what comes next."""
        self._notifier.alive()
        self._read_again()
        if self._report:
            self._report = False
            say(f"status: {self.status().line()}")
        self._tick()
        self._retire()
        if self._has_lost_its_reader():
            self.is_output_closed = self._stopping = True
        self._clock.wait(self._until_next(), self._wake_up.descriptor)
        self._wake_up.clear()

    def _tick(self) -> None:
        now = self._clock.time()
        for schedule, runner in self._runners.values():
            runner.watch()
            if schedule is not None and schedule.is_due(now):
                runner.tick()

    def _until_next(self) -> float:
        if self._stopping or self._report or (self._reload and self._loading is None):
            return 0.0
        now = self._clock.time()
        longest = min(_LONGEST_WAIT, (self._notifier.watchdog or math.inf) / 2)
        ticks = [schedule.next for schedule, _ in self._runners.values() if schedule is not None]
        return max(0.0, min(min(ticks, default=now + longest) - now, longest))

    def _has_lost_its_reader(self) -> bool:
        """Return whether nobody reads standard output any more, and a sink writes to it."""
        if not any(box.settings.url.startswith("stdout:") for box in self._outboxes.values()):
            return False
        from ccagent.transports.stdout import has_reader

        return not has_reader()

    def _read_again(self) -> None:
        """Start reading a changed configuration, or apply the one that was read.

        The old one stays if the new one is bad, or can't be read in time.
        """
        try:
            if self._loading is None:
                if not self._reload:
                    return
                self._reload = False
                self._notifier.reloading()
                self._start_loading()
                return
            if not self._loading.is_done:
                if self._clock.monotonic() - self._loading_since < _LOAD_WITHIN:
                    return
                self._loading = None
                raise ConfigurationError(_NOT_READ)  # noqa: TRY301 - as all that can go wrong
            loading, self._loading = self._loading, None
            plan = loading.result()
            try:
                self._apply(plan)
            except BaseException:
                self._close_unused(plan.agents)
                raise
        except Exception as error:  # noqa: BLE001 - the old configuration works
            if isinstance(error, CcagentError):
                logger.error("configuration not read again, the old one stays: %s", error)
            else:
                logger.exception("configuration not read again, the old one stays")
            self._notifier.ready(f"configuration not read again, the old one stays: {error}")
            return
        self._announce("configuration read again")
        self._notifier.ready(self._summary())

    def _announce(self, event: str) -> None:
        """Log what runs, however quiet the log is; not for a command typed at a terminal."""
        if self._serves_status:
            from ccagent.daemon.announcement import describe_run

            say(f"{event}: {describe_run(self._configuration)}")

    def _start_loading(self) -> BackgroundCall[_Plan]:
        self._loading_since = self._clock.monotonic()
        self._loading = BackgroundCall(self._plan, self._wake_up.set)
        return self._loading

    def _plan(self) -> _Plan:
        """Read the configuration and build what it has and the daemon does not run yet.

        Raises ConfigurationError before anything is changed.
        """
        configuration = self._load()
        transports = {
            name: build_transport(sink)
            for name, sink in configuration.sinks.items()
            if name not in self._outboxes
            or self._outboxes[name].settings != sink
            or configuration.outbox != self._configuration.outbox
        }
        agents: dict[str, Agent[Any]] = {}
        try:
            for name in configuration.agents:
                if not self._goes_on(name, configuration):
                    agents[name] = build_agent(configuration, name)
        except BaseException:
            self._close_unused(agents)
            raise
        return _Plan(configuration, agents, transports)

    def _close_unused(self, agents: dict[str, Agent[Any]]) -> None:
        """Close the agents of a plan that is discarded, but for those that run already."""
        running = [runner.agent for _, runner in [*self._runners.values()]]
        for name, agent in agents.items():
            if agent not in running:
                with _others_go_on(f"agent {name}"):
                    agent.close()

    def _summary(self) -> str:
        """Return a line about what runs."""
        return f"agents: {', '.join(self._runners)}; sinks: {', '.join(self._outboxes) or 'none'}"

    def _apply(self, plan: _Plan) -> None:
        """Start what a plan has built, and retire what it replaces or no longer has.

        Agents and sinks whose settings are unchanged go on as they are. All new outboxes are
        opened before anything is changed. Raises LockedError.
        """
        configuration = plan.configuration
        settings = configuration.settings
        node = Node(hostname=settings.hostname, cluster=settings.cluster, clock=self._clock)
        node.own_counters = self.counters
        old = self._configuration.settings
        if settings.lock_directory != old.lock_directory:
            logger.warning("lock-directory: a change takes effect when the daemon is restarted")
        if settings.status_socket != old.status_socket:
            logger.warning("status-socket: a change takes effect when the daemon is restarted")
        self._lock_outboxes(plan)
        opened = self._open_outboxes(plan)
        for name in [*self._runners]:
            if name in plan.agents or name not in configuration.agents:
                _, runner = self._runners.pop(name)
                runner.close()
                self._leaving_runners.append(runner)
        self._replace_outboxes(configuration, opened)
        for name in configuration.agents:
            boxes = [self._outboxes[sink] for sink in configuration.sinks_of(name)]
            if name in plan.agents:
                agent = plan.agents[name]
                runner = Runner(agent, node, boxes, prefix=settings.topic_prefix)
                self._runners[name] = (self._schedule(agent.settings.every), runner)
                runner.start(sample_now=agent.settings.on_startup)
            else:
                self._runners[name][1].outboxes = boxes
        self._configuration = configuration

    def _open_outboxes(self, plan: _Plan) -> dict[str, Sink]:
        """Open the outboxes of new and changed sinks: all of them, or none."""
        opened: dict[str, Sink] = {}
        configuration = plan.configuration
        try:
            for name, transport in plan.transports.items():
                sink = configuration.sinks[name]
                opened[name] = Sink(name, sink, transport, configuration.outbox)
        except BaseException:
            for outbox in opened.values():
                outbox.close()
            raise
        return opened

    def _replace_outboxes(self, configuration: Configuration, opened: dict[str, Sink]) -> None:
        """Put new outboxes in the place of old ones, which hand over their backlog at once."""
        for name, outbox in [*self._outboxes.items()]:
            if name in opened or name not in configuration.sinks:
                self._leaving_outboxes.append(self._outboxes.pop(name))
            if name not in configuration.sinks and not outbox.is_idle:
                backlog = outbox.counters().backlog
                logger.info(
                    "sink %s: removed; it goes on until %d messages are sent", name, backlog
                )
        self._outboxes |= opened
        for outbox in self._leaving_outboxes:
            if outbox.name in self._outboxes:
                outbox.retire(self._outboxes[outbox.name])

    def _goes_on(self, name: str, configuration: Configuration) -> bool:
        """Return whether a running agent can stay, with what it knows of the last sample."""
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

    def _retire(self) -> None:
        """Close removed sinks once they are idle, and forget agents and sinks that have ended.

        A removed sink drains its backlog before. It stays open while an agent, even one that
        hangs, may still put a message into it. A replaced sink has ended by itself.
        """
        self._leaving_runners = [old for old in self._leaving_runners if old.is_alive]
        runners = [*self._leaving_runners, *(runner for _, runner in self._runners.values())]
        for outbox in self._leaving_outboxes:
            is_removed = outbox.name not in self._outboxes
            if is_removed and outbox.is_idle and not any(each.uses(outbox) for each in runners):
                outbox.close()
        self._leaving_outboxes = [old for old in self._leaving_outboxes if old.is_alive]

    def _end(self) -> None:
        """Let everybody finish what is in hand, agents first, within a few seconds."""
        try:
            self._end_agents_and_sinks()
        finally:
            if self._status_socket is not None:
                self._status_socket.close()
            for lock in self._locks.values():
                lock.release()
            self._locks.clear()
            self._notifier.close()
            if self._handles_signals:
                ignore_signals()
            self._wake_up.close()

    def _end_agents_and_sinks(self) -> None:
        deadline = self._clock.monotonic() + _STOP_WITHIN
        runners = [runner for _, runner in self._runners.values()]
        runners += self._leaving_runners
        outboxes = [*self._outboxes.values(), *self._leaving_outboxes]
        for runner in runners:
            with _others_go_on(f"agent {runner.agent.name}"):
                runner.close()
        for runner in runners:
            with _others_go_on(f"agent {runner.agent.name}"):
                runner.join((deadline - self._clock.monotonic()) / 2)
        for outbox in self._leaving_outboxes:
            if outbox.name in self._outboxes:
                with _others_go_on(f"sink {outbox.name}"):
                    outbox.join((deadline - self._clock.monotonic()) / 2)
        for outbox in outboxes:
            with _others_go_on(f"sink {outbox.name}"):
                outbox.close()
        for outbox in outboxes:
            with _others_go_on(f"sink {outbox.name}"):
                outbox.join(deadline - self._clock.monotonic())


@contextlib.contextmanager
def _others_go_on(name: str) -> Generator[None]:
    """Log an unforeseen exception while an agent or sink is closed, and go on with the others."""
    try:
        yield
    except Exception:  # noqa: BLE001 - it must not cost the others their end
        logger.exception("%s: unforeseen error while it was closed", name)


def check_runnable(configuration: Configuration) -> None:
    """Raise ConfigurationError for what only the daemon needs: agents, and when they are due."""
    if not configuration.agents:
        raise ConfigurationError(f"{configuration.place}: no [agents.NAME]: nothing to run")
    for name, settings in configuration.agents.items():
        if settings.every is None and not settings.on_startup:
            raise ConfigurationError(
                f"{configuration.place}: agents.{name}.every: missing; how often is it to run?"
            )
