"""Which messages fail while others pass."""

from __future__ import annotations

from ccagent.errors import RetryableError
from ccagent.queue.failures import ANY, Failures, FailureVerdict
from ccagent.queue.segment import QueuedMessage
from ccagent.records.message import Message

AWAY = RetryableError("away")
NOT_THIS = RetryableError("no stream", is_about_message=True)


def waiting(number: int, kind: str = "sample") -> QueuedMessage:
    return QueuedMessage(number, Message("c", "n", kind, "sonar", 0.0, b"{}"))


def failures() -> Failures:
    return Failures(lambda _, longest: longest)


def fail(noted: Failures, count: int, error: RetryableError = AWAY) -> list[FailureVerdict]:
    return [noted.note_failure(waiting(1), 0.0, error) for _ in range(count)]


def next_due(noted: Failures, now: float) -> float | None:
    wait = noted.note_empty(now)
    return None if wait is None else now + wait


def test_a_sink_that_is_away_is_no_fault_of_a_message() -> None:
    noted = failures()
    assert fail(noted, 4) == [FailureVerdict.PAUSE] * 4
    assert noted.choose(0.0) == ANY


def test_one_that_fails_while_others_pass_does_not_hold_them_up() -> None:
    noted = failures()
    assert fail(noted, 5) == [FailureVerdict.PAUSE] * 4 + [FailureVerdict.TRIAL]
    assert noted.choose(0.0).without_numbers == [1]
    noted.note_success([waiting(2)], 5.0)
    assert noted.choose(5.0).number == 1
    assert noted.note_failure(waiting(1), 5.0, AWAY) is FailureVerdict.OTHERS
    choice = noted.choose(5.0)
    assert (choice.without_kinds, choice.without_numbers) == ([], [1])


def test_a_trial_that_fails_too_blames_nobody() -> None:
    noted = failures()
    fail(noted, 5)
    noted.choose(0.0)
    assert noted.note_failure(waiting(2), 0.0, AWAY) is FailureVerdict.PAUSE
    assert noted.choose(0.0) == ANY
    # The next trial uses a later message.
    assert fail(noted, 4)[-1] is FailureVerdict.TRIAL
    assert noted.choose(0.0).without_numbers == [1, 2]
    assert noted.note_empty(9.0) == 0
    assert noted.choose(0.0) == ANY


def test_a_kind_whose_message_fails_waits_alone() -> None:
    noted = failures()
    assert fail(noted, 1, NOT_THIS) == [FailureVerdict.OTHERS]
    assert noted.choose(0.0).without_kinds == ["c.sample"]
    assert noted.choose(2.0) == ANY
    assert next_due(noted, 0.0) == 2.0


def test_one_that_fails_while_others_of_its_kind_pass_is_hopeless_in_the_end() -> None:
    noted = failures()
    fail(noted, 3, NOT_THIS)
    assert noted.choose(0.0).without_numbers == [1]
    now, verdicts = 0.0, list[FailureVerdict]()
    for number in range(2, 8):
        noted.note_success([waiting(number)], now)
        now += 600
        assert noted.choose(now).number == 1
        verdicts.append(noted.note_failure(waiting(1), now, NOT_THIS))
    assert verdicts == [FailureVerdict.OTHERS] * 5 + [FailureVerdict.HOPELESS]


def test_failures_do_not_count_while_most_attempts_fail() -> None:
    noted = failures()
    fail(noted, 3, NOT_THIS)
    for number in range(2, 100, 2):
        noted.note_failure(waiting(number), 0.0, AWAY)
        noted.note_failure(waiting(number), 0.0, AWAY)
        noted.note_success([waiting(number)], 0.0)
        assert noted.note_failure(waiting(1), 0.0, NOT_THIS) is FailureVerdict.OTHERS


def test_pauses_between_the_attempts_of_one_grow() -> None:
    noted = failures()
    fail(noted, 3, NOT_THIS)
    now, pauses = 0.0, list[float]()
    for _ in range(11):
        due = next_due(noted, now)
        assert due is not None
        pauses.append(due - now)
        now = due
        noted.note_failure(waiting(1), now, NOT_THIS)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 600


def test_a_receiver_may_ask_for_a_longer_pause() -> None:
    noted = failures()
    noted.note_failure(waiting(1), 0.0, RetryableError("x", is_about_message=True, after=500.0))
    assert next_due(noted, 0.0) == 500


def test_a_whole_kind_that_fails_becomes_no_dead_letters() -> None:
    noted = failures()
    now, attempts = 0.0, 0
    for _ in range(1000):
        choice = noted.choose(now)
        if choice.number is not None:
            one = waiting(choice.number)
        elif choice.without_kinds:
            noted.note_success([waiting(1000, "job")], now)
            now = next_due(noted, now) or now
            continue
        else:
            one = waiting(max(choice.without_numbers, default=0) + 1)
        attempts += 1
        assert noted.note_failure(one, now, NOT_THIS) is FailureVerdict.OTHERS
    assert attempts < now / 15


def test_when_a_kind_passes_again_those_overtaken_are_tried_at_once() -> None:
    noted = failures()
    for number in (1, 2, 3):
        for _ in range(3):
            noted.note_failure(waiting(number), 0.0, NOT_THIS)
    noted.note_failure(waiting(4), 0.0, NOT_THIS)
    assert noted.choose(1.0).without_kinds == ["c.sample"]
    noted.note_success([waiting(5)], 1.0)
    assert noted.choose(1.0).number == 1


def test_a_message_of_a_kind_that_has_failed_is_sent_by_itself() -> None:
    noted = failures()
    noted.note_failure(waiting(3), 0.0, NOT_THIS)
    batch = [waiting(1, "job"), waiting(2, "job"), waiting(3), waiting(4)]
    assert noted.shorten(batch) == batch[:2]
    assert noted.shorten(batch[2:]) == [waiting(3)]


def test_what_was_dropped_meanwhile_is_forgotten() -> None:
    noted = failures()
    fail(noted, 3, NOT_THIS)
    assert noted.choose(9.0).number == 1
    assert noted.note_empty(9.0) == 0
    assert noted.choose(9.0) == ANY
    assert next_due(noted, 0.0) is None
