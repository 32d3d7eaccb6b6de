"""Sending the messages of a queue: batches, pauses after failures, dead letters."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from ccagent.counters import SinkCounters
from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.log import logger
from ccagent.queue.failures import LONGEST_AFTER, Failures, FailureVerdict
from ccagent.queue.queue import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.queue.queue import Queue
    from ccagent.queue.segment import QueuedMessage
    from ccagent.records.message import Message
    from ccagent.transports.base import Transport

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_FIRST_BATCH = 16
_BATCH_GROWTH = 4
_BATCH_SECONDS = 0.25
"""Maximum seconds per batch: a killed process repeats its unacknowledged messages."""
_LOGGED_EVERY = 3600.0
"""Seconds until an unchanged error is logged again."""
_MOST_TAKEN_PARTS = 100_000
"""Maximum number of remembered parts, of messages whose other parts are not sent yet."""
_LEAST_PART = 1024
"""Minimum size of a part in bytes."""
_MOST_PARTS = 64
"""Maximum ratio of the sizes of a message and its parts.

Also the maximum number of requests to find the refused records of a message.
"""
_PARTS_PER_SUCCESS = 8
"""Additional requests for each part that is taken: the search is then worth its cost."""
_FEW_PARTS = 6
"""Maximum number of requests if the whole previous message was refused."""


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
        self._batch = _FIRST_BATCH
        self._pause = _FIRST_PAUSE
        self._paused_until = 0.0
        self._failures = Failures(jitter)
        self._done = 0
        self._parts = PartSender(transport)
        self._unreachable = ""
        """The last logged reason of a pause; empty while the sink accepts messages."""
        self._logged_at = 0.0
        self.counters = SinkCounters()

    def resume(self) -> None:
        """End all pauses: every message is tried again at once."""
        self._paused_until = 0.0
        self._pause = _FIRST_PAUSE
        self._failures.resume()

    def send_next(self) -> SendOutcome:
        """Send a failed message that is due, else the oldest messages."""
        now = self._monotonic()
        if now < self._paused_until:
            return SendOutcome(0, self._paused_until - now)
        while not (batch := self._queue.next_batch(self._batch, self._failures.choose(now))):
            wait = self._failures.note_empty(now)
            if wait != 0:
                return SendOutcome(0, wait)
        batch = self._failures.shorten(batch)
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
        self._queue.check()
        tried_another = False
        while (outcome := self.send_next()).wait is not None:
            tried_another &= not outcome.done
            if outcome.wait == 0:
                continue
            if tried_another or self._queue.count() == 1 or not self._failures.try_another():
                break
            tried_another = True
            self._paused_until = 0.0
        left = self._queue.count()
        if left and self._queue.is_blocked():
            logger.info("sink %s: another process sends the %d messages", self._name, left)
        return not left

    def close(self) -> None:
        """Close the transport and the queue."""
        with contextlib.suppress(Exception):
            self._transport.close()
        self._queue.close()

    def _send(self, messages: list[QueuedMessage]) -> SendOutcome:
        """Send a batch, and update the queue for each message."""
        self.counters.sent += len(messages)
        self._done = 0
        try:
            while self._done < len(messages):
                self._send_some(messages[self._done :])
        except RetryableError as error:
            return self._retry(messages, error)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            # The cause is a shortage of memory, threads or descriptors, or a defect, not the
            # message. The message stays queued. The next attempt opens a new connection.
            with contextlib.suppress(Exception):
                self._transport.close()
            text = f"{type(error).__name__}: {error}"
            if text != self.counters.last_error:
                logger.warning("sink %s: unforeseen error", self._name, exc_info=error)
            return self._retry(messages, RetryableError(text))
        return SendOutcome(self._done, 0)

    def _send_some(self, messages: Sequence[QueuedMessage]) -> None:
        """Send messages together; a message that is too large or refused is sent in parts."""
        limit = self._transport.largest_body or sys.maxsize
        if len(messages[0].message.body) > limit:
            error = TooLargeError(f"larger than {limit} bytes", limit=limit)
            self._split(messages[0], error)
            return
        run = [*takewhile(lambda queued: len(queued.message.body) <= limit, messages)]
        try:
            self._transport.send([queued.message for queued in run])
        except RetryableError as error:
            self._acknowledge(run[: error.delivered])
            raise
        except RejectedError as error:
            self._acknowledge(run[: error.delivered])
            self._split(run[error.delivered], error)
        else:
            self._acknowledge(run)
            self.counters.last_error = ""

    def _split(self, queued: QueuedMessage, error: RejectedError) -> None:
        """Send a message in parts. Refused parts become dead letters; if all are, the message does.

        error: the refusal of the whole message.
        """
        taken, refused = self._parts.send(queued.message, error)
        if not taken:
            self._reject(queued, refused[0][1] if refused else str(error))
            return
        for part, reason in refused:
            logger.error("sink %s: part of a message becomes a dead letter: %s", self._name, reason)
            self._queue.add_dead_letter(part, reason)
            self.counters.rejected += 1
            self.counters.last_error = reason
        self._acknowledge([queued])
        self._parts.forget(taken)

    def _acknowledge(self, taken: Sequence[QueuedMessage]) -> None:
        """Delete messages that the sink has taken."""
        if not taken:
            return
        self._done += len(taken)
        self._pause = _FIRST_PAUSE
        if self._unreachable:
            logger.info("sink %s: accepts messages again", self._name)
            self._unreachable = ""
        self.counters.acknowledged += len(taken)
        self._parts.refused_wholly.difference_update(queued.message.topic for queued in taken)
        self._failures.note_success(taken, self._monotonic())
        self._queue.remove([queued.number for queued in taken])

    def _reject(self, queued: QueuedMessage, reason: str) -> None:
        logger.error("sink %s: a message becomes a dead letter: %s", self._name, reason)
        self._done += 1
        self._queue.reject(queued.number, reason)
        self._failures.forget(queued)
        self.counters.rejected += 1
        self.counters.last_error = reason

    def _retry(self, messages: list[QueuedMessage], error: RetryableError) -> SendOutcome:
        """Note a failure, and pause unless the failure concerns only one message."""
        failed, now = messages[self._done], self._monotonic()
        text = str(error)
        self.counters.retried += len(messages) - self._done
        self.counters.last_error = text
        # One message is enough to check whether the sink is reachable again.
        self._batch = 1
        verdict = self._failures.note_failure(failed, now, error)
        if verdict is FailureVerdict.HOPELESS:
            self._reject(failed, f"{text}; repeatedly, while others were taken")
        elif verdict is FailureVerdict.OTHERS:
            logger.warning("sink %s: %s; other messages are sent meanwhile", self._name, text)
        elif verdict is FailureVerdict.PAUSE:
            rest = max(self._pause * self._jitter(0.5, 1.0), min(error.after, LONGEST_AFTER))
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            self._paused_until = now + rest
            if text != self._unreachable or now >= self._logged_at + _LOGGED_EVERY:
                self._unreachable, self._logged_at = text, now
                plan = "" if self._transport.is_one_shot else f"; retrying in {rest:.0f} s"
                logger.warning("sink %s: %s%s", self._name, text, plan)
            return SendOutcome(self._done, rest)
        return SendOutcome(self._done, 0)


class PartSender:
    """Sends messages in parts, and remembers the parts taken in earlier attempts."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._taken: set[str] = set()
        self.refused_wholly: set[str] = set()
        """Kinds of which the receiver refused each part of a message, and took none since."""

    def send(
        self, message: Message, error: RejectedError
    ) -> tuple[list[Message], list[tuple[Message, str]]]:
        """Send a refused message in parts. Return the parts that were taken, and the refused ones.

        A part that is too large is split to the limit, any other refused one is halved, to lose few
        records. The number of requests for halves is bounded. The bound is low if the receiver
        refused a whole message of this kind, and took none since. error: the refusal of the whole
        message. Raise RetryableError if the sink is unreachable or busy, or if it takes no message
        of a usual size: its limit is wrong, not the message.
        """
        least = max(_LEAST_PART, len(message.body) // _MOST_PARTS)
        taken: list[Message] = []
        refused: list[tuple[Message, str]] = []
        left = _FEW_PARTS if message.topic in self.refused_wholly else _MOST_PARTS
        pending = _cut(message, error, least, is_first=True)
        while pending:
            part, error = pending.pop()
            is_half = not isinstance(error, TooLargeError)
            if is_half and not left:
                refused.append((part, str(error)))
                continue
            left -= is_half
            try:
                if part.id not in self._taken:
                    self._transport.send([part])
            except RejectedError as reason:
                smaller = _cut(part, reason, least, is_first=not taken)
                pending += smaller
                if not smaller:
                    refused.append((part, str(reason)))
            else:
                left += _PARTS_PER_SUCCESS
                taken.append(part)
                self._taken |= {part.id} - {""}
        if not taken and len(refused) > 1:
            self.refused_wholly.add(message.topic)
        return taken, refused

    def forget(self, taken: Iterable[Message]) -> None:
        """Forget the parts of a message that is finished."""
        self._taken.difference_update(part.id for part in taken)
        if len(self._taken) > _MOST_TAKEN_PARTS:
            self._taken.clear()


def _cut(
    message: Message, error: RejectedError, least: int, *, is_first: bool
) -> list[tuple[Message, RejectedError]]:
    """Return smaller parts of a refused message with the error, the last first.

    least: minimum size of parts in bytes. is_first: no part was taken before.
    """
    from ccagent.records.splitting import halve_message, split_message

    if not isinstance(error, TooLargeError):
        parts = halve_message(message)
    else:
        size = len(message.body)
        limit = error.limit if error.limit and error.limit < size else size // 2
        if limit < _LEAST_PART and is_first:
            text = (
                f"{error}: a limit below {_LEAST_PART} bytes is wrong: correct it at the receiver"
            )
            raise RetryableError(text, is_about_message=True)
        parts = split_message(message, limit) if limit >= least else []
    return [(part, error) for part in reversed(parts)]
