"""The outbox of a sink: messages wait here until the sink has taken them.

Agents put messages in and go on. A thread of the sink's own sends them, oldest first and in
batches; what the sink can't take now is tried again after a pause that grows.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.config import OutboxSettings
from ccagent.drain import Drain
from ccagent.log import logger
from ccagent.store import Store

if TYPE_CHECKING:
    from ccagent.counters import SinkCounters
    from ccagent.message import Message
    from ccagent.transports.base import SinkSettings, Transport

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_LONGEST_AFTER = 3600.0
_OTHER_DRAINS = 1.0


class Outbox:
    """Sends what is stored for one sink, from a thread of its own.

    The messages of sinks on this machine wait in memory, those of the network where `where` says.
    """

    def __init__(
        self,
        name: str,
        settings: SinkSettings,
        transport: Transport,
        where: OutboxSettings | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._store = Store(name, store_settings(transport, where))
        self._drain = Drain(name, self._store, transport)
        self._waiting = self._store.count()
        self._queued = 0
        self._dropped = 0
        self._closing = False
        self._successor: Outbox | None = None
        self._send_at = 0.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"sink {name}", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Take a message over. Does not wait for the sink, whatever that does."""
        with self._changed:
            successor = self._successor
            if successor is None:
                self._dropped += self._store.put([message])
                self._queued += 1
                if not self._waiting:
                    window = self.settings.sending_window.seconds
                    self._send_at = time.monotonic() + random.uniform(0.0, window)  # noqa: S311
                self._waiting += 1
                self._changed.notify_all()
        if successor is not None:
            successor.put(message)

    @property
    def is_idle(self) -> bool:
        """True when nothing waits."""
        with self._changed:
            return not self._waiting

    @property
    def is_alive(self) -> bool:
        """True until the thread has ended."""
        return self._thread.is_alive()

    def counters(self) -> SinkCounters:
        """Give what was counted since the start."""
        with self._changed:
            return msgspec.structs.replace(
                self._drain.counters,
                queued=self._queued,
                waiting=self._waiting,
                waiting_bytes=self._store.size(),
                dropped=self._dropped,
            )

    def close(self) -> None:
        """Ask the thread to send what waits, once, and to end. Does not wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def hand_over(self, successor: Outbox) -> None:
        """Ask the thread to end, and to leave what waits, or comes yet, to another outbox."""
        with self._changed:
            self._successor = successor
            self._closing = True
            self._changed.notify_all()

    def look(self) -> None:
        """Look what others have put into the store."""
        with self._changed:
            self._waiting = self._store.count()
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end; say what is lost, or left for the next time."""
        self._thread.join(max(0.0, seconds))
        with self._changed:
            left = self._waiting
        if left and self._store.is_on_disk:
            logger.info("sink %s: %d messages wait for the next start", self.name, left)
        elif left:
            logger.error("sink %s: %d messages could not be sent and are lost", self.name, left)

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while self._wait_for_work() and self._successor is None:
            if not self._drain.is_ours():
                self._rest(_OTHER_DRAINS)
                if self._closing:
                    break
                continue
            outcome = self._drain.send_batch()
            self._count(outcome.done)
            if outcome.goes_on:
                pause = _FIRST_PAUSE
                continue
            if self._closing:
                break
            rest = pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            self._rest(max(rest, min(outcome.after, _LONGEST_AFTER)))
            pause = min(pause * 2, _LONGEST_PAUSE)
        if self._successor is not None:
            self._leave_to(self._successor)
        self._drain.close()
        if self._successor is not None:
            self._successor.look()

    def _leave_to(self, successor: Outbox) -> None:
        """Move what waits to another outbox, unless that has the same file."""
        same_file = self._store.is_on_disk and self._store.path == successor._store.path
        while not same_file and self._drain.is_ours():
            spool, batch = self._store.oldest()
            if not batch:
                break
            for waiting in batch:
                successor.put(waiting.message)
            self._store.remove(spool, batch)
        with self._changed:
            self._waiting = 0

    def _wait_for_work(self) -> bool:
        """Wait until there is something to send; False when all is sent and it is to end."""
        with self._changed:
            while not self._closing:
                if not self._waiting:
                    self._changed.wait()
                elif (rest := self._send_at - time.monotonic()) > 0:
                    self._changed.wait(rest)
                else:
                    return True
            return bool(self._waiting)

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _count(self, done: int) -> None:
        """Take what is done with off the count; at the end look what others may have put in."""
        with self._changed:
            self._waiting -= done
            if self._waiting <= 0 or not done:
                self._waiting = self._store.count()


def store_settings(transport: Transport, where: OutboxSettings | None) -> OutboxSettings:
    """Say where the messages for a transport wait."""
    return where if where is not None and transport.is_network else OutboxSettings()
