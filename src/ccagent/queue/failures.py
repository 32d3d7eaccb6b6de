"""The order of attempts after failures, and the point at which a message becomes a dead letter.

If the sink is unreachable, every message fails. If the sink can't take a message, only this message
fails. An attempt with another message distinguishes the two cases:

- When the oldest message of a kind has failed three times, other kinds are sent first.
- If other messages succeed, later messages of its kind overtake the failed message. If more than
  three are overtaken, the cause may be the kind, such as a subject without a stream. Then one more
  message is overtaken each minute.
- If every message fails, another message is tried from time to time, each time a later one.
- An overtaken message is tried again after growing pauses. It becomes a dead letter when it has
  failed six times, each time after others of its kind were taken and most attempts had succeeded.
  Failures because of a busy receiver do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ccagent.queue.entry import QueuedMessage

_ROTATED_AFTER = 3
_TRIAL_AFTER = 5
_TRIAL_EVERY = 4
_ALONE = 2
_OVERTAKEN_OF_A_KIND = 3
_OVERTAKEN = 1000
_SUSPECTS = 100
_HOPELESS_AFTER = 6
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_LONGEST_OVERTAKEN_PAUSE = 600.0


class MessageChoice(NamedTuple):
    """A selection from the queue: one message by number, or the oldest except for some."""

    number: int | None
    without_kinds: Collection[str]
    without_numbers: Collection[int]


ANY = MessageChoice(None, [], [])
"""The oldest messages."""


class FailureVerdict(NamedTuple):
    """The consequence of a failure.

    is_alone: other messages may be sent at once. is_hopeless: the message must become a dead
    letter. is_trial_wanted: another message must be tried at once, to check whether the sink is
    reachable.
    """

    is_alone: bool = False
    is_hopeless: bool = False
    is_trial_wanted: bool = False


class _Failed:
    """A message that has failed, and when it is due again.

    It is the oldest of its kind and held, or later messages of its kind overtake it. failures: all
    of them; of an overtaken message those that count against it.
    """

    def __init__(self, number: int, kind: str, pause: float = _FIRST_PAUSE) -> None:
        self.number = number
        self.kind = kind
        self.pause = pause
        self.retry_at = 0.0
        self.failures = 0
        self.alone = 0
        self.is_rotated = False
        self.have_others_passed = False
        """True if another message was taken since the last attempt; of its kind if overtaken."""
        self.balance = 0
        """`_balance` of `Failures` at the last attempt of an overtaken message."""


class Failures:
    """The failed messages of one queue, a bounded number."""

    def __init__(self, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._held: dict[str, _Failed] = {}
        self._overtaken: dict[int, _Failed] = {}
        self._crowded: set[str] = set()
        """Kinds of which many messages were overtaken, and none was taken since."""
        self._suspects: dict[int, str] = {}
        """Number and kind of the messages that failed before and in trials."""
        self._balance = 0
        """Successful attempts minus failed attempts, except for those of overtaken messages."""
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
            if (held.retry_at > now or held.is_rotated) and held.number not in suspects
        ]
        self._choice = MessageChoice(None, kinds, [*self._overtaken, *suspects])
        return self._choice

    def note_empty(self) -> bool:
        """Note that the last choice selected no message. Return whether to choose again."""
        if self._choice.number is not None:
            self._overtaken.pop(self._choice.number, None)  # it was dropped to make room
            return True
        if self._is_trial:
            self._is_trial = False
            self._suspects.clear()
            return True
        return self._end_rotation()

    def shorten(self, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Return the messages to send together: a message of a failed kind is sent separately."""
        if self._is_trial:
            return messages[:1]
        for index, queued in enumerate(messages):
            if queued.message.topic in self._held:
                return messages[: max(1, index)]
        return messages

    def note_success(self, taken: Sequence[QueuedMessage], now: float) -> None:
        """Note that the sink has taken messages."""
        if not (self._held or self._overtaken or self._crowded):
            return
        self._balance += all(queued.number not in self._overtaken for queued in taken)
        if self._is_trial:
            self._is_trial = False
            for number, kind in self._suspects.items():
                held = self._held.get(kind)
                is_held = held is not None and held.number == number
                if len(self._overtaken) < _OVERTAKEN:
                    self._overtake(held if held and is_held else _Failed(number, kind), now)
        self._suspects.clear()
        kinds = {queued.message.topic for queued in taken}
        for one in self._overtaken.values():
            if one.kind in kinds:
                one.have_others_passed = True
                is_over = one.kind in self._held or one.kind in self._crowded
                one.retry_at = now if is_over else one.retry_at
        for kind in kinds:
            self._held.pop(kind, None)
        self._crowded -= kinds
        for queued in taken:
            self._overtaken.pop(queued.number, None)
        for held in self._held.values():
            held.have_others_passed = True
        self._end_rotation()

    def note_failure(
        self, queued: QueuedMessage, now: float, *, is_about_message: bool, is_busy: bool = False
    ) -> FailureVerdict:
        """Note that the sink did not take a message. Return the consequence."""
        number, kind = queued.number, queued.message.topic
        if number in self._overtaken:
            return self._note_overtaken_failure(self._overtaken[number], now, is_busy=is_busy)
        self._balance -= 1
        if self._is_trial:
            self._is_trial = False
            # The next trial uses a later message. The number of remembered messages is bounded.
            if len(self._suspects) < _SUSPECTS:
                self._suspects[number] = kind
            return FailureVerdict()
        held = self._held.get(kind)
        if held is None or held.number != number:
            pause = _LONGEST_PAUSE if kind in self._crowded else _FIRST_PAUSE
            held = self._held[kind] = _Failed(number, kind, pause)
        held.alone += held.have_others_passed
        held.have_others_passed = False
        held.failures += 1
        if is_about_message or held.alone:
            is_certain = held.alone >= _ALONE or (
                is_about_message and held.failures >= _ROTATED_AFTER
            )
            is_slow = held.pause >= _LONGEST_PAUSE and held.failures > 1
            if is_certain and self._has_room(kind):
                self._overtake(held, now + held.pause)
            elif is_slow and len(self._overtaken) < _OVERTAKEN:
                self._crowded.add(kind)
                held.pause = self._find_longest_pause(kind)
                self._overtake(held, now + held.pause)
            else:
                held.retry_at = now + held.pause * self._jitter(0.5, 1.0)
                held.pause = min(held.pause * 2, _LONGEST_PAUSE)
            return FailureVerdict(is_alone=True)
        held.is_rotated = held.failures >= _ROTATED_AFTER
        turn = held.failures - _TRIAL_AFTER
        if turn >= 0 and turn % _TRIAL_EVERY == 0 and len(self._held) == 1:
            return FailureVerdict(is_trial_wanted=self.try_another())
        return FailureVerdict()

    def postpone(self, queued: QueuedMessage, until: float) -> None:
        """Do not choose a message before the monotonic time `until`."""
        one = self._overtaken.get(queued.number) or self._held.get(queued.message.topic)
        if one is not None:
            one.retry_at = max(one.retry_at, until)

    def forget(self, queued: QueuedMessage) -> None:
        """Forget a message that has become a dead letter."""
        self._overtaken.pop(queued.number, None)
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
        if held is None:
            return False
        self._is_trial = True
        if held.number not in self._suspects:
            self._suspects = {held.number: held.kind}
        return True

    def next_due(self) -> float | None:
        """Return the monotonic time at which the next failed message is due; None without one."""
        return min((one.retry_at for one in self._all()), default=None)

    def _all(self) -> list[_Failed]:
        return [*self._held.values(), *self._overtaken.values()]

    def _end_rotation(self) -> bool:
        """Choose the oldest messages of all kinds again. Return whether a kind was left out."""
        rotated = [held for held in self._held.values() if held.is_rotated]
        for held in rotated:
            held.is_rotated = False
        return bool(rotated)

    def _note_overtaken_failure(self, one: _Failed, now: float, *, is_busy: bool) -> FailureVerdict:
        """Note another failure of an overtaken message."""
        is_most_passing = one.have_others_passed and self._balance > one.balance
        one.failures += is_most_passing and not is_busy
        one.have_others_passed, one.balance = False, self._balance
        one.retry_at = now + one.pause * self._jitter(0.5, 1.0)
        one.pause = min(one.pause * 2, self._find_longest_pause(one.kind))
        return FailureVerdict(is_alone=True, is_hopeless=one.failures >= _HOPELESS_AFTER)

    def _has_room(self, kind: str) -> bool:
        """Return whether one more message of a kind may be overtaken at once."""
        is_few = self._count_overtaken(kind) < _OVERTAKEN_OF_A_KIND
        return is_few and len(self._overtaken) < _OVERTAKEN

    def _count_overtaken(self, kind: str) -> int:
        return sum(one.kind == kind for one in self._overtaken.values())

    def _find_longest_pause(self, kind: str) -> float:
        """Return the longest pause of an overtaken message.

        The pause grows with the number of overtaken messages of the kind, so their common rate of
        attempts is bounded.
        """
        return max(_LONGEST_OVERTAKEN_PAUSE, _LONGEST_PAUSE * self._count_overtaken(kind))

    def _overtake(self, one: _Failed, retry_at: float) -> None:
        """Send later messages of its kind before a message, until it is due."""
        self._overtaken[one.number] = one
        if self._held.get(one.kind) is one:
            del self._held[one.kind]
            longest = self._find_longest_pause(one.kind)
            one.pause = longest if one.kind in self._crowded else min(one.pause * 2, longest)
        one.failures, one.have_others_passed, one.retry_at = 0, False, retry_at
        one.balance = self._balance
