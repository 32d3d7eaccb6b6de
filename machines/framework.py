"""Tasks of schedulers: checked, recorded, done one at a time for each machine, and answered.

Each task is on disk before its work, and its result before it is sent.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.agents.fast.kept_state import AnswerOnItsWay, KeptState
from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.decoding import decode
from ccagent.errors import CcagentError, NotPermittedError
from ccagent.log import logger, printable, say
from ccagent.machine.clock import timestamp
from ccagent.machines.hypervisor import open_connection
from ccagent.machines.operations import Operations
from ccagent.machines.policy import EVENTS, MachinePolicy
from ccagent.machines.requests import BrokerRequests
from ccagent.machines.work import UNKNOWN, MachineWork, make_failure, name_machines
from ccagent.senders import SenderTable
from ccagent.service.journal_file import AuditFile, JournalFile, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ccagent.agents.fast.session import AnswerQueue
    from ccagent.machine.node import Node
    from ccagent.machines.settings import MigfraSettings
    from ccagent.machines.work import Part
    from ccagent.net.mqtt_broker import ReceivedMessage

MOST_WAITING = 200
"""Maximum of accepted tasks without a result."""

_OTHER_WORKERS = 8
_LONGEST_DETAILS = 1000
_REFUSALS_AUDITED_EVERY = 0.5
_FILE = "tasks.journal"
MOST_TASKS = 1000
"""Number of remembered tasks: a repeated one gets the stored result."""

_MOST_RECORDS = 4 * MOST_TASKS
"""Number of records after which the file is rewritten."""


class JournalError(CcagentError):
    """The journal can't be read or written: no task may be accepted."""


class RecordedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of the journal. digest: of its payload, which is kept until it has a result."""

    key: str
    digest: str
    payload: bytes = b""
    result: bytes | None = None


class JournalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file: the new state of a task, or of the answer that is being sent."""

    task: RecordedTask | None = None
    sending: AnswerOnItsWay | None = None


class TaskJournal:
    """The journal of one node. Several threads call its methods. Raise JournalError."""

    def __init__(self, directory: str) -> None:
        """Read the journal of an earlier process."""
        self.state = KeptState()
        self._path = os.path.join(directory, _FILE)
        self._file = JournalFile(self._path, JournalRecord)
        self._lock = threading.Lock()
        self._tasks: dict[str, RecordedTask] = {}
        try:
            for record in self._file.load():
                if record.task is not None:
                    self._tasks[record.task.key] = record.task
                else:
                    self.state.sending = record.sending
            self._file.rewrite(self._records())
        except (OSError, NotPermittedError) as error:
            raise JournalError(f"migfra.state-directory: {explain(error)}") from error

    def find(self, key: str) -> RecordedTask | None:
        """Return a task by its key; None if it is unknown."""
        return self._tasks.get(key)

    def unfinished(self) -> list[RecordedTask]:
        """Return the tasks without a result, oldest first: another process has begun them."""
        return [task for task in self._tasks.values() if task.result is None]

    def accept(self, key: str, digest: str, payload: bytes) -> None:
        """Record a task before its work; forget the oldest with a result."""
        with self._lock:
            if len(self._tasks) >= MOST_TASKS:
                done = (known for known, task in self._tasks.items() if task.result is not None)
                self._tasks.pop(next(done, ""), None)
            self._put(RecordedTask(key, digest, payload))

    def finish(self, key: str, result: bytes, queue: Callable[[], object]) -> None:
        """Queue the result of a task, then record it. The session can't send it before."""
        with self._lock:
            queue()
            if (task := self._tasks.get(key)) is not None:
                self._put(RecordedTask(key, task.digest, result=result))

    def save(self) -> None:
        """Write the state of the session. If that fails, log an error."""
        try:
            with self._lock:
                self._append(JournalRecord(sending=self.state.sending))
        except JournalError as error:
            logger.error("migfra: %s", error, key="migfra journal")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _put(self, task: RecordedTask) -> None:
        self._append(JournalRecord(task))
        self._tasks[task.key] = task

    def _append(self, record: JournalRecord) -> None:
        try:
            if self._file.is_due(_MOST_RECORDS):
                self._file.rewrite(self._records())
            self._file.append(record)
        except (OSError, NotPermittedError) as error:
            raise JournalError(f"migfra.state-directory: {explain(error)}") from error

    def _records(self) -> Iterator[JournalRecord]:
        for task in self._tasks.values():
            yield JournalRecord(task)
        if self.state.sending is not None:
            yield JournalRecord(sending=self.state.sending)


