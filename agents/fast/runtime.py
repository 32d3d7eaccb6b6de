"""Threads of the agent besides its samples: the session, and the rounds of KPIs."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from ccagent.agents.fast.kept_state import StateFile
from ccagent.agents.fast.kpis import KpiReader
from ccagent.agents.fast.messages.structures import AgentPresence, KpiReport
from ccagent.agents.fast.protocol import FastProtocol, FastTopics
from ccagent.agents.fast.session import AnswerQueue, FastSession
from ccagent.errors import CcagentError, LockedError
from ccagent.log import logger
from ccagent.net.mqtt_broker import LastWill, MqttOptions
from ccagent.service.instance import lock_directory
from ccagent.transports.mqtt import fill_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.agents.fast.kpis import KpiRound
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node
    from ccagent.service.instance import Lock

_PAUSE_AFTER_FAILURE = 5.0
_LOCK = "fast.lock"
_LOCK_RETRIED = 1.0
_JOIN = 3.0


class KpiRounds:
    """Reads and reports KPIs every `repeat` seconds of the configuration in force."""

    def __init__(
        self,
        node: Node,
        settings: FastSettings,
        protocol: FastProtocol,
        report: Callable[[bytes], object],
    ) -> None:
        self.last: KpiRound | None = None
        """The last reported round."""
        self.skipped = 0
        """Rounds skipped because the previous one took too long."""
        self._node = node
        self._protocol = protocol
        self._report = report
        self._reader = KpiReader(settings)
        self._changed = threading.Event()
        self._closing = False

    def look(self) -> None:
        """Apply a changed configuration."""
        self._changed.set()

    def close(self) -> None:
        """Stop `run`, without waiting for its end."""
        self._closing = True
        self._changed.set()

    def run(self) -> None:
        """Report until `close`."""
        while not self._closing:
            try:
                self._follow_configuration()
            except Exception:  # noqa: BLE001 - the rounds continue
                logger.exception("agent fast: a round of KPIs failed; retrying")
                self._changed.wait(_PAUSE_AFTER_FAILURE)
        self._reader.close()

    def _follow_configuration(self) -> None:
        """Report by the current configuration until it changes, or `close` is called."""
        self._changed.clear()
        if self._closing:
            return  # `close` was called just before
        configuration = self._protocol.configuration
        if configuration is None:
            self._changed.wait()
            return
        clock, repeat = self._node.clock, float(configuration.repeat)
        self._read(configuration.categories)
        due = clock.monotonic() + repeat
        while not self._changed.wait(max(0.0, due - clock.monotonic())):
            kpis = self._read(configuration.categories)
            self.last = kpis
            for payload in reports(self._node.hostname, kpis):
                self._report(payload)
            due += repeat
            late = clock.monotonic() - due
            if late >= 0:
                missed = int(late // repeat) + 1
                self.skipped += missed
                due += missed * repeat

    def _read(self, categories: tuple[str, ...]) -> KpiRound:
        return self._reader.read(self._node, self._protocol.list_monitored(), categories)


def reports(source: str, kpis: KpiRound) -> Iterator[bytes]:
    """Yield one report per application, with the node's KPIs; one report without applications."""
    if not kpis.applications:
        yield KpiReport(source=source, values=kpis.node).encode()
    for application, values in kpis.applications:
        yield KpiReport(
            source=source,
            values=values | kpis.node,
            job_id=application.job_id,
            process_id=application.process_id,
            vm_name=application.vm_name,
        ).encode()


class _Parts(NamedTuple):
    """The parts of a served session."""

    protocol: FastProtocol
    session: FastSession
    rounds: KpiRounds
    answers: AnswerQueue


