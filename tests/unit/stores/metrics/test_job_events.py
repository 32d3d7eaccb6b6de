"""Events of jobs that the table can't take now: kept, tried again, and not acknowledged."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.errors import UnparsableError
from ccagent.records.line_protocol import Line
from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_table import JobTable
from ccagent.stores.metrics.responses import StoreResponse
from ccagent.stores.metrics.series_limits import SeriesRefusal
from tests.unit.stores.metrics.support import NOW, line, new_ingest, new_store, post, write_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite"


@pytest.fixture
def table(path: Path) -> Iterator[JobTable]:
    table = JobTable(str(path))
    yield table
    table.close()


@pytest.fixture
def lock(path: Path, table: JobTable) -> Iterator[sqlite3.Connection]:
    """Another program that writes to the table, until it is closed."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    yield other
    other.close()


def start(job: int = 7, **more: Any) -> Line:
    content = {
        "jobId": job, "cluster": "fox", "user": "eve", "startTime": NOW - 600,
        "resources": [{"hostname": "n1"}], **more,
    }  # fmt: skip
    return Line("job", {"function": "start_job"}, "event", json.dumps(content), None)


def stop(job: int = 7) -> Line:
    content = {"jobId": job, "cluster": "fox", "startTime": NOW - 600, "stopTime": NOW - 300}
    return Line("job", {"function": "stop_job"}, "event", json.dumps(content), None)


def test_events_wait_for_a_table_in_their_order(
    table: JobTable, lock: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    events = JobEvents(table)
    assert "database is locked" in events.take(start())
    assert "database is locked" in events.take(stop())
    assert (table.find("fox", "7"), len(events._waiting), events.refused) == ([], 2, 0)
    lock.close()
    assert events.retry()
    (job,) = table.find("fox", "7")
    assert (job.stop, events.ended, len(events._waiting)) == (NOW - 300, [job], 0)
    assert caplog.text.count("table of jobs: database is locked; events are kept in memory") == 1
    assert "written again, with 2 waiting events" in caplog.text


def test_an_event_that_comes_again_waits_once(table: JobTable, lock: sqlite3.Connection) -> None:
    events = JobEvents(table)
    for _ in range(3):
        assert events.take(start())
    assert len(events._waiting) == 1


def test_waiting_events_are_bounded(
    table: JobTable, lock: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    events = JobEvents(table, most_waiting=1000)
    for job in range(100):
        assert events.take(start(job))
    assert 0 < len(events._waiting) < 20
    assert caplog.text.count("further events are lost") == 1


def test_a_start_that_is_sent_again_leaves_a_job_ended(table: JobTable) -> None:
    events = JobEvents(table)
    for one in (start(), stop(), start(), stop()):
        events.take(one)
    (job,) = table.find("fox", "7")
    assert (job.state, job.stop, events.refused) == ("completed", NOW - 300, 0)


def test_a_removed_table_is_made_again(
    path: Path, table: JobTable, caplog: pytest.LogCaptureFixture
) -> None:
    events = JobEvents(table)
    assert not events.take(start(1))
    for one in path.parent.iterdir():
        one.unlink()
    # SQLite itself would write to the file that no start finds again.
    assert not events.take(start(2))
    assert [job.job for job in JobTable(str(path)).find("fox", "2")] == ["2"]
    assert "opening it again" in caplog.text


def test_a_table_without_its_directory_is_waited_for(path: Path, table: JobTable) -> None:
    events = JobEvents(table)
    hidden = path.parent.with_name("hidden")
    path.parent.rename(hidden)
    assert "No such file" in events.take(start()) or "unable to open" in events.take(start())
    hidden.rename(path.parent)
    assert events.retry()
    assert table.find("fox", "7")


def test_a_table_that_is_damaged_while_it_runs_is_set_aside(path: Path, table: JobTable) -> None:
    events = JobEvents(table)
    for job in range(500):
        events.take(start(job))
    with sqlite3.connect(path) as other:
        other.execute("pragma wal_checkpoint(truncate)")
    other.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"x" * (len(content) - 4096))
    table.reopen()
    assert not events.take(start(1000))
    assert path.with_name("jobs.sqlite.damaged").exists()
    assert table.find("fox", "1000")


def test_a_write_is_answered_503_until_its_event_is_kept(
    table: JobTable, lock: sqlite3.Connection
) -> None:
    events, store = JobEvents(table), new_store()
    ingest = new_ingest(store, others=events.take)
    api = StoreApi(store, ingest, GroupCommit(None, "write"), jobs=table, events=events)
    text = json.dumps(str(start().value))
    body = f"job,function=start_job event={text} {NOW}\n{line('load', 1)}".encode()
    answers: list[StoreResponse] = []

    async def send() -> int:
        api.respond(ROUTES[b"/api/write"], b"/api/write", body, False, answers.append)
        while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)
        return answers.pop().status

    assert asyncio.run(send()) == 503
    lock.close()
    assert events.retry()
    assert asyncio.run(send()) == 200
    assert table.find("fox", "7")


def test_an_envelope_is_taken_whole_or_not_at_all(table: JobTable) -> None:
    begin = "2027-01-15T08:00:00Z"
    jobs = [{"job_id": 8, "start_time": begin}, {"job_id": 9, "start_time": begin, "nodes": ["["]}]
    envelope = {"data": {"type": "job", "attributes": {"cluster": "fox", "slurm_jobs": jobs}}}
    with pytest.raises(UnparsableError):
        write_envelope(JobEvents(table), json.dumps(envelope).encode())
    assert table.find("", "8") == []


def test_a_sender_adds_so_many_bytes_of_jobs_in_an_hour(table: JobTable) -> None:
    times = [NOW]
    events = JobEvents(table, most_new=1000, now=lambda: times[0])
    found = [events.take(start(job), "address 192.0.2.1") for job in range(10)]
    assert found[:2] == ["", ""]
    refusal = found[-1]
    assert isinstance(refusal, SeriesRefusal)
    assert (refusal.status, refusal.seconds) == (429, 3600 - NOW % 3600)
    assert "address 192.0.2.1 has added 0 MB of jobs in this hour" in refusal.reason
    # Known jobs, other senders and the next hour have their own.
    assert events.take(start(0), "address 192.0.2.1") == ""
    assert events.take(start(20), "address 192.0.2.2") == ""
    times[0] += 3600
    assert events.take(start(21), "address 192.0.2.1") == ""


def test_an_envelope_beyond_the_budget_is_answered_with_429(table: JobTable) -> None:
    store = new_store()
    events = JobEvents(table, most_new=20_000)
    ingest = new_ingest(store, others=events.take)
    api = StoreApi(store, ingest, GroupCommit(None, "write"), jobs=table, events=events)
    jobs = [{"job_id": number, "start_time": "2027-01-15T08:00:00Z"} for number in range(500)]
    envelope = {"data": {"type": "job", "attributes": {"cluster": "fox", "slurm_jobs": jobs}}}
    answer = post(api, json.dumps(envelope).encode(), b"/api/jobs")
    assert answer.status == 429
    assert answer.more.startswith(b"Retry-After: ")
    assert len(table.find("fox", "0")) <= 1
    assert ingest.senders.dearest()[0]["refused_requests"] == 1
