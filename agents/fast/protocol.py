"""State machine of the protocol: its topics, effects of messages, and their answers.

CONNECT -> WAIT_CONFIG (init, repeated with backoff) -> MONITORING. An accepted configuration stays
in force, also across restarts, until another one is accepted.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from ccagent.agents.fast.applications import Applications
from ccagent.agents.fast.bandwidth import BandwidthService
from ccagent.agents.fast.kept_state import AcceptedConfiguration, PendingMeasurement
from ccagent.agents.fast.kpis import ApplicationRelay
from ccagent.agents.fast.messages.decoding import decode
from ccagent.agents.fast.messages.structures import (
    AgentPresence,
    ApplicationKpis,
    ApplicationStatus,
    BandwidthRequest,
    BandwidthResponse,
    InitAgent,
    MachineResult,
    Refusal,
    StopMonitoring,
    TaskAnswer,
)
from ccagent.log import logger, printable, say
from ccagent.senders import SenderTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.agents.fast.applications import MonitoredApplication
    from ccagent.agents.fast.kept_state import StateFile
    from ccagent.agents.fast.messages.decoding import Subject
    from ccagent.agents.fast.messages.structures import FastMessage, TaskStatus
    from ccagent.agents.fast.session import AnswerQueue
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.machine.node import Node
    from ccagent.net.mqtt_broker import ReceivedMessage

ProtocolState = Literal["waiting for a configuration", "monitoring"]

_FIRST_INIT_PAUSE = 5.0
_LONGEST_INIT_PAUSE = 300.0
_LONGEST_REPEAT = 7 * 86400
_JOBS_KNOWN_FOR = 10.0
_LONGEST_TOPIC = 200
_REQUESTS = frozenset({"agent task", "bandwidth request"})
_JOB = re.compile(r"[A-Za-z0-9_.+\-\[\]]{1,64}", re.ASCII)


class Topic(NamedTuple):
    """Topic of a message. hint: last level. job: job of an application."""

    subject: Subject
    hint: str = ""
    job: str = ""


class FastTopics:
    """Topics of one node below a root. accepted: filters for topics of tasks."""

    def __init__(self, root: str, node: str, accepted: Sequence[str] = ()) -> None:
        self._root = root
        agent = f"{root}/agent/{node}"
        self.status = f"{agent}/status"
        self.bandwidth_request = f"{agent}/mmbwmon/request"
        self.bandwidth_response = f"{agent}/mmbwmon/response"
        self.machine_result = f"{root}/migfra/{node}/result"
        filters = [topic.replace("{topic}", root).replace("{node}", node) for topic in accepted]
        self.tasks = filters or [f"{agent}/task/#"]
        self._tasks = [_pattern(topic) for topic in self.tasks]
        self._application = re.compile(re.escape(f"{root}/application/") + r"([^/]+)/(status|KPIs)")

    def fixed(self) -> list[str]:
        """Return the filters to subscribe to, independent of jobs."""
        return [*self.tasks, self.machine_result, self.bandwidth_request]

    def of_job(self, job: str) -> list[str]:
        """Return the filters of an application; `+` means all. Return none for an invalid name."""
        if job != "+" and not _JOB.fullmatch(job):
            return []
        return [f"{self._root}/application/{job}/{level}" for level in ("status", "KPIs")]

    def find(self, topic: str) -> Topic | None:
        """Return the kind of a topic; None for a topic without subscription."""
        if topic == self.bandwidth_request:
            return Topic("bandwidth request", "request")
        if topic == self.machine_result:
            return Topic("machine result")
        match = self._application.fullmatch(topic)
        if match is not None:
            kind: Subject = "application status" if match[2] == "status" else "application kpis"
            return Topic(kind, "", match[1])
        if any(task.fullmatch(topic) for task in self._tasks):
            return Topic("agent task", topic.rpartition("/")[2])
        return None


def _pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression for the topics of a filter; `a/#` also matches `a`."""
    is_open = text.endswith("/#")
    levels = text.removesuffix("/#").split("/")
    parts = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels)
    return re.compile(parts + ("(?:/.*)?" if is_open else ""), re.DOTALL)


