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
    """A message that has failed, and when it is due again."""

    def __init__(self, retry_at: float = 0.0) -> None:
        self.retry_at = retry_at
        self.pause = _FIRST_PAUSE


class _Held(_Failed):
    """The oldest message of a kind after a failure."""

    def __init__(self, number: int, pause: float) -> None:
        super().__init__()
        self.number = number
        self.pause = pause
        self.failures = 0
        self.alone = 0
        self.passes = 0
        self.is_rotated = False


class _Overtaken(_Failed):
    """A message that failed while others succeeded, and that later messages overtake."""

    def __init__(self, kind: str, retry_at: float) -> None:
        super().__init__(retry_at)
        self.kind = kind
        self.attempts = 0
        self.have_others_passed = False
        self.balance = 0
        """`_balance` of `Failures` at the last attempt."""


class Failures:
    """The failed messages of one queue, a bounded number."""

    def __init__(self, jitter: Callable[[float, float], float]) -> None:
        self._jitter = jitter
        self._held: dict[str, _Held] = {}
        self._overtaken: dict[int, _Overtaken] = {}
        self._passes = 0
        # Successful attempts minus failed attempts, except for attempts of overtaken messages.
        self._balance = 0
        self._crowded: set[str] = set()
        self._suspects: list[int] = []
        self._is_trial = False
        self._choice = MessageChoice(None, [], [])

    def choose(self, now: float) -> MessageChoice:
        """Return the selection from the queue at the monotonic time `now`."""
        due = [number for number, one in self._overtaken.items() if one.retry_at <= now]
        if due and not self._is_trial:
            self._choice = MessageChoice(due[0], [], [])
            return self._choice
        kinds = [
            kind for kind, held in self._held.items() if held.retry_at > now or held.is_rotated
        ]
        numbers = [*self._overtaken]
        if self._is_trial:
            kinds = [kind for kind in kinds if self._held[kind].number not in self._suspects]
            numbers += self._suspects
        self._choice = MessageChoice(None, kinds, numbers)
        return self._choice

    def note_empty(self) -> bool:
        """Note that the last choice selected no message. Return whether to choose again."""
        if self._choice.number is not None:
            self._overtaken.pop(self._choice.number, None)  # it was dropped to make room
            return True
        if self._is_trial:
            self._is_trial = False
            self._suspects = []
            return True
        rotated = [held for held in self._held.values() if held.is_rotated]
        for held in rotated:
            held.is_rotated = False
        return bool(rotated)

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
        self._passes += 1
        if not any(queued.number in self._overtaken for queued in taken):
            self._balance += 1
        if self._is_trial:
            self._overtake_suspects(taken[0].message.topic, now)
        self._suspects = []
        for kind in {queued.message.topic for queued in taken}:
            was_held = self._held.pop(kind, None) is not None or kind in self._crowded
            self._crowded.discard(kind)
            for one in self._overtaken.values():
                if one.kind == kind:
                    one.have_others_passed = True
                    one.retry_at = now if was_held else one.retry_at
        for queued in taken:
            self._overtaken.pop(queued.number, None)
        for held in self._held.values():
            held.is_rotated = False

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
            self._suspects = [*self._suspects, number][:_SUSPECTS]
            return FailureVerdict()
        held = self._held.get(kind)
        if held is None or held.number != number:
            pause = _LONGEST_PAUSE if kind in self._crowded else _FIRST_PAUSE
            held = self._held[kind] = _Held(number, pause)
        if held.failures and self._passes > held.passes:
            held.alone += 1
        held.failures += 1
        held.passes = self._passes
        if is_about_message or held.alone:
            is_certain = held.alone >= _ALONE or (
                is_about_message and held.failures >= _ROTATED_AFTER
            )
            is_slow = held.pause >= _LONGEST_PAUSE and held.failures > 1
            if is_certain and self._has_room(kind):
                self._overtake(number, kind, now + held.pause)
            elif is_slow and len(self._overtaken) < _OVERTAKEN:
                self._crowded.add(kind)
                self._overtake(number, kind, now + self._find_longest_pause(kind))
            else:
                held.retry_at = now + held.pause * self._jitter(0.5, 1.0)
                held.pause = min(held.pause * 2, _LONGEST_PAUSE)
            return FailureVerdict(is_alone=True)
        held.is_rotated = held.failures >= _ROTATED_AFTER
        turn = held.failures - _TRIAL_AFTER
        if turn >= 0 and turn % _TRIAL_EVERY == 0 and len(self._held) == 1:
            self._begin_trial(number)
            return FailureVerdict(is_trial_wanted=True)
        return FailureVerdict()

    def postpone(self, queued: QueuedMessage, until: float) -> None:
        """Do not choose a message before the monotonic time `until`."""
        for one in (self._overtaken.get(queued.number), self._held.get(queued.message.topic)):
            if one is not None:
                one.retry_at = max(one.retry_at, until)
                break

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
        if self._held:
            self._begin_trial(next(iter(self._held.values())).number)
        return bool(self._held)

    def next_due(self) -> float | None:
        """Return the monotonic time at which the next failed message is due; None without one."""
        return min((one.retry_at for one in self._all()), default=None)

    def _all(self) -> list[_Failed]:
        return [*self._held.values(), *self._overtaken.values()]

    def _note_overtaken_failure(
        self, one: _Overtaken, now: float, *, is_busy: bool
    ) -> FailureVerdict:
        """Note another failure of an overtaken message."""
        if one.have_others_passed and self._balance > one.balance and not is_busy:
            one.attempts += 1
        one.have_others_passed = False
        one.balance = self._balance
        one.retry_at = now + one.pause * self._jitter(0.5, 1.0)
        one.pause = min(one.pause * 2, self._find_longest_pause(one.kind))
        return FailureVerdict(is_alone=True, is_hopeless=one.attempts >= _HOPELESS_AFTER)

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

    def _overtake(self, number: int, kind: str, retry_at: float) -> None:
        one = self._overtaken[number] = _Overtaken(kind, retry_at)
        one.balance = self._balance
        if kind in self._held and self._held[kind].number == number:
            one.pause = min(self._held.pop(kind).pause * 2, _LONGEST_OVERTAKEN_PAUSE)
            if kind in self._crowded:
                one.pause = self._find_longest_pause(kind)

    def _begin_trial(self, number: int) -> None:
        """Make `choose` return a message that is not a suspect, and make `number` a suspect."""
        self._is_trial = True
        if number not in self._suspects:
            self._suspects = [number]

    def _overtake_suspects(self, kind: str, now: float) -> None:
        """Mark the suspects of a successful trial as overtaken, and due at once.

        kind: the kind of suspects that failed in trials. Trials happen only while one kind fails.
        """
        self._is_trial = False
        kinds = {held.number: kind for kind, held in self._held.items()}
        for number in self._suspects:
            if len(self._overtaken) < _OVERTAKEN:
                self._overtake(number, kinds.get(number, kind), now)
