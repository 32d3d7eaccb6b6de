"""The order of attempts after failures, and the point at which a message becomes a dead letter.

If the sink is unreachable, every message fails. If the sink can't take a message, only this message
fails. Attempts with other messages distinguish the two cases:

- After five failures in a row another message is tried from time to time, each time a later one.
  If it is taken, later messages overtake those that failed.
- If the error is about the message, only its kind waits, with growing pauses. After three failures
  the message is overtaken. If more than three of a kind are overtaken, the cause may be the kind,
  such as a subject without a stream. Then one more message is overtaken each minute.
- An overtaken message is tried again after growing pauses. It becomes a dead letter when it has
  failed six times, each time after more attempts with others of its kind succeeded than failed.
  If more failed, it starts at 0 again. Failures because of a busy receiver do not count.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.errors import RetryableError
    from ccagent.queue.entry import QueuedMessage

_OVERTAKEN_AFTER = 3
_TRIAL_AFTER = 5
_TRIAL_EVERY = 4
_OVERTAKEN_OF_A_KIND = 3
_OVERTAKEN = 1000
_SUSPECTS = 100
_HOPELESS_AFTER = 6
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 600.0
_PAUSE_OF_A_KIND = 60.0
LONGEST_AFTER = 3600.0
"""Maximum pause in seconds that a receiver may ask for."""


class MessageChoice(NamedTuple):
    """A selection from the queue: one message by number, or the oldest except for some."""

    number: int | None
    without_kinds: Collection[str]
    without_numbers: Collection[int]


ANY = MessageChoice(None, [], [])
"""The oldest messages."""


class FailureVerdict(Enum):
    """The consequence of a failure.

    PAUSE: the sink may be unreachable. TRIAL: another message must be tried at once, to check this.
    OTHERS: other messages may be sent at once. HOPELESS: the message must become a dead letter.
    """

    PAUSE = 0
    TRIAL = 1
    OTHERS = 2
    HOPELESS = 3


class _Failed:
    """A message that has failed, and when it is due again.

    failures: all of them; of an overtaken message those that count against it. score: successful
    minus failed attempts with others, since the last attempt of an overtaken message.
    """

    def __init__(self, number: int, kind: str, retry_at: float = 0.0) -> None:
        self.number = number
        self.kind = kind
        self.retry_at = retry_at
        self.pause = _FIRST_PAUSE
        self.failures = self.score = 0


class Failures:
    """The failed messages of one queue, a bounded number."""

    def __init__(self, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._held: dict[str, _Failed] = {}
        """Kinds that wait, each with its message that failed last."""
        self._overtaken: dict[int, _Failed] = {}
        self._suspects: dict[int, str] = {}
        """Number and kind of the messages that failed since one was taken."""
        self._in_a_row = 0
        """Failures that may be the sink's, since a message was taken."""
        self._is_trial = False
        self._choice = ANY

    def choose(self, now: float) -> MessageChoice:
        """Return the selection from the queue at the monotonic time `now`."""
        due = [number for number, one in self._overtaken.items() if one.retry_at <= now]
        if due and not self._is_trial:
            self._choice = MessageChoice(due[0], [], [])
            return self._choice
        suspects = self._suspects if self._is_trial else {}
        kinds = [
            kind
            for kind, held in self._held.items()
            if held.retry_at > now and held.number not in suspects
        ]
        self._choice = MessageChoice(None, kinds, [*self._overtaken, *suspects])
        return self._choice

    def note_empty(self) -> bool:
        """Note that the last choice selected no message. Return whether to choose again."""
        if self._choice.number is not None:
            self._overtaken.pop(self._choice.number, None)  # it was dropped to make room
            return True
        was_trial, self._is_trial = self._is_trial, False
        if was_trial:
            self._suspects.clear()
        return was_trial

    def shorten(self, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Return the messages to send together: a message of a failed kind is sent separately."""
        for index, queued in enumerate(messages if self._held else ()):
            if queued.message.topic in self._held:
                return messages[: max(1, index)]
        return messages

    def note_success(self, taken: Sequence[QueuedMessage], now: float) -> None:
        """Note that the sink has taken messages."""
        if not (self._in_a_row or self._is_trial or self._held or self._overtaken):
            return
        if self._is_trial:
            for number, kind in self._suspects.items():
                self._overtake(_Failed(number, kind, now))
        self._suspects.clear()
        self._in_a_row, self._is_trial = 0, False
        kinds = {queued.message.topic for queued in taken}
        is_fresh = all(queued.number not in self._overtaken for queued in taken)
        for one in self._overtaken.values():
            if one.kind in kinds:
                one.score += is_fresh
                one.retry_at = now if one.kind in self._held else one.retry_at
        for kind in kinds:
            self._held.pop(kind, None)
        for queued in taken:
            self._overtaken.pop(queued.number, None)

    def note_failure(
        self, queued: QueuedMessage, now: float, error: RetryableError
    ) -> FailureVerdict:
        """Note that the sink did not take a message. Return the consequence."""
        number, kind, after = queued.number, queued.message.topic, min(error.after, LONGEST_AFTER)
        failed = self._overtaken.get(number)
        if failed is not None:
            failed.failures += failed.score > 0 and not error.is_busy
            if failed.score < 0:
                failed.failures = 0  # most attempts fail: the sink is to blame
            failed.score = 0
            self._postpone(failed, now, after)
            is_hopeless = failed.failures >= _HOPELESS_AFTER
            return FailureVerdict.HOPELESS if is_hopeless else FailureVerdict.OTHERS
        for one in self._overtaken.values():
            one.score -= one.kind == kind or not error.is_about_message
        if self._is_trial:
            self._is_trial = False
            # The next trial uses a later message. The number of remembered messages is bounded.
            if len(self._suspects) < _SUSPECTS:
                self._suspects[number] = kind
            return FailureVerdict.PAUSE
        if not error.is_about_message:
            self._suspects[number] = kind
            turn = self._in_a_row = self._in_a_row + 1
            is_trial = turn >= _TRIAL_AFTER and (turn - _TRIAL_AFTER) % _TRIAL_EVERY == 0
            return FailureVerdict.TRIAL if is_trial and self.try_another() else FailureVerdict.PAUSE
        failed = self._held.get(kind)
        if failed is None or failed.number != number:
            failed = self._held[kind] = _Failed(number, kind)
        failed.failures += 1
        self._postpone(failed, now, after)
        if self._count_overtaken(kind) >= _OVERTAKEN_OF_A_KIND:
            self._overtake(failed)
            self._held[kind] = _Failed(number, kind, now + _PAUSE_OF_A_KIND)
        elif failed.failures >= _OVERTAKEN_AFTER:
            self._overtake(failed)
        return FailureVerdict.OTHERS

    def forget(self, queued: QueuedMessage) -> None:
        """Forget a message that has become a dead letter."""
        self._overtaken.pop(queued.number, None)
        self._suspects.pop(queued.number, None)
        held = self._held.get(queued.message.topic)
        if held is not None and held.number == queued.number:
            del self._held[queued.message.topic]

    def resume(self) -> None:
        """Make all messages due."""
        for one in self._all():
            one.retry_at = 0.0

    def try_another(self) -> bool:
        """Make `choose` return another message than the failed one. Return False if none failed."""
        held = next(iter(self._held.values()), None)
        if held is not None and not self._suspects:
            self._suspects[held.number] = held.kind
        self._is_trial = bool(self._suspects)
        return self._is_trial

    def next_due(self, now: float) -> float | None:
        """Return the monotonic time at which the next failed message is due; None without one."""
        return min((one.retry_at for one in self._all() if one.retry_at > now), default=None)

    def _all(self) -> list[_Failed]:
        return [*self._held.values(), *self._overtaken.values()]

    def _count_overtaken(self, kind: str) -> int:
        return sum(one.kind == kind for one in self._overtaken.values())

    def _postpone(self, one: _Failed, now: float, after: float) -> None:
        """Set the next attempt of a failed message.

        The longest pause grows with the number of overtaken messages of the kind, so their common
        rate of attempts is bounded.
        """
        count = self._count_overtaken(one.kind)
        longest = max(_LONGEST_PAUSE, _PAUSE_OF_A_KIND * count)
        if count >= _OVERTAKEN_OF_A_KIND and one.number not in self._overtaken:
            one.pause = longest
        one.retry_at = now + max(one.pause * self._jitter(0.5, 1.0), after)
        one.pause = min(one.pause * 2, longest)

    def _overtake(self, one: _Failed) -> None:
        """Send later messages of its kind before a message, until it is due."""
        if len(self._overtaken) < _OVERTAKEN:
            self._overtaken[one.number] = one
            self._held.pop(one.kind, None)
            one.failures = one.score = 0
