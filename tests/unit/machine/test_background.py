"""Calls in threads of their own: single, repeated, with limits, and polling."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ccagent.errors import NotHereError, ProgramError
from ccagent.machine.background import BackgroundCall, LimitedCalls, Poller, RepeatedCall
from ccagent.machine.node import Node


def test_a_call_has_a_result_once_it_is_done() -> None:
    release = threading.Event()
    call = BackgroundCall(lambda: release.wait(30), "test")
    assert not call.wait(0.0)
    assert not call.is_done
    release.set()
    assert call.wait(30)
    assert call.result() is True
    assert call.checked_result() is True


def test_the_end_is_announced_after_the_result_is_there() -> None:
    announced = threading.Event()
    call = BackgroundCall(lambda: 1, "test", announced.set)
    assert announced.wait(30)
    assert call.is_done


def test_errors_of_the_machine_are_raised_as_they_are() -> None:
    def fail() -> None:
        raise NotHereError("no such thing")

    call = BackgroundCall(fail, "test")
    assert call.wait(30)
    for result in (call.result, call.checked_result):
        with pytest.raises(NotHereError, match="no such thing"):
            result()


def test_an_unforeseen_error_is_a_program_error_with_its_cause() -> None:
    call = BackgroundCall(lambda: 1 // 0, "test")
    assert call.wait(30)
    with pytest.raises(ZeroDivisionError):
        call.result()
    with pytest.raises(ProgramError, match="ZeroDivisionError: ") as raised:
        call.checked_result()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_without_a_thread_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProgramError, match="test: can't start new thread"):
        BackgroundCall(lambda: 1, "test")


def test_without_a_thread_a_file_is_not_read_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProgramError, match="can't start new thread"):
        next(Node(hostname="c1").chunks("proc/stat", time_limit=30))


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


LONG = 120.0
SHORT = 0.2


class Hanging:
    """A function that returns when it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.calls: list[str] = []

    def __call__(self) -> int:
        self.calls.append("begun")
        self.released.wait()
        return len(self.calls)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.released.set()


def test_a_job_returns_what_its_calls_return() -> None:
    calls = LimitedCalls()
    found = calls.run(lambda: (calls.call("one", lambda: 1), calls.call("two", lambda: 2)), LONG)
    assert found == (1, 2)


def test_a_job_raises_what_a_call_raises() -> None:
    calls = LimitedCalls()
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: calls.call("inverse", lambda: 1 / 0), LONG)
    assert calls.run(lambda: calls.call("square", lambda: 4), LONG) == 4


@pytest.mark.slow
def test_a_call_that_hangs_costs_its_own_value(hanging: Hanging) -> None:
    calls = LimitedCalls()

    def job() -> tuple[int | None, ...]:
        before = calls.call("before", lambda: 1)
        return before, calls.call("hangs", hanging), calls.call("after", lambda: 2)

    assert calls.run(job, 4.0) == (1, None, 2)
    # It is not called again before it has returned.
    assert calls.run(job, LONG) == (1, None, 2)
    assert len(hanging.calls) == 1
    hanging.released.set()
    deadline = time.monotonic() + 30
    while calls.run(job, LONG) != (1, 2, 2):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_call_that_is_abandoned_goes_no_further(hanging: Hanging) -> None:
    calls = LimitedCalls()
    further: list[str] = []

    def job() -> None:
        try:
            if calls.call("hangs", hanging) is not None:
                further.append("went on")
        except Exception:
            further.append("took it for an error")
            raise

    calls.run(job, SHORT)
    threads = [thread for thread in threading.enumerate() if thread.name == "gpu calls"]
    hanging.released.set()
    for thread in threads:
        thread.join(30)
    assert further == []


def test_a_job_without_time_is_not_begun() -> None:
    calls = LimitedCalls()
    assert calls.run(lambda: 4, 0.0) is None
    assert calls.run(lambda: 4, LONG) == 4


def test_a_job_that_hangs_between_calls_ends_with_its_time(hanging: Hanging) -> None:
    calls = LimitedCalls()
    assert calls.run(hanging, SHORT) is None
    assert calls.run(lambda: 4, LONG) == 4


def test_only_jobs_make_calls() -> None:
    with pytest.raises(TypeError):
        LimitedCalls().call("one", lambda: 1)


def test_the_threads_that_may_hang_are_few(hanging: Hanging) -> None:
    calls = LimitedCalls()
    before = threading.active_count()

    def job() -> None:
        for number in range(40):
            calls.call(f"hangs {number}", hanging)

    for _ in range(40):
        calls.run(job, 0.04)
    assert len(hanging.calls) <= 16
    assert threading.active_count() - before <= 16
    assert calls.run(lambda: 4, LONG) is None


def test_it_calls_again_and_again_and_ends() -> None:
    called = threading.Semaphore(0)
    errors: list[Exception] = [NotHereError("x"), ZeroDivisionError("a bug")]

    def call() -> None:
        called.release()
        if errors:
            raise errors.pop()

    poller = Poller(call, 0.001, "test")
    poller.start()
    poller.start()
    for _ in range(4):
        assert called.acquire(timeout=30)
    assert poller.is_running
    poller.close()
    poller.start()
    assert [thread for thread in threading.enumerate() if thread.name == "test"] == []


def test_it_does_not_call_while_others_do() -> None:
    calls: list[int] = []
    poller = Poller(lambda: calls.append(1), 3600.0, "test")
    poller.start()
    poller.note()
    time.sleep(0.01)
    poller.close()
    assert calls == []


def test_it_waits_for_the_lock() -> None:
    called = threading.Event()
    poller = Poller(called.set, 0.001, "test")
    with poller.lock:
        poller.start()
        time.sleep(0.02)
        assert not called.is_set()
    assert called.wait(30)
    poller.close()
