"""The daemon: one schedule for all agents, until a signal stops it."""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING

from ccagent.commit import version
from ccagent.config.options import public_url
from ccagent.daemon.agents_and_sinks import AgentsAndSinks, Plan
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, say
from ccagent.machine.background import BackgroundCall
from ccagent.machine.clock import Clock
from ccagent.machine.node import read_host_name
from ccagent.machine.own_memory import read_resident, share_heap
from ccagent.service.instance import Lock, Notifier, lock_directory
from ccagent.service.signals import ReceivedSignals, WakeUp, ignore_signals, release_blocked
from ccagent.service.status_socket import Status, StatusSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.base import AgentSettings
    from ccagent.config.configuration import Configuration


_LONGEST_WAIT = 5.0
"""Maximum seconds between two readings of the clock, which may be set."""

_STOP_WITHIN = 4.5
_LOAD_WITHIN = 10.0
_AFTER_AN_ERROR = 1.0
_NOT_READ = f"not read within {_LOAD_WITHIN:g} s: does a file system hang?"
_LOCK = "ccagent.lock"
_OUTBOX_LOCK = "daemon.lock"


class Daemon:
    """Runs the agents of a configuration.

    `load` returns the configuration, at the start and again at SIGHUP. It is called in a separate
    thread, because a file system may hang. SIGTERM and SIGINT end the daemon. SIGUSR1 writes the
    counters to the log. Without `serves_status` the daemon belongs to a terminal, and SIGHUP ends
    it.
    """

    def __init__(
        self, load: Callable[[], Configuration], clock: Clock, *, serves_status: bool = False
    ) -> None:
        self._load = load
        self._clock = clock
        self._configuration: Configuration
        self._locks: dict[str, Lock] = {}
        self._running = AgentsAndSinks(clock)
        self._stopping = False
        self._reload = False
        self._report = False
        self._loading: BackgroundCall[Plan] | None = None
        self._loading_since = 0.0
        self._restarts = 0
        self._started = clock.monotonic()
        self._serves_status = serves_status
        self._handles_signals = False
        self._status_socket: StatusSocket | None = None
        self._host = ""
        self._notifier = Notifier()
        self._wake_up = WakeUp()
        self._signals = ReceivedSignals()
        self.is_output_closed = False
        """True if the daemon ended because the reader of standard output is closed."""

    @property
    def is_idle(self) -> bool:
        """True when no agent samples, all queues are empty and no configuration is being read."""
        return self._running.is_idle and not self.is_loading

    @property
    def is_sampling(self) -> bool:
        """True while one of the configured agents samples."""
        return self._running.is_sampling

    @property
    def is_loading(self) -> bool:
        """True while the configuration is being read."""
        return self._loading is not None and not self._loading.is_done

    def stop(self) -> None:
        """Ask `run` to end. Any thread may call this."""
        self._stopping = True
        self._wake_up.set()

    def report(self) -> None:
        """Ask `run` to write its counters to the log. Any thread may call this."""
        self._report = True
        self._wake_up.set()

    def status(self) -> Status:
        """Return the counters since the start."""
        node = self._configuration.settings.make_node(self._clock)
        counters = self._running.counters()
        return Status(
            version=version(),
            cluster=node.cluster,
            node=node.hostname,
            pid=os.getpid(),
            seconds=self._clock.monotonic() - self._started,
            cpu_seconds=time.process_time(),
            resident_memory=read_resident() // 1024,
            agents=counters.agents,
            sinks=counters.sinks,
            restarts=self._restarts + (self._status_socket.restarts if self._status_socket else 0),
            details=self._running.describe(),
        )

    def reload(self) -> None:
        """Ask `run` to read the configuration again. Any thread may call this."""
        self._reload = True
        self._wake_up.set()

    def run(self) -> None:
        """Run until stopped. Raise CcagentError if the start fails, before any sample."""
        share_heap()
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
        """Handle the received signals. Return whether the daemon must end."""
        for number in self._signals.take():
            if number == signal.SIGUSR1:
                self._report = True
            elif number == signal.SIGHUP and self._serves_status:
                self._reload = True
            else:
                self._stopping = True
        return self._stopping

    def _first_plan(self) -> Plan | None:
        """Read the configuration. Return None if the daemon was stopped during the reading.

        Raise CcagentError if the reading takes too long.
        """
        loading = self._start_loading()
        deadline = time.monotonic() + _LOAD_WITHIN
        while not loading.is_done:
            rest = deadline - time.monotonic()
            if self._is_stopped():
                return None
            if rest <= 0:
                # Not a ConfigurationError: after that systemd does not restart the daemon.
                raise CcagentError(f"configuration: {_NOT_READ}")
            Clock().wait(min(rest, _LONGEST_WAIT), self._wake_up.descriptor)
            self._wake_up.clear()
        self._loading = None
        return loading.result()

    def _start(self, plan: Plan) -> None:
        """Take the locks, open the status socket, and start all agents and sinks."""
        settings = plan.configuration.settings
        self._configuration = plan.configuration
        if settings.lock_directory:
            path = os.path.join(settings.lock_directory, _LOCK)
            self._locks[path] = Lock(path, "lock-directory")
        self._lock_outboxes(plan)
        if self._serves_status and settings.status_socket:
            self._status_socket = StatusSocket(settings.status_socket, self.status)
        self._running.apply(plan)
        self._announce("started")
        self._notifier.ready(self._running.summary())

    def _lock_outboxes(self, plan: Plan) -> None:
        """Lock the outbox directory. Raise LockedError if another daemon has the lock."""
        where = plan.configuration.outbox
        path = os.path.join(where.directory, _OUTBOX_LOCK)
        if not where.directory or where.memory or path in self._locks:
            return
        try:
            self._locks[path] = lock_directory(where.directory, _OUTBOX_LOCK, "outbox.directory")
        except ConfigurationError as error:
            # The sinks then queue their messages in memory, and log this.
            logger.error("%s: no lock: another daemon may use it: %s", where.directory, error)

    def _turn(self) -> None:
        """Do all due work, then wait for the next event or tick."""
        self._notifier.alive()
        self._notice_name()
        self._read_again()
        if self._report:
            self._report = False
            say(f"status: {self.status().line()}")
        self._running.tick(self._clock.time())
        self._running.retire()
        if self._has_lost_its_reader():
            self.is_output_closed = self._stopping = True
        self._clock.wait(self._until_next(), self._wake_up.descriptor)
        self._wake_up.clear()

    def _notice_name(self) -> None:
        """Reload if the host name has changed, for example by DHCP after the start."""
        before, self._host = self._host, read_host_name()
        if before not in {"", self._host} and not self._configuration.settings.hostname:
            logger.warning("the name of this machine was %s and is %s now", before, self._host)
            self._reload = True

    def _until_next(self) -> float:
        if self._stopping or self._report or (self._reload and self._loading is None):
            return 0.0
        now = self._clock.time()
        longest = min(_LONGEST_WAIT, (self._notifier.watchdog or math.inf) / 2)
        return max(0.0, min(self._running.next_tick(now + longest) - now, longest))

    def _has_lost_its_reader(self) -> bool:
        """Return whether a sink writes to standard output and its reader is closed."""
        if not self._running.has_standard_output:
            return False
        from ccagent.transports.stdout import has_reader

        return not has_reader()

    def _read_again(self) -> None:
        """Start reading a changed configuration, or apply the one that was read.

        The old configuration stays if the new one is invalid, or can't be read in time.
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
                self._running.close_unused(plan.agents)
                raise
        except Exception as error:  # noqa: BLE001 - the old configuration works
            if isinstance(error, CcagentError):
                logger.error("configuration not read again, the old one stays: %s", error)
            else:
                logger.exception("configuration not read again, the old one stays")
            self._notifier.ready(f"configuration not read again, the old one stays: {error}")
            return
        self._announce("configuration read again")
        self._notifier.ready(self._running.summary())

    def _announce(self, event: str) -> None:
        """Log the running agents and sinks at any log level; not in a terminal command."""
        if self._serves_status:
            say(f"{event}: {describe_run(self._configuration)}")

    def _start_loading(self) -> BackgroundCall[Plan]:
        self._loading_since = self._clock.monotonic()
        self._loading = BackgroundCall(
            lambda: self._running.make_plan(self._load()), "configuration", self._wake_up.set
        )
        return self._loading

    def _apply(self, plan: Plan) -> None:
        """Apply a plan. Raise LockedError for a locked outbox directory, before any change."""
        old, new = self._configuration.settings, plan.configuration.settings
        if new.lock_directory != old.lock_directory:
            logger.warning("lock-directory: a change takes effect when the daemon is restarted")
        if new.status_socket != old.status_socket:
            logger.warning("status-socket: a change takes effect when the daemon is restarted")
        self._lock_outboxes(plan)
        self._running.apply(plan)
        self._configuration = plan.configuration

    def _end(self) -> None:
        """End all after their current work, agents first, within a few seconds."""
        try:
            self._running.end(_STOP_WITHIN)
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


def check_runnable(configuration: Configuration) -> None:
    """Raise ConfigurationError if the daemon's requirements are missing: agents, cadences."""
    if not configuration.agents and "exporter" not in configuration.tables:
        raise ConfigurationError(f"{configuration.place}: no [agents.NAME]: nothing to run")
    for name in configuration.agents_without_cadence:
        raise ConfigurationError(
            f"{configuration.place}: agents.{name}.every: missing; set the agent's interval"
        )


def describe_run(configuration: Configuration) -> str:
    """Return version, file, agents with their cadence, and sinks without secrets."""
    agents: list[str] = []
    for name, settings in configuration.agents.items():
        chosen = configuration.sinks_of(name)
        goal = "" if chosen == [*configuration.sinks] else f" to {', '.join(chosen)}"
        agents.append(f"{name} {_cadence(settings)}{goal}")
    sinks = [f"{name} {public_url(sink.url)}" for name, sink in configuration.sinks.items()]
    return (
        f"ccagent {version()} with {configuration.place}; agents: {'; '.join(agents)}; "
        f"sinks: {'; '.join(sinks)}"
    )


def _cadence(settings: AgentSettings) -> str:
    if settings.every is None:
        return "at the start"
    return f"every {settings.every}" + (" and at the start" if settings.on_startup else "")
