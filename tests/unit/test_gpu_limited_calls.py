"""Calls with a time limit, of which one hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ccagent.machine.gpu.limited_calls import LimitedCalls

LONG = 120.0
SHORT = 0.04


class Hanging:
    """A function that returns when it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.calls: list[str] = []

    def __call__(self) -> int:
        self.calls.append("begun")
        self.released.wait()
        return len(self.calls)

    def wait(self, number: int) -> None:
        """Wait until so many calls have begun."""
        deadline = time.monotonic() + 30
        while len(self.calls) < number:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.released.set()


def test_a_call_returns_what_the_function_returns() -> None:
    calls = LimitedCalls()
    calls.begin(LONG)
    assert calls.call("one", lambda: 1) == 1
    assert calls.call("two", lambda: 2) == 2


def test_a_call_raises_what_the_function_raises() -> None:
    calls = LimitedCalls()
    calls.begin(LONG)
    with pytest.raises(ZeroDivisionError):
        calls.call("inverse", lambda: 1 / 0)
    assert calls.call("square", lambda: 4) == 4


def test_a_call_that_hangs_is_not_made_again_before_it_returns(hanging: Hanging) -> None:
    calls = LimitedCalls()
    calls.begin(SHORT)
    assert calls.call("hangs", hanging) is None
    calls.begin(LONG)
    assert calls.call("hangs", hanging) is None
    assert calls.call("square", lambda: 4) == 4
    hanging.wait(1)
    assert len(hanging.calls) == 1
    hanging.released.set()
    deadline = time.monotonic() + 30
    while (count := calls.call("hangs", hanging)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert count == 2


def test_nothing_is_called_when_the_time_is_over() -> None:
    calls = LimitedCalls()
    calls.begin(0.0)
    assert calls.call("square", lambda: 4) is None
    calls.begin(LONG)
    assert calls.call("square", lambda: 4) == 4


def test_the_threads_that_may_hang_are_few(hanging: Hanging) -> None:
    calls = LimitedCalls()
    before = threading.active_count()
    for number in range(40):
        calls.begin(SHORT)
        assert calls.call(f"hangs {number}", hanging) is None
    hanging.wait(16)
    assert len(hanging.calls) == 16
    assert threading.active_count() - before <= 17
