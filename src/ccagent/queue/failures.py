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
    from ccagent.queue.segment import QueuedMessage

_OVERTAKEN_AFTER = 3
_TRIAL_AFTER = 5
_TRIAL_EVERY = 4
_OVERTAKEN_OF_A_KIND = 3
_MOST_FAILED = 1000
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

    is_overtaken: later messages of its kind are sent before it. failures: those that are about the
    message; of an overtaken message those that count against it. score: successful minus failed
    attempts with others, since the last attempt of an overtaken message.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.retry_at = 0.0
        self.pause = _FIRST_PAUSE
        self.failures = self.score = 0
        self.is_overtaken = False


class Failures:
    """The failed messages of one queue, a bounded number."""

    def __init__(self, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._failed: dict[int, _Failed] = {}
        self._held: dict[str, float] = {}
        """Kinds that wait, and until when."""
        self._in_a_row = 0
        """Failures that may be the sink's, since a message was taken."""
        self._is_trial = False
        self._choice = ANY

    def choose(self, now: float) -> MessageChoice:
        """Return the selection from the queue at the monotonic time `now`."""
        is_trial, overtaken = self._is_trial, self._overtaken()
        due = [number for number, one in overtaken.items() if one.retry_at <= now]
        if due and not is_trial:
            self._choice = MessageChoice(due[0], [], [])
        else:
            kinds = [kind for kind, until in self._held.items() if until > now and not is_trial]
            self._choice = MessageChoice(None, kinds, [*(self._failed if is_trial else overtaken)])
        return self._choice

    def note_empty(self, now: float) -> float | None:
        """Note that the last choice selected no message.

        Return the seconds until a failed message is due; 0 to choose again, None without one.
        """
        if self._choice.number is not None:
            self._failed.pop(self._choice.number, None)  # it was dropped to make room
            return 0.0
        if self._is_trial:
            self._is_trial = False
            self._acquit([])
            return 0.0
        times = [*self._held.values(), *(one.retry_at for one in self._overtaken().values())]
        return min((each - now for each in times if each > now), default=None)

    def shorten(self, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Return the messages to send together: a message of a failed kind is sent separately."""
        for index, queued in enumerate(messages if self._held else ()):
            if queued.message.topic in self._held:
                return messages[: max(1, index)]
        return messages

    def note_success(self, taken: Sequence[QueuedMessage], now: float) -> None:
        """Note that the sink has taken messages."""
        if not (self._in_a_row or self._held or self._failed):
            return
        kinds = {queued.message.topic for queued in taken}
        overtaken = self._overtaken()
        is_fresh = all(queued.number not in overtaken for queued in taken)
        for one in overtaken.values():
            if one.kind in kinds:
                one.score += is_fresh
                one.retry_at = now if one.kind in self._held else one.retry_at
        if self._is_trial:
            for one in self._failed.values():
                if not one.is_overtaken:
                    self._overtake(one)
                    one.retry_at = now
        self._in_a_row, self._is_trial = 0, False
        self._acquit(kinds)
        for kind in kinds:
            self._held.pop(kind, None)
        for queued in taken:
            self._failed.pop(queued.number, None)

    def note_failure(
        self, queued: QueuedMessage, now: float, error: RetryableError
    ) -> FailureVerdict:
        """Note that the sink did not take a message. Return the consequence."""
        number, kind, after = queued.number, queued.message.topic, min(error.after, LONGEST_AFTER)
        failed = self._failed.get(number) or _Failed(kind)
        if failed.is_overtaken:
            failed.failures += failed.score > 0 and not error.is_busy
            if failed.score < 0:
                failed.failures = 0  # most attempts fail: the sink is to blame
            failed.score = 0
            self._postpone(failed, now, after)
            is_hopeless = failed.failures >= _HOPELESS_AFTER
            return FailureVerdict.HOPELESS if is_hopeless else FailureVerdict.OTHERS
        for one in self._overtaken().values():
            one.score -= one.kind == kind or not error.is_about_message
        if len(self._failed) < _MOST_FAILED:
            self._failed[number] = failed
        if self._is_trial:
            self._is_trial = False  # the next trial uses a later message
            return FailureVerdict.PAUSE
        if not error.is_about_message:
            self._in_a_row += 1
            turn = self._in_a_row - _TRIAL_AFTER
            is_trial = turn >= 0 and turn % _TRIAL_EVERY == 0 and self.try_another()
            return FailureVerdict.TRIAL if is_trial else FailureVerdict.PAUSE
        failed.failures += 1
        self._postpone(failed, now, after)
        self._held[kind] = failed.retry_at
        is_common = self._count_overtaken(kind) >= _OVERTAKEN_OF_A_KIND
        if is_common or failed.failures >= _OVERTAKEN_AFTER:
            self._overtake(failed)
        if is_common:
            self._held[kind] = now + _PAUSE_OF_A_KIND
        return FailureVerdict.OTHERS

    def forget(self, queued: QueuedMessage) -> None:
        """Forget a message that has become a dead letter."""
        failed = self._failed.pop(queued.number, None)
        if failed is not None and not failed.is_overtaken:
            self._held.pop(failed.kind, None)

    def resume(self) -> None:
        """Make all messages due."""
        self._held = dict.fromkeys(self._held, 0.0)
        for one in self._failed.values():
            one.retry_at = 0.0

    def try_another(self) -> bool:
        """Make `choose` return another message than the failed one. Return False if none failed."""
        self._is_trial = any(not one.is_overtaken for one in self._failed.values())
        return self._is_trial

    def _overtaken(self) -> dict[int, _Failed]:
        return {number: one for number, one in self._failed.items() if one.is_overtaken}

    def _count_overtaken(self, kind: str) -> int:
        return sum(one.kind == kind for one in self._overtaken().values())

    def _acquit(self, kinds: Collection[str]) -> None:
        """Forget failures that may be the sink's, and those of kinds that are taken again."""
        for number, one in [*self._failed.items()]:
            if not one.is_overtaken and (not one.failures or one.kind in kinds):
                del self._failed[number]

    def _postpone(self, one: _Failed, now: float, after: float) -> None:
        """Set the next attempt of a failed message.

        The longest pause grows with the number of overtaken messages of the kind, so their common
        rate of attempts is bounded.
        """
        count = self._count_overtaken(one.kind)
        longest = max(_LONGEST_PAUSE, _PAUSE_OF_A_KIND * count)
        if count >= _OVERTAKEN_OF_A_KIND and not one.is_overtaken:
            one.pause = longest
        one.retry_at = now + max(one.pause * self._jitter(0.5, 1.0), after)
        one.pause = min(one.pause * 2, longest)

    def _overtake(self, one: _Failed) -> None:
        """Send later messages of its kind before a message, until it is due."""
        one.is_overtaken = True
        one.failures = one.score = 0
        self._held.pop(one.kind, None)
