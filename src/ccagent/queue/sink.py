"""A sink: its queue, and the thread that sends the queued messages."""

from __future__ import annotations

import random
import threading
import time
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from ccagent.config.configuration import OutboxSettings
from ccagent.log import logger
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender

if TYPE_CHECKING:
    from ccagent.counters import SinkCounters
    from ccagent.records.message import Message
    from ccagent.transports.base import SinkSettings, Transport

_FILE_RETRIED = 1.0
"""Seconds until a file that another process sends, or that can't be read, is tried again."""
_LONGEST_WAIT = 5.0
"""Seconds between checks of the queue: another process may have queued messages, and messages in
memory may fit on the disk again."""
_RESTART_PAUSE = 5.0


class Sink:
    """Sends the messages of one sink in a dedicated thread.

    Messages for sinks on this machine are queued in memory. Messages for the network are queued
    according to `where`. The thread ends only after `close` or `retire`, and continues after an
    unforeseen exception.
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
        self.profile = settings.profile
        self._queue = Queue(name, where if where and transport.is_network else OutboxSettings())
        self._sender = Sender(name, self._queue, transport)
        self._queued = 0
        self._restarts = 0
        self._closing = False
        self._successor: Sink | None = None
        self._send_at = 0.0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._start()

    def put(self, message: Message) -> bool:
        """Queue a message, and return whether it was not refused. Never waits for the receiver."""
        with self._changed:
            if self._successor is not None:
                return self._successor.put(message)
            window = self.settings.sending_window.seconds
            if window and not self._queue.has_work():
                self._send_at = time.monotonic() + random.uniform(0.0, window)  # noqa: S311
            is_queued = self._queue.put([message])
            self._queued += is_queued
            self._changed.notify_all()
        if self._thread is None:
            self._start()
        return is_queued

    @property
    def is_idle(self) -> bool:
        """True when the queue is empty."""
        return not self._queue.has_work()

    @property
    def unsaved(self) -> int:
        """The number of messages that would be lost if the process ended now."""
        return self._queue.count(in_memory=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def counters(self) -> SinkCounters:
        """Return the counters since the start."""
        return msgspec.structs.replace(
            self._sender.counters,
            queued=self._queued,
            backlog=self._queue.count(),
            backlog_bytes=self._queue.size(),
            dropped=self._queue.dropped,
            damaged=self._queue.damaged,
            restarts=self._restarts,
            refused=self._queue.refused,
            queue_error=self._queue.notice,
        )

    def close(self) -> None:
        """Ask the thread to send the backlog once and to end. Does not wait for the end.

        If no thread can be started, the sink ends here.
        """
        with self._changed:
            is_first, self._closing = not self._closing, True
            self._changed.notify_all()
        if self._thread is None:
            self._start()
        if self._thread is None and is_first:
            self._end()

    def retire(self, successor: Sink) -> None:
        """Ask the thread to end. Another sink takes over the backlog and new messages."""
        with self._changed:
            self._successor = successor
        self.close()

    def wake(self) -> None:
        """Wake the thread after another process or sink has queued messages."""
        with self._changed:
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end. Log the number of lost and of remaining messages."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
        left, lost = self._queue.count(), self._queue.count(in_memory=True)
        if left > lost and self._successor is None:
            logger.info(
                "sink %s: %d messages stay queued for the next start", self.name, left - lost
            )
        if lost:
            reason = f" ({self._queue.error})" if self._queue.error else ""
            logger.error(
                "sink %s: %d messages could not be sent and are lost%s", self.name, lost, reason
            )

    def _start(self) -> None:
        """Start the thread. If the system has no more threads, `put` tries again."""
        thread = threading.Thread(target=self._run, name=f"sink {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.error("sink %s: %s; messages stay queued", self.name, error)
        else:
            self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                self._work()
                break
            except BaseException:  # noqa: BLE001 - only the daemon ends a sink
                self._restarts += 1
                logger.exception("sink %s: unforeseen error; continuing", self.name)
                if self._closing:
                    break
                self._rest(_RESTART_PAUSE)
        self._end()

    def _work(self) -> None:
        """Send messages until the sink is closed or retired."""
        while self._wait_for_work() and self._successor is None:
            self._queue.check()
            is_last = self._closing
            if is_last:
                self._sender.resume()
            outcome = self._sender.send_next()
            is_stuck = outcome.wait is None  # what is queued can't be read
            while outcome.wait == 0 and self._successor is None:
                outcome = self._sender.send_next()
            if is_last:
                break
            if outcome.wait or is_stuck:
                self._rest(outcome.wait or _FILE_RETRIED)

    def _wait_for_work(self) -> bool:
        """Wait for a message to send. Return False if the queue is empty and the sink must end."""
        with self._changed:
            while not self._closing:
                if not self._queue.has_work():
                    self._changed.wait(_LONGEST_WAIT if self._queue.path else None)
                elif (rest := self._send_at - time.monotonic()) > 0:
                    self._changed.wait(rest)
                else:
                    return True
            return self._queue.has_work()

    def _rest(self, seconds: float) -> None:
        """Wait until a time has passed, a message is queued, or the sink must end."""
        with self._changed:
            if not self._closing:
                self._changed.wait(min(seconds, _LONGEST_WAIT))

    def _end(self) -> None:
        """Hand the backlog over to the successor, if any, and close queue and transport."""
        successor = self._successor
        try:
            if successor is not None:
                self._drain_to(successor)
        finally:
            self._sender.close()
        if successor is not None:
            successor.wake()  # the files are unlocked

    def _drain_to(self, successor: Sink) -> None:
        """Move the backlog to another sink, except for messages in files that both use."""
        in_memory = self._queue.path == successor._queue.path
        while (batch := self._queue.next_batch(in_memory=in_memory)) or (
            self._queue.is_blocked() and not in_memory
        ):
            taken = [*takewhile(lambda queued: successor.put(queued.message), batch)]
            self._queue.remove([queued.number for queued in taken])
            if not taken:  # the other is full and refuses them, or a command sends older ones
                time.sleep(_FILE_RETRIED)
                self._queue.check()