class FastRuntime:
    """Owns the threads of the agent with a broker."""

    def __init__(self, node: Node, settings: FastSettings) -> None:
        self._node = node
        self._settings = settings
        self._closing = threading.Event()
        self._lock: Lock | None = None
        self._kept = StateFile(settings.state_directory, node.hostname)
        self._topics = FastTopics(settings.topic, node.hostname, settings.accept_from)
        self._parts: _Parts | None = None
        self._thread = threading.Thread(target=self._run, name="fast session", daemon=True)
        self._round_thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the session. Raise RuntimeError if no thread can be started."""
        self._thread.start()

    def close(self) -> None:
        """Log off from the broker, and stop all threads within a few seconds."""
        self._closing.set()
        if self._parts is not None:
            self._parts.rounds.close()
            self._parts.session.close()
        for thread in (self._thread, self._round_thread):
            if thread is not None and thread.is_alive():
                thread.join(_JOIN)

    @property
    def protocol(self) -> FastProtocol | None:
        """The state machine; None before the start."""
        return None if self._parts is None else self._parts.protocol

    def describe(self) -> dict[str, Any]:
        """Return the data of `ccagent fast status`."""
        status: dict[str, Any] = {"broker": self._settings.url, "state": "starting"}
        if self._parts is None:
            return status
        protocol, session, rounds, answers = self._parts
        status |= {
            "connected": session.is_connected,
            "state": protocol.state if session.is_connected else "connecting",
            "error": session.error,
            "answers-waiting": answers.count(),
            "messages-dropped": session.dropped,
            "rounds-skipped": rounds.skipped,
            "senders": protocol.senders.dearest(),
        }
        if (held := protocol.configuration) is not None:
            status["configuration"] = structs.asdict(held) | {"categories": [*held.categories]}
        status["machines"] = [
            {
                "name": machine.name,
                "process-id": machine.process_id,
                "suspended": machine.is_suspended,
                "monitored": not machine.is_stopped,
            }
            for machine in self._kept.state.machines
        ]
        status["stopped-jobs"] = [*self._kept.state.stopped_jobs]
        status["job-status"] = [
            {"job": job, "migration": sent.is_migratable, "supported": [*sent.supported]}
            for job, sent in protocol.relay.statuses.items()
        ]
        if (last := rounds.last) is not None:
            applications = [
                {
                    "job-id": application.job_id,
                    "process-id": application.process_id,
                    "vm-name": application.vm_name,
                    "values": values,
                }
                for application, values in last.applications
            ]
            status["kpis"] = {"time": last.time, "node": last.node, "applications": applications}
        return status

    def _run(self) -> None:
        """Lock the state directory, restore its state, and serve the session."""
        try:
            if self._take_lock():
                node, directory = self._node, self._settings.state_directory
                self._kept.load()
                with closing(AnswerQueue(directory, node.cluster, node.hostname)) as answers:
                    self._serve(answers)
        except Exception:  # noqa: BLE001 - logged; the daemon continues without the agent
            logger.exception("agent fast: can't start")
        finally:
            if self._lock is not None:
                self._lock.release()

    def _serve(self, answers: AnswerQueue) -> None:
        node, settings, status = self._node, self._settings, self._topics.status
        protocol = FastProtocol(
            node, settings, topics=self._topics, kept=self._kept, answers=answers
        )
        will = LastWill(status, AgentPresence(task="quit", source=node.hostname).encode())
        name = fill_topic(settings.client_id, node.cluster, node.hostname, "fast", "")
        options = MqttOptions(settings.broker(), name, will, qos_hint=", which FAST needs")
        session = FastSession(options, protocol, answers, self._kept)
        rounds = KpiRounds(
            node, settings, protocol, lambda payload: session.publish(status, payload)
        )
        protocol.publish = session.publish
        protocol.on_answer = session.look
        protocol.on_configured = rounds.look
        protocol.restore()
        self._parts = _Parts(protocol, session, rounds, answers)
        self._round_thread = threading.Thread(target=rounds.run, name="fast KPIs", daemon=True)
        self._round_thread.start()
        if self._closing.is_set():
            rounds.close()
            session.close()
        session.run()

    def _take_lock(self) -> bool:
        """Wait for the lock of the state directory; return False if the agent must stop."""
        directory = self._settings.state_directory
        if not directory:
            return True
        is_said = False
        while not self._closing.is_set():
            try:
                self._lock = lock_directory(directory, _LOCK, "agents.fast.state-directory")
            except LockedError as error:
                if not is_said:
                    logger.info("agent fast: %s; waiting for it", error)
                is_said = True
            except CcagentError as error:
                logger.error(
                    "agent fast: %s: no lock: another agent may use it: %s", directory, error
                )
                return True
            else:
                return True
            self._closing.wait(_LOCK_RETRIED)
        return False
