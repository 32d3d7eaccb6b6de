"""Bodies that would take many times their size: what they may take is bounded."""

from __future__ import annotations

import tracemalloc
from collections import deque
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import UnparsableError
from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.general import LineMessage
from ccagent.stores.metrics.ingest import PIECE
from ccagent.stores.metrics.job_events import read_envelope
from tests.unit.stores.metrics.support import NOW, line, new_ingest, new_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.responses import StoreResponse

MB = 1_000_000


def peak(action: Callable[[], object]) -> int:
    """Return the most bytes that an action has at a time."""
    tracemalloc.start()
    action()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def envelope(*jobs: str) -> bytes:
    return b'{"data":{"attributes":{"cluster":"fox","slurm_jobs":[%b]}}}' % ",".join(jobs).encode()


def refuse_envelope(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="more than"):
        deque(read_envelope(text), 0)


@pytest.mark.slow
def test_a_million_tiny_jobs_are_refused() -> None:
    text = envelope(*["{}"] * 6_000_000)  # objects of them would take 1 GB
    assert peak(lambda: refuse_envelope(text)) < 120 * MB


def test_lists_that_nobody_wants_are_passed_over() -> None:
    text = b'{"x":[%b],"data":null}' % b",".join([b"[]"] * MB)
    assert peak(lambda: deque(read_envelope(text), 0)) < MB


@pytest.mark.slow
def test_short_names_of_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccagent.stores.metrics.job_events._MOST_NODES", 20_000)
    nodes = ",".join(['"n[1-9999]"'] * 1000)
    job = '{"job_id":%d,"start_time":"2027-01-15T08:00:00Z","nodes":[%s]}'
    text = envelope(*[job % (number, nodes) for number in range(10)])
    assert peak(lambda: refuse_envelope(text)) < 10 * MB


def test_a_line_has_at_most_a_thousand_tags() -> None:
    tags = "".join(f",t{number}=x" for number in range(50_000))
    body = line("load", 1, tags=tags).encode()
    ingest = new_ingest(new_store())
    assert peak(lambda: ingest.write(body)) < 10 * MB
    assert "at most 1000 tags" in ingest.write(body).bad[0].reason


def test_long_tags_that_nobody_wants_are_not_remembered() -> None:
    ingest = new_ingest(new_store())

    def write() -> None:
        for number in range(100):
            tags = f",type=node,x={number}{'y' * 200_000}"
            assert ingest.write(line("load", 1, tags=tags).encode()).stored == 1

    assert peak(write) < 5 * MB


def test_one_series_under_many_keys_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccagent.stores.metrics.ingest._MOST_UNKNOWN", 1000)
    ingest = new_ingest(new_store())
    for number in range(0, 20_000, 100):
        texts = [line("load", 1, tags=f",x={number + n}") for n in range(100)]
        ingest.write("".join(texts).encode())
        assert sum(len(known) for known in ingest._known.values()) <= 1200


def test_a_large_message_is_taken_in_pieces() -> None:
    body = line("load", 1).encode() * 100_000
    ingest = new_ingest(new_store())
    message = LineMessage("")
    pieces = [0]

    def write() -> None:
        pieces[0] = sum(1 for _ in ingest.write_pieces(body, message))

    assert peak(write) < 25 * MB
    assert (message.stored, message.bad_count, pieces[0] > 3) == (100_000, 0, True)


def test_lines_of_a_large_message_are_counted_through() -> None:
    good, bad = line("load", 1, NOW), "load x\n"
    body = (good * 40_000 + bad + good * 40_000 + bad).encode()
    last = new_ingest(new_store()).write(body)
    assert [one.number for one in last.bad] == [40_001, 80_002]
    assert (last.stored, last.bad_count) == (80_000, 2)


def test_a_million_selectors_are_counted_before_they_are_read() -> None:
    api = StoreApi(new_store(), new_ingest(new_store()), GroupCommit(None, "write"))
    answers: list[StoreResponse] = []
    body = b"[%b]" % b",".join([b"[]"] * MB)

    def free() -> None:
        api.respond(ROUTES[b"/api/free"], b"/api/free?to=7", body, False, answers.append)

    assert peak(free) < MB
    assert answers[0].status == 400


def test_only_a_line_that_is_too_long_is_skipped() -> None:
    first, last = (line("load", value, tags=f",type=core,type-id={value}") for value in (1, 2))
    longest = line("load", 3, tags=",x=" + "a" * (PIECE - 80))
    body = "\n".join([first.rstrip(), "x" * (PIECE + 1), longest.rstrip(), "x" * (5 * PIECE), last])
    message = new_ingest(new_store()).write(body.encode())
    assert [one.number for one in message.bad] == [2, 4]
    assert "more than 655360 bytes" in message.bad[0].reason
    assert message.stored == 3
