"""Sending the messages of a queue: batches, pauses after failures, dead letters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import sys
import time
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from ccagent.counters import SinkCounters
from ccagent.errors import CcagentError, RejectedError, RetryableError
from ccagent.log import logger
from ccagent.queue.database import MEMORY
from ccagent.queue.failures import Failures
from ccagent.queue.part_sender import PartSender, choose_limit
from ccagent.queue.queue import BATCH
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.queue.database import QueueDatabase
    from ccagent.queue.queue import Queue, QueueBatch
    from ccagent.queue.rows import QueuedMessage
    from ccagent.transports.base import Transport

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_LONGEST_AFTER = 3600.0
_FIRST_BATCH = 16
_BATCH_GROWTH = 4
_BATCH_SECONDS = 0.25
"""Maximum seconds per batch: a killed process repeats its unacknowledged messages."""
_LOGGED_EVERY = 3600.0
"""Seconds until an unchanged error is logged again."""


class SendOutcome(NamedTuple):
    """The result of one attempt to send.

    done: number of messages that left the queue. wait: seconds until the next attempt; None if no
    attempt is needed before a message is queued.
    """

    done: int
    wait: float | None


class Sender:
    """Sends the messages of a queue, oldest first, through a transport.

    After each failure it pauses for a longer time. If a message fails while others succeed, the
    others overtake it. It becomes a dead letter when it has failed repeatedly while others of its
    kind succeeded, or when the sink rejects it.
    """

    def __init__(
        self,
        name: str,
        queue: Queue,
        transport: Transport,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._name = name
        self._queue = queue
        self._transport = transport
        self._monotonic = monotonic
        self._jitter = jitter
        self._lock = -1
        self._lock_error = ""
        self._disk: QueueDatabase | None = None
        self._batch = _FIRST_BATCH
        self._pause = _FIRST_PAUSE
        self._paused_until = 0.0
        self._failures = Failures(jitter)
        self._done = 0
        self._parts = PartSender(transport)
        self._unreachable = _RateLimitedText()
        self._alone = _RateLimitedText()
        self.counters = SinkCounters()

    def take_lock(self) -> bool:
        """Return whether this process has the lock for sending the messages on disk."""
        if not self._queue.is_on_disk or self._lock >= 0:
            return True
        descriptor = -1
        try:
            descriptor = open_private(self._queue.path + ".lock")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, CcagentError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            if not isinstance(error, BlockingIOError) and str(error) != self._lock_error:
                self._lock_error = str(error)
                logger.error(
                    "sink %s: no lock, so no message is sent from disk: %s",
                    self._name,
                    error,
                )
            return False
        self._lock = descriptor
        self._lock_error = ""
        return True

    def resume(self) -> None:
        """End all pauses: every message is tried again at once."""
        self._paused_until = 0.0
        self._pause = _FIRST_PAUSE
        self._failures.resume()

    def send_next(self) -> SendOutcome:
        """Send the oldest messages that are due."""
        now = self._monotonic()
        if now < self._paused_until:
            return SendOutcome(0, self._paused_until - now)
        batch = self._next_batch(now)
        if not batch.messages:
            due = self._failures.next_due()
            return SendOutcome(0, None if due is None else max(0.001, due - now))
        self._batch = min(self._batch * _BATCH_GROWTH, BATCH)
        outcome = self._send(batch)
        seconds = self._monotonic() - now
        if outcome.wait == 0 and seconds > _BATCH_SECONDS:
            self._batch = int(outcome.done * _BATCH_SECONDS / seconds) // _BATCH_GROWTH or 1
        return outcome

    def send_all(self) -> bool:
        """Send the backlog once. Return whether the queue is empty afterwards.

        After a failure another message is tried, before the sink is regarded as unreachable.
        """
        self.take_lock()
        self._queue.check()
        tried_another = False
        while True:
            outcome = self.send_next()
            if outcome.done:
                tried_another = False
            if outcome.wait == 0:
                continue
            is_only_one = self._queue.count() == 1
            if outcome.wait is None or tried_another or is_only_one:
                break
            if not self._failures.try_another():
                break
            tried_another = True
            self._paused_until = 0.0
        left = self._queue.count()
        if left and self._lock < 0 and self._queue.is_on_disk:
            logger.info("sink %s: another process sends the %d messages", self._name, left)
        return not left

    def close(self) -> None:
        """Close the transport and the queue."""
        with contextlib.suppress(Exception):
            self._transport.close()
        self._queue.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _next_batch(self, now: float) -> QueueBatch:
        """Select messages to send: a failed message that is due, else the oldest messages."""
        queue, from_disk = self._queue, self._lock >= 0
        while True:
            choice = self._failures.choose(now)
            batch = queue.next_batch(
                self._batch,
                from_disk=from_disk,
                only_number=choice.number,
                without_kinds=choice.without_kinds,
                without_numbers=choice.without_numbers,
            )
            if batch.database.path != MEMORY and batch.database is not self._disk:
                # The numbers refer to another file.
                if self._disk is not None:
                    self._failures = Failures(self._jitter)
                self._disk = batch.database
            if batch.messages or not self._failures.note_empty():
                return batch._replace(messages=self._failures.shorten(batch.messages))

    def _send(self, batch: QueueBatch) -> SendOutcome:
        """Send a batch, and update the queue for each message."""
        messages = batch.messages
        self.counters.sent += len(messages)
        self._done = 0
        try:
            while self._done < len(messages):
                self._send_some(batch, messages[self._done :])
        except RetryableError as error:
            return self._retry(batch, error)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            # The cause is a shortage of memory, threads or descriptors, or a defect, not the
            # message. The message stays queued. The next attempt opens a new connection.
            with contextlib.suppress(Exception):
                self._transport.close()
            text = f"{type(error).__name__}: {error}"
            if text != self.counters.last_error:
                logger.warning("sink %s: unforeseen error", self._name, exc_info=error)
            return self._retry(batch, RetryableError(text))
        return SendOutcome(self._done, 0)

    def _send_some(self, batch: QueueBatch, messages: Sequence[QueuedMessage]) -> None:
        """Send messages together; a message that is too large or refused is sent in parts."""
        limit = self._transport.largest_body or sys.maxsize
        if len(messages[0].message.body) > limit:
            self._split(batch, messages[0], limit)
            return
        run = [*takewhile(lambda queued: len(queued.message.body) <= limit, messages)]
        try:
            self._transport.send([queued.message for queued in run])
        except RetryableError as error:
            self._acknowledge(batch, run[: error.delivered])
            raise
        except RejectedError as error:
            self._acknowledge(batch, run[: error.delivered])
            refused = run[error.delivered]
            self._split(batch, refused, choose_limit(error, refused.message), error)
        else:
            self._acknowledge(batch, run)
            self.counters.last_error = ""

    def _split(
        self,
        batch: QueueBatch,
        queued: QueuedMessage,
        limit: int,
        error: RejectedError | None = None,
    ) -> None:
        """Send a message in parts. Refused parts become dead letters; if all are, the message does.

        limit: maximum bytes of a part. error: the refusal of the whole message, if it was sent.
        """
        taken, refused = self._parts.send(queued.message, limit, error)
        if not taken:
            reason = refused[0][1] if refused else str(error or f"larger than {limit} bytes")
            self._reject(batch, queued, reason)
            return
        for part, reason in refused:
            logger.error("sink %s: part of a message becomes a dead letter: %s", self._name, reason)
            self._queue.add_dead_letter(batch, part, reason)
            self.counters.rejected += 1
            self.counters.last_error = reason
        self._acknowledge(batch, [queued])
        self._parts.forget(taken)

    def _acknowledge(self, batch: QueueBatch, taken: Sequence[QueuedMessage]) -> None:
        """Delete messages that the sink has taken."""
        if not taken:
            return
        self._done += len(taken)
        self._pause = _FIRST_PAUSE
        if self._unreachable.text:
            logger.info("sink %s: accepts messages again", self._name)
            self._unreachable.text = ""
        self.counters.acknowledged += len(taken)
        self._parts.note_taken(queued.message.topic for queued in taken)
        self._failures.note_success(taken, self._monotonic())
        self._queue.remove(batch, [queued.number for queued in taken])

    def _reject(self, batch: QueueBatch, queued: QueuedMessage, reason: str) -> None:
        logger.error("sink %s: a message becomes a dead letter: %s", self._name, reason)
        self._done += 1
        self._queue.reject(batch, queued.number, reason)
        self._failures.forget(queued)
        self.counters.rejected += 1
        self.counters.last_error = reason

    def _retry(self, batch: QueueBatch, error: RetryableError) -> SendOutcome:
        """Note a failure, and pause unless the failure concerns only one message."""
        failed, now = batch.messages[self._done], self._monotonic()
        text = str(error)
        self.counters.retried += len(batch.messages) - self._done
        self.counters.last_error = text
        # One message is enough to check whether the sink is reachable again.
        self._batch = 1
        verdict = self._failures.note_failure(
            failed, now, is_about_message=error.is_about_message, is_busy=error.is_busy
        )
        if verdict.is_hopeless:
            self._reject(batch, failed, f"{text}; repeatedly, while others were taken")
            return SendOutcome(self._done, 0)
        if verdict.is_alone:
            if self._alone.is_new(text, now):
                logger.warning("sink %s: %s; other messages are sent meanwhile", self._name, text)
            self._failures.postpone(failed, now + min(error.after, _LONGEST_AFTER))
            return SendOutcome(self._done, 0)
        if verdict.is_trial_wanted:
            return SendOutcome(self._done, 0)
        rest = max(self._pause * self._jitter(0.5, 1.0), min(error.after, _LONGEST_AFTER))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._paused_until = now + rest
        if self._unreachable.is_new(text, now):
            plan = "" if self._transport.is_one_shot else f"; retrying in {rest:.0f} s"
            logger.warning("sink %s: %s%s", self._name, text, plan)
        return SendOutcome(self._done, rest)


class _RateLimitedText:
    """The last logged text, to log an unchanged text only once per hour."""

    def __init__(self) -> None:
        self.text = ""
        self._at = 0.0

    def is_new(self, text: str, now: float) -> bool:
        """Return whether to log a text at `now`."""
        if text == self.text and now < self._at + _LOGGED_EVERY:
            return False
        self.text, self._at = text, now
        return True
