"""Running one agent at its ticks, in a dedicated thread: a hanging agent does not stall others.

Ticks are multiples of the agent's cadence since 1970-01-01T00:00:00Z.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.agents.base import Agent
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.own_memory import read_resident
from ccagent.records.encoding import Profile, encode_each
from ccagent.records.json_encoding import Envelope, KVPair

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.counters import AgentCounters, SinkCounters
    from ccagent.machine.node import Node
    from ccagent.queue.sink import Sink
    from ccagent.records.message import Record


def note_failures(records: Iterable[Record], failures: list[str]) -> Iterator[Record]:
    """Yield records. Add the errors of each envelope without data to `failures`.

    An agent whose source is down sends such an envelope and raises nothing.
    """
    for record in records:
        if isinstance(record, Envelope) and record.data is None:
            failures += [error.detail for error in record.errors]
        yield record


def add_counters(record: Record, agent: AgentCounters, sinks: dict[str, SinkCounters]) -> Record:
    """Add counters to `meta.attrs` of an envelope: `ccagent.samples`, `ccagent.SINK.sent`, ..."""
    if not isinstance(record, Envelope):
        return record
    pairs = _pairs("ccagent", agent)
    for name, counters in sinks.items():
        pairs += _pairs(f"ccagent.{name}", counters)
    pairs.append(KVPair(key="ccagent.resident-memory", value=str(read_resident() // 1024)))
    meta = msgspec.structs.replace(record.meta, attrs=[*record.meta.attrs, *pairs])
    return msgspec.structs.replace(record, meta=meta)


def _pairs(prefix: str, counters: AgentCounters | SinkCounters) -> list[KVPair]:
    values = msgspec.to_builtins(counters)
    return [
        KVPair(
            key=f"{prefix}.{key}", value=f"{value:.3f}" if isinstance(value, float) else str(value)
        )
        for key, value in values.items()
    ]


_FIRST_SETTLE_PAUSE = 0.05
_LONGEST_SETTLE_PAUSE = 5.0


class Runner:
    """Samples with one agent at each tick, and puts the messages into outboxes.

    If an error ends the thread, `watch` starts it again and counts the restart.
    """

    def __init__(
        self, agent: Agent[Any], node: Node, outboxes: list[Sink], *, prefix: str = ""
    ) -> None:
        self.agent = agent
        self.outboxes = outboxes
        # An agent without `save_state` does not need the notice that its records are safe.
        self._remembers = type(agent).save_state is not Agent[Any].save_state
        self._node = node
        self._prefix = prefix
        self._changed = threading.Condition()
        self._wanted = False
        self._busy_since: float | None = None
        self._preparing = True
        self._closing = False
        self._hanging = False
        self._in_use: list[Sink] = []
        self._unsettled: list[Sink] = []
        self._settle_pause = _FIRST_SETTLE_PAUSE
        self._thread: threading.Thread | None = None

    def start(self, *, sample_now: bool) -> None:
        """Start the thread. It prepares the agent, and takes a sample if `sample_now`."""
        self._wanted = sample_now
        self._start_thread()

    def tick(self) -> None:
        """Request a sample now. It is skipped if the agent still takes the last one."""
        with self._changed:
            if self._busy_since is not None and not self._preparing:
                self.agent.counters.skipped += 1
                logger.warning(
                    "agent %s: still busy, a sample is skipped",
                    self.agent.name,
                )
                return
            self._wanted = True
            self._busy_since = self._node.clock.monotonic()
            self._changed.notify_all()

    def watch(self) -> None:
        """Log if the agent exceeds its time limit. Start its thread again if it has ended."""
        if not self.is_alive and not self._closing:
            self.agent.counters.restarts += 1
            self._start_thread()
        limit = self.agent.settings.time_limit
        with self._changed:
            since = self._busy_since
            if self._hanging or since is None:
                return
            self._hanging = self._node.clock.monotonic() - since > limit.seconds
        if self._hanging:
            logger.error("agent %s: not finished after %s; it hangs", self.agent.name, limit)

    @property
    def is_idle(self) -> bool:
        """True when no sample is running or requested."""
        with self._changed:
            return self._busy_since is None

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def uses(self, outbox: Sink) -> bool:
        """Return whether a message may still be put into an outbox."""
        return outbox in self.outboxes or outbox in self._in_use

    def close(self) -> None:
        """Ask the thread to end after its current sample. Does not wait for the end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, if it could be started."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(max(0.0, seconds))
        if self.is_alive:
            logger.error("agent %s: did not end in time", self.agent.name)

    def _start_thread(self) -> None:
        name = self.agent.name
        with self._changed:
            self._preparing = True
            self._hanging = False
            self._busy_since = self._node.clock.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"agent {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.error("agent %s: no thread could be started: %s; trying again", name, error)

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:  # noqa: BLE001 - even SystemExit from a library stops nothing
            logger.exception("agent %s: its thread failed and is started again", self.agent.name)

    def _serve(self) -> None:
        """Sample at each tick until the runner is closed."""
        try:
            self._node.clock.sleep(self.agent.prepare(self._node))
        except Exception:  # noqa: BLE001 - whatever an agent does, the others go on
            logger.exception("agent %s: first reading failed", self.agent.name)
        while True:
            with self._changed:
                self._preparing = False
                if not self._wanted:
                    self._busy_since = None
                    self._hanging = False
                if not self._wanted and not self._closing:
                    self._changed.wait(self._settle_pause if self._unsettled else None)
                is_sample, self._wanted = self._wanted, False
                is_end = self._closing and not is_sample
            if is_end:
                break
            if is_sample:
                self._sample()
            else:
                self._settle()
        try:
            self.agent.close()
        except Exception:  # noqa: BLE001 - whatever an agent does, the others go on
            logger.exception("agent %s: it could not be closed", self.agent.name)

    def _sample(self) -> None:
        """Take one sample, and put its messages into the outboxes."""
        self._in_use = self.outboxes
        try:
            with self.agent.counters.count_sample(self._node.clock.monotonic) as failures:
                if self._hand_on(note_failures(self.agent.sample(self._node), failures)):
                    self.agent.commit_sample()
            self._settle_pause = _FIRST_SETTLE_PAUSE
            if self._remembers:
                self._unsettled = self._in_use
                self._settle()
        except CcagentError as error:
            logger.error("agent %s: %s", self.agent.name, error)
        except Exception:  # noqa: BLE001 - whatever an agent does, the others go on
            logger.exception("agent %s: a sample failed", self.agent.name)
        finally:
            self._in_use = []

    def _settle(self) -> None:
        """Call the agent's `save_state` when no sink has its records only in memory."""
        if self._unsettled and all(not outbox.unsaved for outbox in self._unsettled):
            self._unsettled = []
            try:
                self.agent.save_state()
            except Exception:  # noqa: BLE001 - whatever an agent does, the others go on
                logger.exception("agent %s: its state could not be saved", self.agent.name)
        self._settle_pause = min(self._settle_pause * 2, _LONGEST_SETTLE_PAUSE)

    def _hand_on(self, records: Iterable[Record]) -> bool:
        """Encode records for the profile of each outbox, and put the messages into the outboxes.

        Return whether no outbox refused a message. A refused one is sampled again.
        """
        if "counters" in self.agent.settings.extras:
            records = map(self._add_counters, records)
        outboxes: dict[Profile, list[Sink]] = {}
        for outbox in self._in_use:
            outboxes.setdefault(outbox.profile, []).append(outbox)
        if not outboxes:
            # Records that can't be encoded are counted without sinks also.
            outboxes = {Profile(format=form): [] for form in self.agent.wanted}
        messages = encode_each(
            records,
            outboxes,
            self._node,
            prefix=self._prefix,
            complain=self.agent.note_unencodable,
        )
        is_queued = True
        for profile, message in messages:
            for outbox in outboxes[profile]:
                is_queued &= outbox.put(message)
        return is_queued

    def _add_counters(self, record: Record) -> Record:
        sinks = {outbox.name: outbox.counters() for outbox in self._in_use}
        return add_counters(record, self.agent.counters, sinks)


class Schedule:
    """The ticks of one cadence, aligned to the UTC clock.

    No tick is repeated if the clock is set back by less than a cadence. If it is set back further,
    ticks follow the new time. Missed ticks are not made up for.
    """

    def __init__(self, every: float, now: float) -> None:
        self.every = every
        self._last = self.next = math.inf
        self.is_due(now)  # sets both, as after a clock that was set back

    def is_due(self, now: float) -> bool:
        """Return whether a tick is due at `now` (seconds since 1970); if so, advance."""
        is_due = now >= self.next
        # After the clock was set back, the old next tick could be years away.
        if is_due or now < self._last - self.every:
            self._last = now
            self.next = (now // self.every + 1) * self.every
        return is_due
