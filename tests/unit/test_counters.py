"""What an agent counts of itself."""

from __future__ import annotations

import time

import pytest

from ccagent.counters import AgentCounters
from tests.support.tree import StillClock


def test_a_sample_is_counted_with_its_time() -> None:
    counters, clock = AgentCounters(), StillClock()
    with counters.count_sample(clock.monotonic):
        clock.sleep(3)
    assert (counters.samples, counters.errors, counters.seconds) == (1, 0, 3)


def test_a_sample_that_fails_is_an_error_and_has_taken_time() -> None:
    counters, clock = AgentCounters(), StillClock()

    def fail() -> None:
        clock.sleep(2)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), counters.count_sample(clock.monotonic):
        fail()
    assert (counters.samples, counters.errors, counters.seconds) == (0, 1, 2)


def test_a_sample_with_errors_only_is_an_error_until_the_next_one() -> None:
    counters, clock = AgentCounters(), StillClock()
    with counters.count_sample(clock.monotonic) as failures:
        failures += ["sacct: no answer", "sinfo: no answer"]
    assert (counters.samples, counters.errors, counters.last_error) == (0, 1, "sinfo: no answer")
    with counters.count_sample(clock.monotonic):
        pass
    assert (counters.samples, counters.errors, counters.last_error) == (1, 1, "")


def test_cpu_time_is_that_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, moments = AgentCounters(), iter([1.0, 1.25])
    monkeypatch.setattr(time, "thread_time", lambda: next(moments))
    with counters.count_sample(StillClock().monotonic):
        pass
    assert counters.cpu_seconds == 0.25


def test_samples_add_up() -> None:
    counters, clock = AgentCounters(), StillClock()
    for seconds in (1, 2):
        with counters.count_sample(clock.monotonic):
            clock.sleep(seconds)
    assert (counters.samples, counters.seconds) == (2, 3)