class Workers:
    """Threads that are started when they are needed, and end with the process."""

    def __init__(self, most: int, name: str) -> None:
        self._names = iter([f"{name} {number}" for number in range(most)])
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, work: Callable[[], None]) -> None:
        """Do the work in a thread, after the work submitted before. It must not raise."""
        self._waiting.put(work)
        if not self._idle.acquire(blocking=False) and (name := next(self._names, "")):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._waiting.get()()
            self._idle.release()


class RunningTask:
    """An accepted task and the outcomes of its parts.

    key: that of the journal. sender: the key that signed it.
    """

    def __init__(self, key: str, task: fast.MachineTask, topic: str, sender: str = "") -> None:
        self.key, self.task, self.topic, self.sender = key, task, topic, sender
        self.name = task.task
        self.begun = time.monotonic()
        self.outcomes: list[fast.MachineOutcome | None] = []
        self.left = 0


class Framework:
    """Handles messages. Its session calls it in one thread, its workers in others.

    open_connection: to libvirt, when a task needs it.
    """

    def __init__(
        self,
        node: Node,
        settings: MigfraSettings,
        answers: AnswerQueue,
        open_connection: Callable[[str], Any] = open_connection,
    ) -> None:
        """Read the journal of an earlier process. Raise JournalError."""
        self.senders = SenderTable()
        self.policy = MachinePolicy(settings)
        """Replaced by a reload."""
        self.on_answer: Callable[[], None] = lambda: None
        self.journal = TaskJournal(settings.state_directory)
        self.requests = BrokerRequests(settings, node.hostname, self._find_process)
        top = f"{settings.topic}/migfra/{node.hostname}"
        self.task_topic, self.result_topic = f"{top}/task", f"{top}/result"
        self._node = node
        self._answers = answers
        self._audit_file = AuditFile(os.path.join(settings.state_directory, "audit.jsonl"))
        self._operations = Operations(node, settings, self.requests, open_connection)
        self._machine_work = MachineWork(self._operations)
        self._movers = Workers(settings.allow.parallel, "migration")
        self._others = Workers(_OTHER_WORKERS, "machine")
        self._lock = threading.RLock()
        self._busy: dict[str, str] = {}
        self._running: dict[str, RunningTask] = {}
        self._held: list[RunningTask] = []
        self._blocking = ""
        self._refusals = 0
        self._refusal_at = 0.0

    def filters(self) -> list[str]:
        """Return the topic filters to subscribe to."""
        return [self.task_topic, *self.requests.filters()]

    def on_connected(self) -> None:
        """Do nothing for a new connection."""

    def on_turn(self) -> None:
        """Send requests to others, whose answers are subscribed to now."""
        self.requests.send()

    def on_message(self, received: ReceivedMessage) -> None:
        """Handle a message. An accepted task is on disk when this returns."""
        if self.requests.on_message(received.topic, received.payload):
            return
        self.senders.count(received.topic, messages=1)
        if received.is_retained:
            logger.warning(
                "migfra: %s: a retained task is ignored", received.topic, key="migfra retained"
            )
            return
        message = decode("machine task", received.payload)
        if isinstance(message, fast.Refusal):
            failure = make_failure(UNKNOWN, message.reason)
            self._refuse(received.topic, message.id, message.task or UNKNOWN, [failure])
        elif isinstance(message, fast.MachineTask):
            self._take(received, message)

    def recover(self) -> None:
        """Answer what an earlier process has left, by what is true now."""
        queued = self._answers.payloads()
        for recorded in self.journal.unfinished():
            message = decode("machine task", recorded.payload)
            if recorded.key in queued:
                self.journal.finish(recorded.key, queued[recorded.key], lambda: None)
            elif isinstance(message, fast.MachineTask):
                running = RunningTask(recorded.key, message, self.task_topic)
                self._running[recorded.key] = running
                self._start(running, is_begun=True)

    def _take(self, received: ReceivedMessage, task: fast.MachineTask) -> None:
        """Accept a task, refuse it, or send the stored result of a repeated one."""
        topic, payload = received.topic, received.payload
        digest = hashlib.blake2b(payload, digest_size=16).hexdigest()
        key = f"id:{task.id}" if task.id else f"{digest}:{received.number}"
        known = self.journal.find(key)
        if known is not None and not (task.id or received.is_repeated):
            key, known = f"{key}:{time.time_ns()}", None
        if known is not None and known.digest == digest:
            logger.info("migfra: %s: repeated", printable(key))
            if known.result is not None:
                self._queue(key, known.result)
            return
        outcomes, sender = self._judge(received, task, is_new=known is None)
        try:
            if not _are_refused(outcomes):
                self.journal.accept(key, digest, payload)
        except CcagentError as error:
            outcomes = _fail_all(task, str(error))
        if _are_refused(outcomes):
            self._refuse(topic, task.id, task.task, outcomes)
            return
        running = RunningTask(key, task, topic, sender)
        self._audit("accepted", running)
        for part in outcomes:
            if part.details:
                self._note_refusal(topic, "part", part.details)
        with self._lock:
            self._running[key] = running
            if self._blocking:
                self._held.append(running)
                return
        self._start(running)

    def _judge(
        self, received: ReceivedMessage, task: fast.MachineTask, *, is_new: bool
    ) -> tuple[list[fast.MachineOutcome], str]:
        """Return a failure of each part, without details if it is allowed, and who has signed."""
        sender, reason = self.policy.identify(received.topic, received.payload)
        reason = reason or self.policy.find_refusal(task)
        if not is_new:
            reason = reason or "id: another task had it"
        if len(self._running) >= MOST_WAITING:
            reason = reason or f"busy: {len(self._running)} tasks are waiting"
        if reason:
            return _fail_all(task, reason), sender
        parts = task.machines if isinstance(task, fast.StartMachines | fast.OrderMachines) else ()
        judge = self.policy.find_part_refusal
        return [make_failure(each.name, judge(each)) for each in parts], sender

    def _start(self, running: RunningTask, *, is_begun: bool = False) -> None:
        """Start the work of a task, or find what became of one that another process began."""
        with self._lock:
            if not running.task.is_concurrent:
                self._blocking = running.key

        def start() -> None:
            parts = self._machine_work.parts(running.task, self.policy, is_begun=is_begun)
            self._dispatch(running, parts)

        if isinstance(running.task, fast.EvacuateNode):
            self._others.submit(start)  # its parts are planned with libvirt
        else:
            start()

    def _find_process(self, name: str) -> int:
        return self._operations.find_process(name) if self.policy.allows_machine(name) else 0

    def _dispatch(self, running: RunningTask, parts: Sequence[Part]) -> None:
        """Start the parts of a task whose machines are free; the others are errors."""
        running.outcomes = [None] * len(parts)
        running.left = len(parts)
        if not parts:
            self._finish(running)
        for index, part in enumerate(parts):
            with self._lock:
                busy = next((self._busy[name] for name in part.names if name in self._busy), "")
                if not busy:
                    self._busy |= dict.fromkeys(part.names, f"{running.name}, {running.task.id}")
            if busy:
                self._note(running, index, make_failure(part.names[0], f"busy: {busy}"))
                continue
            workers = self._movers if part.migrates else self._others
            workers.submit(partial(self._work, running, index, part))

    def _work(self, running: RunningTask, index: int, part: Part) -> None:
        """Do one part in a worker. Whatever happens, it has an outcome and its locks are freed."""
        name = part.names[0] if part.names else UNKNOWN
        try:
            outcome = part.work()
        except Exception as error:  # noqa: BLE001 - a task must be answered after any error
            logger.exception("migfra: %s: %s failed", running.name, name)
            outcome = make_failure(name, f"failed: {error}")
        with self._lock:
            for each in part.names:
                self._busy.pop(each, None)
        self._note(running, index, outcome)

    def _note(self, running: RunningTask, index: int, outcome: fast.MachineOutcome) -> None:
        with self._lock:
            running.outcomes[index] = outcome
            running.left -= 1
            is_last = running.left == 0
        if is_last:
            self._finish(running)

    def _finish(self, running: RunningTask) -> None:
        """Record and queue the result of a task, and begin those that waited for it."""
        outcomes = [each for each in running.outcomes if each is not None]
        payload = self._encode(running.task.id, running.name, outcomes)
        try:
            self.journal.finish(running.key, payload, partial(self._queue, running.key, payload))
        except CcagentError as error:
            logger.error("migfra: %s", error, key="migfra journal")
        self._audit("finished", running, outcomes)
        with self._lock:
            self._running.pop(running.key, None)
            if self._blocking == running.key:
                self._blocking = ""
        while True:
            with self._lock:
                if self._blocking or not self._held:
                    return
                waiting = self._held.pop(0)
            self._start(waiting)

    def _encode(self, name: str, task: str, outcomes: Iterable[fast.MachineOutcome]) -> bytes:
        machines = tuple(
            msgspec.structs.replace(each, details=printable(each.details)[:_LONGEST_DETAILS])
            for each in outcomes
        )
        event: fast.MachineEvent = EVENTS.get(task, "unknown")
        if event == "unknown":
            machines = tuple(msgspec.structs.replace(each, name=UNKNOWN) for each in machines)
        result = fast.MachineResult(
            id=name, event=event, machines=machines, scheduler=self._node.hostname
        )
        return result.encode()

    def _queue(self, key: str, payload: bytes) -> None:
        self._answers.put(key, self.result_topic, payload)
        self.on_answer()

    def _refuse(
        self, topic: str, task_id: str, name: str, outcomes: Sequence[fast.MachineOutcome]
    ) -> None:
        """Answer a refused task. Nothing of it reaches libvirt or the journal."""
        self._note_refusal(topic, name, outcomes[0].details)
        self._refusals += 1
        key = f"refused:{time.time_ns()}:{self._refusals}"
        self._queue(key, self._encode(task_id, name, outcomes))

    def _note_refusal(self, topic: str, name: str, reason: str) -> None:
        """Count a refusal; log one per hour and kind, and audit two per second at most."""
        self.senders.count(topic, refused=1)
        logger.warning(
            "migfra: %s: %s: refused: %s", topic[:200], name[:40], reason[:200],
            key=f"migfra refused {name if name in EVENTS else ''}",
        )  # fmt: skip
        now = time.monotonic()
        if now >= self._refusal_at:
            self._refusal_at = now + _REFUSALS_AUDITED_EVERY
            self._write({"action": "refused", "task": name, "topic": topic, "reason": reason})

    def _audit(
        self, action: str, running: RunningTask, outcomes: Sequence[fast.MachineOutcome] = ()
    ) -> None:
        task = running.task
        machines = [*name_machines(task)]
        say(
            f"migfra: {running.name}: {action}: {printable(', '.join(machines))[:200]}"
            f" {printable(task.id)}".rstrip(),
            key=f"migfra {action} {running.name}",
        )
        entry: dict[str, Any] = {
            "action": action, "task": running.name, "id": task.id, "topic": running.topic,
            "by": running.sender, "machines": machines,
        }  # fmt: skip
        if action == "finished":
            entry |= {
                "seconds": round(time.monotonic() - running.begun, 3),
                "results": [each.document() for each in outcomes],
            }
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        stamped = {"time": timestamp(self._node.clock.time())} | entry
        self._audit_file.append(msgspec.json.encode(stamped) + b"\n")


def _fail_all(task: fast.MachineTask, reason: str) -> list[fast.MachineOutcome]:
    return [make_failure(each, reason) for each in name_machines(task) or (UNKNOWN,)]


def _are_refused(outcomes: Sequence[fast.MachineOutcome]) -> bool:
    return bool(outcomes) and all(each.details for each in outcomes)
