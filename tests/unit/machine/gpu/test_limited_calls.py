"""Calls with a time limit, of which one hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ccagent.machine.gpu.limited_calls import LimitedCalls

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
