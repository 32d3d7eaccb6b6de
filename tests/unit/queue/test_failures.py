"""Which messages fail while others pass."""

from __future__ import annotations

from ccagent.queue.entry import QueuedMessage, QueueEntry
from ccagent.queue.failures import ANY, Failures, FailureVerdict
from ccagent.records.message import Message


def waiting(number: int, kind: str = "sample") -> QueuedMessage:
    return QueuedMessage(number, QueueEntry(0.0, 0.0, Message("c", "n", kind, "sonar", 0.0, b"{}")))


def failures() -> Failures:
    return Failures(lambda _, longest: longest)


def test_a_sink_that_is_away_is_no_fault_of_a_message() -> None:
    noted = failures()
    for _ in range(2):
        assert noted.note_failure(waiting(1), 0.0, is_about_message=False) == FailureVerdict()
        assert noted.choose(0.0) == ANY


def test_after_three_failures_other_kinds_are_tried_first() -> None:
    noted = failures()
    for _ in range(3):
        noted.note_failure(waiting(1), 0.0, is_about_message=False)
    assert noted.choose(0.0).without_kinds == ["c.sample"]
    # There are none: it is this one's turn again.
    assert noted.note_empty()
    assert noted.choose(0.0) == ANY
    assert not noted.note_empty()


def test_one_that_fails_while_others_pass_does_not_hold_them_up() -> None:
    noted = failures()
    for _ in range(3):
        noted.note_failure(waiting(1), 0.0, is_about_message=False)
    noted.note_success([waiting(2, "job")], 0.0)
    assert noted.note_failure(waiting(1), 0.0, is_about_message=False).is_alone
    assert noted.choose(0.0).without_kinds == ["c.sample"]
    noted.note_success([waiting(3, "job")], 1.0)
    # Due again, failed again: now it is overtaken by those of its own kind too.
    assert noted.note_failure(waiting(1), 2.0, is_about_message=False).is_alone
    choice = noted.choose(2.0)
    assert (choice.without_kinds, choice.without_numbers) == ([], [1])


def test_one_that_fails_while_others_of_its_kind_pass_is_hopeless_in_the_end() -> None:
    noted = failures()
    for _ in range(3):
        noted.note_failure(waiting(1), 0.0, is_about_message=True)
    assert noted.choose(0.0).without_numbers == [1]
    now, verdicts = 0.0, list[bool]()
    for number in range(2, 8):
        noted.note_success([waiting(number)], now)
        now += 600
        assert noted.choose(now).number == 1
        verdicts.append(noted.note_failure(waiting(1), now, is_about_message=True).is_hopeless)
    assert verdicts == [False] * 5 + [True]


def test_pauses_between_the_attempts_of_one_grow() -> None:
    noted = failures()
    for _ in range(3):
        noted.note_failure(waiting(1), 0.0, is_about_message=True)
    now, pauses = 0.0, list[float]()
    for _ in range(11):
        due = noted.next_due()
        assert due is not None
        pauses.append(due - now)
        now = due
        noted.note_failure(waiting(1), now, is_about_message=True)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 600


def test_a_whole_kind_that_fails_becomes_no_dead_letters() -> None:
    noted = failures()
    now, attempts = 0.0, 0
    for _ in range(1000):
        choice = noted.choose(now)
        if choice.number is not None:
            one = waiting(choice.number)
        elif choice.without_kinds:
            noted.note_success([waiting(1000, "job")], now)
            now = noted.next_due() or now
            continue
        else:
            one = waiting(max(choice.without_numbers, default=0) + 1)
        attempts += 1
        assert not noted.note_failure(one, now, is_about_message=True).is_hopeless
    assert attempts < now / 15


def test_when_a_kind_passes_again_those_overtaken_are_tried_at_once() -> None:
    noted = failures()
    for number in (1, 2):
        for _ in range(3):
            noted.note_failure(waiting(number), 0.0, is_about_message=True)
    noted.note_failure(waiting(3), 0.0, is_about_message=True)
    noted.note_success([waiting(3)], 1.0)
    assert noted.choose(1.0).number == 1


def test_another_message_of_the_kind_is_tried_when_there_is_nothing_else() -> None:
    noted = failures()
    verdicts = [noted.note_failure(waiting(1), 0.0, is_about_message=False) for _ in range(5)]
    assert [verdict.is_trial_wanted for verdict in verdicts] == [False] * 4 + [True]
    assert noted.choose(0.0).without_numbers == [1]
    assert noted.shorten([waiting(2), waiting(3)]) == [waiting(2)]
    noted.note_success([waiting(2)], 5.0)
    assert noted.choose(5.0).number == 1


def test_a_probe_that_fails_too_blames_nobody() -> None:
    noted = failures()
    for _ in range(5):
        noted.note_failure(waiting(1), 0.0, is_about_message=False)
    assert noted.note_failure(waiting(2), 0.0, is_about_message=False) == FailureVerdict()
    assert noted.note_empty()  # no other kind either
    assert noted.choose(0.0) == ANY


def test_a_message_of_a_kind_that_has_failed_is_sent_by_itself() -> None:
    noted = failures()
    noted.note_failure(waiting(3), 0.0, is_about_message=False)
    batch = [waiting(1, "job"), waiting(2, "job"), waiting(3), waiting(4)]
    assert noted.shorten(batch) == batch[:2]
    assert noted.shorten(batch[2:]) == [waiting(3)]


def test_what_was_dropped_meanwhile_is_forgotten() -> None:
    noted = failures()
    for _ in range(3):
        noted.note_failure(waiting(1), 0.0, is_about_message=True)
    assert noted.choose(9.0).number == 1
    assert noted.note_empty()
    assert noted.next_due() is None
