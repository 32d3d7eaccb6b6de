"""Calls in the background that never overlap and keep their own pace."""

from __future__ import annotations

import threading

from ccagent.errors import NotHereError
from ccagent.machine.background import RepeatedCall

LIMIT = 30.0
START = 1_700_000_040.0  # the beginning of a minute


def test_a_call_is_started_once_in_a_time_slot() -> None:
    call: RepeatedCall[float] = RepeatedCall("tool", 60)
    errors: list[str] = []
    results: list[float] = []
    for seconds in range(0, 150, 10):
        now = START + seconds
        call.begin(now, lambda now=now: now - START, errors)  # type: ignore[misc]
        result = call.result(LIMIT, errors)
        if result is not None:
            results.append(result)
    assert results == [0, 60, 120]
    assert errors == []


def test_without_a_slot_each_sample_starts_it() -> None:
    call: RepeatedCall[int] = RepeatedCall("tool", 0)
    errors: list[str] = []
    results: list[int | None] = []
    for number in range(3):
        call.begin(START, lambda number=number: number, errors)  # type: ignore[misc]
        results.append(call.result(LIMIT, errors))
    assert results == [0, 1, 2]


def test_an_only_sample_starts_it_at_any_time() -> None:
    call: RepeatedCall[int] = RepeatedCall("tool", 60)
    errors: list[str] = []
    call.begin(START, lambda: 1, errors)
    call.begin(START + 1, lambda: 2, errors, is_due=True)
    results = {call.result(LIMIT, errors), call.result(LIMIT, errors)}
    assert results <= {1, 2, None}
    call.begin(START + 2, lambda: 3, errors, is_due=True)
    assert call.result(LIMIT, errors) == 3


def test_one_that_runs_is_not_started_again() -> None:
    may_end = threading.Event()
    call: RepeatedCall[bool] = RepeatedCall("tool", 0)
    errors: list[str] = []
    call.begin(START, lambda: may_end.wait(LIMIT), errors)
    assert call.result(0.0, errors) is None
    call.begin(START + 10, lambda: False, errors)
    assert errors == ["tool: still running; not started again"]
    may_end.set()
    assert call.result(LIMIT, errors) is True
    assert call.result(LIMIT, errors) is None
    assert call.is_over()


def test_a_result_between_two_samples_is_not_lost() -> None:
    call: RepeatedCall[int] = RepeatedCall("tool", 0)
    errors: list[str] = []
    call.begin(START, lambda: 7, errors)
    assert call.is_over()
    assert call.result(0.0, errors) == 7


def test_a_call_that_fails_is_an_error_and_the_next_one_runs() -> None:
    def fail() -> int:
        raise NotHereError("no such program")

    def break_down() -> int:
        raise IndexError("out of range")

    call: RepeatedCall[int] = RepeatedCall("tool", 0)
    errors: list[str] = []
    for function in (fail, break_down):
        call.begin(START, function, errors)
        assert call.result(LIMIT, errors) is None
    assert errors == [
        "tool: no such program",
        "tool: IndexError: out of range",
    ]
    call.begin(START, lambda: 1, errors)
    assert call.result(LIMIT, errors) == 1
