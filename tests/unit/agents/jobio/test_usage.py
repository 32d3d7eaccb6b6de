"""Deltas of the counters of jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.jobio.usage import Deltas, add, is_idle, subtract
from ccagent.machine.bpf.io_records import JobTraffic

STEPS = st.lists(st.tuples(*[st.integers(0, 10**9)] * 4), min_size=1, max_size=8)


def traffic(sent: int, since: int = 7) -> JobTraffic:
    return JobTraffic(since, 1, sent, 0, 0)


def test_the_first_reading_has_no_deltas() -> None:
    deltas: Deltas[str, JobTraffic] = Deltas()
    assert list(deltas.of({"a": traffic(100)})) == []


def test_an_entry_that_is_new_counts_whole() -> None:
    deltas: Deltas[str, JobTraffic] = Deltas()
    list(deltas.of({}))
    ((key, delta, total),) = deltas.of({"a": traffic(100)})
    assert (key, delta.sent_bytes, total.sent_bytes) == ("a", 100, 100)


def test_an_entry_that_was_made_again_counts_whole() -> None:
    assert subtract(traffic(30, since=9), traffic(100)).sent_bytes == 30


def test_a_counter_that_fell_counts_as_nothing() -> None:
    assert subtract(traffic(30), traffic(100)).sent_bytes == 0


@given(STEPS)
def test_deltas_add_up_to_the_counters(steps: list[tuple[int, int, int, int]]) -> None:
    deltas: Deltas[str, JobTraffic] = Deltas()
    list(deltas.of({}))
    counter, found = JobTraffic(5, 0, 0, 0, 0), JobTraffic(5, 0, 0, 0, 0)
    for step in steps:
        counter = add(counter, JobTraffic(5, *step))
        ((_, delta, _),) = deltas.of({"a": counter})
        found = add(found, delta)
    assert found == counter


def test_nothing_happened_whatever_the_time() -> None:
    assert is_idle(JobTraffic(123, 0, 0, 0, 0))
    assert not is_idle(JobTraffic(123, 0, 0, 1, 0))
