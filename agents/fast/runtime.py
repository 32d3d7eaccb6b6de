"""Threads of the agent besides its samples: the session, and the rounds of KPIs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ccagent.agents.fast.kpis.applications import Applications
from ccagent.agents.fast.kpis.rounds import KpiRounds
from ccagent.agents.fast.messages.encoding import encode_fast
from ccagent.agents.fast.messages.structures import AgentQuit
from ccagent.agents.fast.protocol import FastProtocol
from ccagent.agents.fast.session.answers import AnswerQueue
from ccagent.agents.fast.session.kept_state import StateKeeper
from ccagent.agents.fast.session.session import FastSession
from ccagent.agents.fast.session.topics import FastTopics
from ccagent.errors import CcagentError, LockedError
from ccagent.log import logger
from ccagent.net.mqtt_broker import LastWill, MqttOptions
from ccagent.service.lock import Lock
from ccagent.service.private_directories import make_directory
from ccagent.transports.mqtt.settings import fill_topic

if TYPE_CHECKING:
    from ccagent.agents.fast.kpis.kpi_reading import KpiRound
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node

_LOCK = "fast.lock"
_LOCK_RETRIED = 1.0
_JOIN = 3.0


class FastRuntime:
    """Owns the threads of the agent with a broker."""

    def __init__(self, node: Node, settings: FastSettings) -> None:
        self._node = node
        self._settings = settings
        self._closing = threading.Event()
        self._lock: Lock | None = None
        directory = settings.state_directory
        self._keeper = StateKeeper(directory, node.hostname)
        self._topics = FastTopics(settings.topic, node.hostname, settings.accept_from)
        self._answers: AnswerQueue | None = None
        self._session: FastSession | None = None
        self._rounds: KpiRounds | None = None
        self._protocol: FastProtocol | None = None
        self._thread = threading.Thread(target=self._run, name="fast session", daemon=True)
        self._round_thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the session. Raise RuntimeError if no thread can be started."""
        self._thread.start()

    def close(self) -> None:
        """Log off from the broker, and stop all threads within a few seconds."""
        self._closing.set()
        if self._rounds is not None:
            self._rounds.close()
        if self._session is not None:
            self._session.close()
        for thread in (self._thread, self._round_thread):
            if thread is not None and thread.is_alive():
                thread.join(_JOIN)

    @property
    def protocol(self) -> FastProtocol | None:
        """The state machine; None before the start."""
        return self._protocol

    def describe(self) -> dict[str, Any]:
        """Return the data of `ccagent fast status`."""
        session, protocol, rounds = self._session, self._protocol, self._rounds
        found: dict[str, Any] = {"broker": self._settings.url, "state": "starting"}
        if session is None or protocol is None or rounds is None or self._answers is None:
            return found
        found["connected"] = session.is_connected
        found["state"] = protocol.state if session.is_connected else "connecting"
        found["error"] = session.error
        found["answers-waiting"] = self._answers.count()
        found["messages-dropped"] = session.dropped
        found["rounds-skipped"] = rounds.skipped
        found["senders"] = protocol.senders.dearest()
        held = protocol.configuration
        if held is not None:
            found["configuration"] = {
                "categories": [*held.categories],
                "repeat": held.repeat,
                "sender": held.sender,
                "time": held.time,
            }
        found["machines"] = [
            {"name": each.name, "process-id": each.process_id, "suspended": each.is_suspended}
            for each in self._keeper.state.machines
        ]
        found["stopped-jobs"] = [*self._keeper.state.stopped_jobs]
        found["job-status"] = [
            {"job": job, "migration": each.is_migratable, "supported": [*each.supported]}
            for job, each in protocol.relay.statuses.items()
        ]
        if rounds.last is not None:
            found["kpis"] = _described(rounds.last)
        return found

    def _run(self) -> None:
        """Lock the state directory, restore its state, and serve the session."""
        try:
            if self._take_lock():
                self._serve()
        except Exception:  # noqa: BLE001 - logged; the daemon continues without the agent
            logger.exception("agent fast: can't start")
        finally:
            if self._answers is not None:
                self._answers.close()
            if self._lock is not None:
                self._lock.release()

    def _serve(self) -> None:
        node, settings = self._node, self._settings
        self._keeper.load()
        answers = self._answers = AnswerQueue(settings.state_directory, node.cluster, node.hostname)
        applications = Applications(self._keeper.state, has_jobs=settings.jobs)
        protocol = FastProtocol(
            node,
            settings,
            topics=self._topics,
            keeper=self._keeper,
            answers=answers,
            applications=applications,
        )
        will = LastWill(self._topics.status, encode_fast(AgentQuit(source=node.hostname)))
        name = fill_topic(settings.client_id, node.cluster, node.hostname, "fast", "")
        options = MqttOptions(settings.broker(), name, will, qos_hint=", which FAST needs")
        session = FastSession(options, protocol, answers, self._keeper)
        rounds = KpiRounds(
            node,
            settings,
            protocol,
            lambda payload: session.publish(self._topics.status, payload),
        )
        protocol.publish = session.publish
        protocol.on_answer = session.look
        protocol.on_configured = rounds.look
        protocol.restore()
        self._session, self._rounds, self._protocol = session, rounds, protocol
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
                make_directory(directory)
                self._lock = Lock(os.path.join(directory, _LOCK), "agents.fast.state-directory")
            except LockedError as error:
                if not is_said:
                    logger.info("agent fast: %s; waiting for it", error)
                is_said = True
            except (OSError, CcagentError) as error:
                logger.error(
                    "agent fast: %s: no lock: another agent may use it: %s", directory, error
                )
                return True
            else:
                return True
            self._closing.wait(_LOCK_RETRIED)
        return False


def _described(found: KpiRound) -> dict[str, Any]:
    return {
        "time": found.time,
        "node": found.node,
        "applications": [
            {
                "job-id": application.job_id,
                "process-id": application.process_id,
                "vm-name": application.vm_name,
                "values": values,
            }
            for application, values in found.applications
        ],
    }
