"""The agents, the sinks and the Prometheus endpoint of a daemon: start, exchange by a reload, end.

The endpoint's modules are imported only if a configuration has the table [exporter].
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.agents.base import Agent, build_agent
from ccagent.counters import DaemonCounters
from ccagent.daemon.runner import Runner, Schedule
from ccagent.log import logger
from ccagent.queue.sink import Sink
from ccagent.transports.base import Transport, build_transport

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.config.configuration import Configuration
    from ccagent.exporter.service import ExporterService
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.machine.clock import Clock
    from ccagent.machine.node import Node


_Names = tuple[str, str]


class ExporterSlot:
    """Manages the running exporter, if one is configured."""

    def __init__(self) -> None:
        self._running: ExporterService | None = None
        self._key: tuple[ExporterSettings, _Names] | None = None

    def prepare(self, configuration: Configuration, node: Node) -> ExporterService | None:
        """Build the exporter of a configuration, unless the same one runs already.

        Raise ConfigurationError for invalid settings, before any change.
        """
        key = _key_of(configuration, node)
        if key is None or (self._running is not None and key == self._key):
            return None
        from ccagent.exporter.service import ExporterService

        return ExporterService(key[0])

    def apply(
        self, prepared: ExporterService | None, configuration: Configuration, node: Node
    ) -> None:
        """Replace the running exporter by the prepared one, or end it if none is configured.

        The scrapes that run are answered.
        """
        key = _key_of(configuration, node)
        if prepared is None and key is not None and key == self._key:
            return
        before, self._running, self._key = self._running, prepared, key
        try:
            if prepared is not None:
                prepared.start(node, before)
            elif before is not None:
                before.retire()
        except Exception:  # noqa: BLE001 - agents sample whether anybody scrapes or not
            logger.exception("exporter: not exchanged: unforeseen error")

    def close(self) -> None:
        """End the running exporter."""
        running, self._running, self._key = self._running, None, None
        if running is not None:
            with continue_after_errors("exporter"):
                running.close()


def _key_of(configuration: Configuration, node: Node) -> tuple[ExporterSettings, _Names] | None:
    """Return the settings and names of an exporter; None if none is configured."""
    if "exporter" not in configuration.tables:
        return None
    from ccagent.exporter.settings import ExporterSettings

    settings = configuration.table(ExporterSettings)
    return None if settings is None else (settings, _list_names(node))


class Plan(NamedTuple):
    """A configuration, with its agents, transports and exporter that do not run yet."""

    configuration: Configuration
    agents: dict[str, Agent[Any]]
    transports: dict[str, Transport]
    exporter: ExporterService | None = None


class AgentsAndSinks:
    """The agents of a configuration, each in a thread, and its sinks.

    Only the thread of the daemon changes them; any thread may read `counters`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._configuration: Configuration | None = None
        self._names = ("", "")
        self._runners: dict[str, tuple[Schedule | None, Runner]] = {}
        self._outboxes: dict[str, Sink] = {}
        self._leaving_runners: list[Runner] = []
        self._leaving_outboxes: list[Sink] = []
        self._exporter = ExporterSlot()

    @property
    def is_idle(self) -> bool:
        """True when no agent samples and every queue is empty."""
        return not self.is_sampling and all(box.is_idle for box in self._outboxes.values())

    @property
    def is_sampling(self) -> bool:
        """True while one of the agents samples."""
        return not all(runner.is_idle for _, runner in self._runners.values())

    @property
    def has_standard_output(self) -> bool:
        """True if one of the sinks is standard output."""
        return any(box.settings.url.startswith("stdout:") for box in self._outboxes.values())

    def counters(self) -> DaemonCounters:
        """Return the counters of agents and sinks since the start."""
        return DaemonCounters(
            agents={name: runner.agent.counters for name, (_, runner) in [*self._runners.items()]},
            sinks={name: outbox.counters() for name, outbox in [*self._outboxes.items()]},
        )

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the details of the agents that report any, by agent."""
        running = [(name, runner.agent) for name, (_, runner) in [*self._runners.items()]]
        return {name: details for name, agent in running if (details := agent.describe())}

    def summary(self) -> str:
        """Return a line that lists running agents and sinks."""
        return f"agents: {', '.join(self._runners)}; sinks: {', '.join(self._outboxes) or 'none'}"

    def make_plan(self, configuration: Configuration) -> Plan:
        """Build the agents and transports of a configuration that do not run yet.

        Raise ConfigurationError for an invalid configuration, before any change.
        """
        running = self._configuration
        node = configuration.settings.make_node(self._clock)
        is_renamed = _list_names(node) != self._names
        transports = {
            name: build_transport(sink)
            for name, sink in configuration.sinks.items()
            if name not in self._outboxes
            or self._outboxes[name].settings != sink
            or running is None
            or configuration.outbox != running.outbox
            or is_renamed  # logins and topics may contain the names
        }
        exporter = self._exporter.prepare(configuration, node)
        agents: dict[str, Agent[Any]] = {}
        try:
            for name in configuration.agents:
                if is_renamed or not self._can_stay(name, configuration):
                    agents[name] = build_agent(configuration, name)
        except BaseException:
            self.close_unused(agents)
            raise
        return Plan(configuration, agents, transports, exporter)

    def close_unused(self, agents: dict[str, Agent[Any]]) -> None:
        """Close the agents of a discarded plan, except for running agents."""
        running = [runner.agent for _, runner in [*self._runners.values()]]
        for name, agent in agents.items():
            if agent not in running:
                with continue_after_errors(f"agent {name}"):
                    agent.close()

    def apply(self, plan: Plan) -> None:
        """Start the new agents and sinks of a plan, and retire replaced and removed ones.

        Agents and sinks with unchanged settings continue. All new outboxes are opened before any
        change.
        """
        configuration = plan.configuration
        node = configuration.settings.make_node(self._clock)
        node.own_counters = self.counters
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
                prefix = configuration.settings.topic_prefix
                runner = Runner(agent, node, boxes, prefix=prefix)
                every = agent.settings.every
                schedule = Schedule(every.seconds, self._clock.time()) if every else None
                self._runners[name] = (schedule, runner)
                runner.start(sample_now=agent.settings.on_startup)
            else:
                self._runners[name][1].outboxes = boxes
        self._configuration, self._names = configuration, _list_names(node)
        self._exporter.apply(plan.exporter, configuration, node)

    def _open_outboxes(self, plan: Plan) -> dict[str, Sink]:
        """Open the outboxes of new and changed sinks; if one fails, none stays open."""
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
        """Replace old outboxes by new ones. The old ones hand over their backlog at once."""
        for name, outbox in [*self._outboxes.items()]:
            if name in opened or name not in configuration.sinks:
                self._leaving_outboxes.append(self._outboxes.pop(name))
            if name not in configuration.sinks and not outbox.is_idle:
                backlog = outbox.counters().backlog
                logger.info("sink %s: removed; it stays until %d messages are sent", name, backlog)
        self._outboxes |= opened
        for outbox in self._leaving_outboxes:
            if outbox.name in self._outboxes:
                outbox.retire(self._outboxes[outbox.name])

    def _can_stay(self, name: str, configuration: Configuration) -> bool:
        """Return whether a running agent can continue with its state."""
        if self._configuration is None or name not in self._runners:
            return False
        agent, old = self._runners[name][1].agent, self._configuration.settings
        return (
            agent.settings == configuration.agents[name]
            and agent.wanted == configuration.formats_of(name)
            and agent.receivers == configuration.receivers_of(name)
            and old.topic_prefix == configuration.settings.topic_prefix
        )

    def tick(self, now: float) -> None:
        """Request due samples, and check for agents that hang or have died."""
        for schedule, runner in self._runners.values():
            runner.watch()
            if schedule is not None and schedule.is_due(now):
                runner.tick()

    def next_tick(self, default: float) -> float:
        """Return the time of the next sample in seconds since 1970, or the default."""
        ticks = [schedule.next for schedule, _ in self._runners.values() if schedule is not None]
        return min(ticks, default=default)

    def retire(self) -> None:
        """Close removed sinks when they are idle, and forget agents and sinks that have ended.

        A removed sink first drains its backlog. It stays open while an agent may still put a
        message into it, even a hanging agent. A replaced sink ends without a call.
        """
        self._leaving_runners = [old for old in self._leaving_runners if old.is_alive]
        runners = [*self._leaving_runners, *(runner for _, runner in self._runners.values())]
        for outbox in self._leaving_outboxes:
            is_removed = outbox.name not in self._outboxes
            if is_removed and outbox.is_idle and not any(each.uses(outbox) for each in runners):
                outbox.close()
        self._leaving_outboxes = [old for old in self._leaving_outboxes if old.is_alive]

    def end(self, seconds: float) -> None:
        """End all after their current work, agents first, within some seconds."""
        deadline = self._clock.monotonic() + seconds
        self._exporter.close()
        runners = [runner for _, runner in self._runners.values()]
        runners += self._leaving_runners
        outboxes = [*self._outboxes.values(), *self._leaving_outboxes]
        for runner in runners:
            with continue_after_errors(f"agent {runner.agent.name}"):
                runner.close()
        for runner in runners:
            with continue_after_errors(f"agent {runner.agent.name}"):
                runner.join((deadline - self._clock.monotonic()) / 2)
        for outbox in self._leaving_outboxes:
            if outbox.name in self._outboxes:
                with continue_after_errors(f"sink {outbox.name}"):
                    outbox.join((deadline - self._clock.monotonic()) / 2)
        for outbox in outboxes:
            with continue_after_errors(f"sink {outbox.name}"):
                outbox.close()
        for outbox in outboxes:
            with continue_after_errors(f"sink {outbox.name}"):
                outbox.join(deadline - self._clock.monotonic())


def _list_names(node: Node) -> _Names:
    return node.cluster, node.hostname


@contextlib.contextmanager
def continue_after_errors(name: str) -> Generator[None]:
    """Log an unforeseen exception while an agent, a sink or the exporter is closed."""
    try:
        yield
    except Exception:  # noqa: BLE001 - it must not cost the others their end
        logger.exception("%s: unforeseen error while it was closed", name)