class FastProtocol:
    """Handles each message. Several threads call its methods."""

    def __init__(
        self,
        node: Node,
        settings: FastSettings,
        *,
        topics: FastTopics,
        kept: StateFile,
        answers: AnswerQueue,
    ) -> None:
        self.relay = ApplicationRelay()
        self.senders = SenderTable()
        """Messages and refusals by topic."""
        self.lock = threading.RLock()
        """Held while the state is read or changed, never during publishing."""
        self.publish: Callable[[str, bytes], object] = lambda _topic, _payload: None
        self.on_configured: Callable[[], None] = lambda: None
        self.on_answer: Callable[[], None] = lambda: None
        self._node = node
        self._settings = settings
        self._topics = topics
        self._kept = kept
        self._answers = answers
        self._applications = Applications(kept.state, settings)
        self._bandwidth = BandwidthService(node, settings.state_directory, 1.0 / settings.max_rate)
        self._known: set[str] = set()
        self._init_pause = _FIRST_INIT_PAUSE
        self._init_at = 0.0
        self._jobs: list[str] = []
        self._jobs_until: float | None = None

    def restore(self) -> None:
        """Restore the state of the last process, and answer its interrupted measurements."""
        with self.lock:
            state = self._kept.state
            waiting = self._answers.payloads()
            self._known = {*state.handled, *waiting}
            pending, state.pending = state.pending, []
            for measurement in pending:
                if measurement.key in waiting:
                    continue
                details = "the agent was restarted during the measurement; ask again"
                self._answer_measurement(
                    measurement, BandwidthResponse(cores=measurement.cores, details=details)
                )
            if pending:
                self._kept.save()

    @property
    def configuration(self) -> AcceptedConfiguration | None:
        """The configuration in force."""
        return self._kept.state.configuration

    @property
    def state(self) -> ProtocolState:
        """Current state of the agent."""
        return "waiting for a configuration" if self.configuration is None else "monitoring"

    def on_connected(self) -> None:
        """Register with the scheduler; the last will has reported the agent as stopped."""
        self._init_pause = _FIRST_INIT_PAUSE
        self._send_init()

    def on_turn(self) -> None:
        """Register again if no configuration has arrived for some time."""
        if self.configuration is None and self._node.clock.monotonic() >= self._init_at:
            self._send_init()

    def list_monitored(self) -> list[MonitoredApplication]:
        """Return the currently monitored applications."""
        with self.lock:
            return self._applications.list_monitored(self._node)

    def filters(self) -> list[str]:
        """Return the topic filters to subscribe to."""
        filters = self._topics.fixed()
        match self._settings.relay:
            case "all":
                filters += self._topics.of_job("+")
            case "jobs":
                for job in self._jobs_here():
                    filters += self._topics.of_job(job)
            case "none":
                pass
        return filters

    def on_message(self, received: ReceivedMessage) -> None:
        """Handle a message. Answers are on disk when this returns."""
        topic = self._topics.find(received.topic)
        if topic is None:
            self._log_refused(received.topic, "unexpected", "not a topic of this node; ignored")
            return
        self.senders.count(received.topic, messages=1)
        message = decode(topic.subject, received.payload, topic.hint)
        if isinstance(message, MachineResult):
            with self.lock:
                self._applications.follow(message)
                self._kept.save()
        elif isinstance(message, ApplicationStatus | ApplicationKpis):
            self.relay.add(message, topic.job, self._node.clock.time())
        elif isinstance(message, Refusal) and topic.subject not in _REQUESTS:
            self._log_refused(received.topic, topic.subject, message.reason)
        else:
            self._on_request(received, message)

    def _on_request(self, received: ReceivedMessage, message: FastMessage | Refusal) -> None:
        """Answer a request, unless it was delivered and answered before."""
        key = _key(received, message.id)
        with self.lock:
            is_repeated = bool(message.id) or received.is_repeated
            if is_repeated and key in self._known:
                logger.info("agent fast: %s: already answered", received.topic)
                return
            if received.is_retained and self._is_in_force(message):
                return
            self._known.add(key)
            match message:
                case InitAgent():
                    self._configure(message, received.topic, key)
                case StopMonitoring():
                    self._stop(message, received.topic, key)
                case BandwidthRequest():
                    self._measure(message, received.topic, key)
                case Refusal():
                    self._refuse(message, received.topic, key)
                case _:
                    return
            self._kept.note_handled(key)
            self._kept.save()
            if len(self._known) > 2 * len(self._kept.state.handled) + 100:
                self._known = {*self._kept.state.handled}

    def _is_in_force(self, message: FastMessage | Refusal) -> bool:
        """Return whether a retained message asks for the configuration already in force."""
        held = self.configuration
        return (
            isinstance(message, InitAgent)
            and held is not None
            and (held.categories, held.repeat) == (message.categories, message.repeat)
        )

    def _configure(self, message: InitAgent, sender: str, key: str) -> None:
        shortest = max(1.0, 1.0 / self._settings.max_rate)
        reason = ""
        if message.repeat < shortest:
            reason = f"repeat: {message.repeat} s, at least {shortest:g} s (max-rate of the node)"
        elif message.repeat > _LONGEST_REPEAT:
            reason = f"repeat: {message.repeat} s, at most {_LONGEST_REPEAT} s"
        ignored = f"ignored: {', '.join(message.ignored)}" if message.ignored else ""
        self._answer(
            key, message.id, "configuration", "denied" if reason else "accepted", reason or ignored
        )
        if reason:
            self._log_refused(sender, "configuration", reason)
            return
        self._kept.state.configuration = AcceptedConfiguration(
            categories=message.categories,
            repeat=message.repeat,
            sender=sender,
            time=self._node.clock.time(),
        )
        names = ", ".join(message.categories) or "all KPIs"
        text = f"{names} every {message.repeat} s{'; ' if ignored else ''}{ignored}"
        self._say_accepted(sender, "init agent", text)
        self.on_configured()

    def _stop(self, message: StopMonitoring, sender: str, key: str) -> None:
        reason = self._applications.stop(self._node, message)
        self._answer(key, message.id, "stop monitoring", "error" if reason else "success", reason)
        if reason:
            self._log_refused(sender, "stop monitoring", reason)
        else:
            self._say_accepted(sender, "stop monitoring", f"job {printable(message.job_id)}")

    def _measure(self, message: BandwidthRequest, sender: str, key: str) -> None:
        pending = PendingMeasurement(key=key, id=message.id, cores=message.cores)
        reason = "measurements are not allowed on this node (agents.fast.mmbwmon)"
        if self._settings.mmbwmon:
            reason = self._bandwidth.start(
                message.cores,
                [*self._applications.find_machines(self._node)],
                lambda response: self._on_measured(sender, pending, response),
            )
        if reason:
            self._answer_measurement(
                pending, BandwidthResponse(cores=message.cores, details=reason)
            )
            self._log_refused(sender, "mmbwmon request", reason)
        else:
            self._kept.state.pending.append(pending)  # its response waits for the lock

    def _on_measured(
        self, sender: str, pending: PendingMeasurement, response: BandwidthResponse
    ) -> None:
        if response.value is None:
            self._log_refused(sender, "mmbwmon request", response.details)
        else:
            self._say_accepted(sender, "mmbwmon request", f"cores {[*pending.cores]}")
        with self.lock:
            self._answer_measurement(pending, response)
            if pending in self._kept.state.pending:
                self._kept.state.pending.remove(pending)
            self._kept.save()

    def _refuse(self, message: Refusal, sender: str, key: str) -> None:
        """Answer an invalid request in the form that its sender expects."""
        self._log_refused(sender, "request", message.reason)
        if message.task in {"request", "mmbwmon request"}:
            pending = PendingMeasurement(key=key, id=message.id, cores=())
            self._answer_measurement(pending, BandwidthResponse(cores=(), details=message.reason))
        elif message.task == "init agent":
            self._answer(key, message.id, "configuration", "denied", message.reason)
        else:
            self._answer(key, message.id, message.task or "unknown", "error", message.reason)

    def _log_refused(self, sender: str, kind: str, reason: str) -> None:
        """Count a refused message, and log one of its kind per hour."""
        self.senders.count(sender, refused=1)
        logger.warning(
            "agent fast: %s: %s: refused: %s", sender[:_LONGEST_TOPIC], kind, reason,
            key=f"fast refused {kind}",
        )  # fmt: skip

    def _say_accepted(self, sender: str, kind: str, text: str) -> None:
        """Log one accepted request of a kind per hour; `ccagent fast status` has the last."""
        say(
            f"agent fast: {sender[:_LONGEST_TOPIC]}: {kind} accepted: {text}",
            key=f"fast accepted {kind}",
        )

    def _answer_measurement(self, pending: PendingMeasurement, response: BandwidthResponse) -> None:
        stand_in = self._settings.mmbwmon_failed or None
        named = structs.replace(response, id=pending.id, stand_in=stand_in)
        self._answers.put(pending.key, self._topics.bandwidth_response, named.encode())
        self.on_answer()

    def _answer(self, key: str, request: str, task: str, status: TaskStatus, details: str) -> None:
        """Answer a task. request: its id."""
        answer = TaskAnswer(
            id=request, source=self._node.hostname, task=task, status=status, details=details
        )
        self._answers.put(key, self._topics.status, answer.encode())
        self.on_answer()

    def _send_init(self) -> None:
        message = AgentPresence(task="init", source=self._node.hostname)
        self.publish(self._topics.status, message.encode())
        pause = self._init_pause * random.uniform(0.8, 1.2)  # noqa: S311
        self._init_at = self._node.clock.monotonic() + pause
        self._init_pause = min(2 * self._init_pause, _LONGEST_INIT_PAUSE)

    def _jobs_here(self) -> list[str]:
        now = self._node.clock.monotonic()
        if self._jobs_until is None or now >= self._jobs_until:
            self._jobs = self._applications.job_ids(self._node)
            self.relay.keep(self._jobs)
            self._jobs_until = now + _JOBS_KNOWN_FOR
        return self._jobs


def _key(received: ReceivedMessage, message_id: str) -> str:
    """Return the key that identifies a request.

    A request without an id counts as repeated only if the broker marks it so.
    """
    digest = hashlib.blake2b(received.topic.encode("utf-8", "replace"), digest_size=16)
    digest.update(b"\0" + received.payload)
    if not message_id:
        digest.update(received.number.to_bytes(4, "big"))
    return digest.hexdigest()
