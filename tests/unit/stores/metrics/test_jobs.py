"""Jobs: events and envelopes fill the table, queries know nodes and times, footprints stay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tempfile
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.records.line_protocol import Line
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_queries import FootprintKeeper, expand_job
from ccagent.stores.metrics.job_table import (
    JobTable,
    JobTableError,
    StoredJob,
    WaitingJob,
    open_job_table,
)
from ccagent.stores.metrics.query_request import BadRequestError, parse_request
from tests.unit.stores.metrics.support import NOW, ask, new_ingest, new_store, post, write_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccagent.stores.metrics.store import MetricStore


START = {
    "jobId": 7, "cluster": "fox", "user": "eve", "startTime": NOW - 600, "numNodes": 2,
    "resources": [{"hostname": "n1"}, {"hostname": "n2"}], "metaData": {"jobName": "x"},
}  # fmt: skip
STOP = {"jobId": 7, "cluster": "fox", "startTime": NOW - 600, "jobState": "failed",
        "stopTime": NOW - 300}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Iterator[JobTable]:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    yield table
    table.close()


def event(function: str, content: Any) -> Line:
    text = content if isinstance(content, str) else json.dumps(content)
    return Line("job", {"function": function}, "event", text, None)


def test_events_fill_the_table(table: JobTable) -> None:
    events = JobEvents(table)
    events.take(event("start_job", START))
    (job,) = table.find("fox", "7")
    assert (job.nodes, job.user, job.state, job.stop) == (("n1", "n2"), "eve", "running", None)
    events.take(event("stop_job", STOP))
    (job,) = table.find("", "7")
    assert (job.state, job.stop) == ("failed", NOW - 300)
    assert events.ended == [job]


@pytest.mark.parametrize(
    ("function", "content"),
    [
        ("start_job", "{"), ("start_job", {}), ("start_job", START | {"jobId": "x"}),
        ("start_job", START | {"startTime": 10**30}), ("stop_job", STOP), ("stop_job", "[]"),
        ("start_job", START | {"startTime": -(10**15)}),
        ("start_job", START | {"startTime": 10**15}),
    ],
)  # fmt: skip
def test_bad_events_are_counted(function: str, content: Any, table: JobTable) -> None:
    events = JobEvents(table)
    events.take(event(function, content))
    assert (events.refused, table.find("", "7")) == (1, [])


def test_envelopes_fill_the_table(table: JobTable) -> None:
    jobs = [
        {"job_id": 8, "job_state": "COMPLETED", "user_name": "eve", "nodes": ["n[1-3]"],
         "start_time": "2027-01-15T08:00:00Z", "end_time": "2027-01-15T09:00:00Z"},
        {"job_id": 8, "job_step": "0", "start_time": "2027-01-15T08:00:00Z"},
    ]  # fmt: skip
    envelope = {"data": {"type": "job", "attributes": {"cluster": "fox", "slurm_jobs": jobs}}}
    assert write_envelope(JobEvents(table), json.dumps(envelope).encode()) == 1
    (job,) = table.find("fox", "8")
    assert (job.nodes, job.state, job.start, job.stop) == (
        ("n1", "n2", "n3"), "completed", NOW, NOW + 3600,
    )  # fmt: skip
    for bad in (b"{", json.dumps(envelope).replace("2027-01-15T08", "0001-01-01T08").encode()):
        with pytest.raises(UnparsableError):
            write_envelope(JobEvents(table), bad)


def test_jobs_wait_until_they_start_or_are_cancelled(table: JobTable) -> None:
    events = JobEvents(table)
    waiting: dict[str, Any] = {
        "job_state": "PENDING", "user_name": "eve", "partition": "gpu",
        "submit_time": "2027-01-15T08:00:00Z", "requested_resources": "cpu=8,mem=4G",
    }  # fmt: skip

    def take(*jobs: dict[str, Any]) -> list[tuple[Any, ...]]:
        envelope = {"data": {"attributes": {"cluster": "fox", "slurm_jobs": jobs}}}
        write_envelope(events, json.dumps(envelope).encode())
        query = (
            "select job, user, submitted, json_extract(details, '$.cores'),"
            " json_extract(details, '$.partition') from waiting order by job"
        )
        return table._execute(query, ())[0]

    first, second = waiting | {"job_id": 10}, waiting | {"job_id": 11}
    assert take(first, second) == [
        ("10", "eve", NOW, 8, "gpu"), ("11", "eve", NOW, 8, "gpu"),
    ]  # fmt: skip
    assert len(take(first)) == 2  # a repeated record
    assert len(take(first | {"job_state": "RUNNING", "start_time": "2027-01-15T09:00:00Z"})) == 1
    assert take(second | {"job_state": "CANCELLED", "end_time": "2027-01-15T09:00:00Z"}) == []


def test_a_file_that_is_no_table_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_text("no table" * 100)
    open_job_table(str(tmp_path / "jobs.sqlite")).close()
    assert (tmp_path / "jobs.sqlite.damaged").read_text() == "no table" * 100


def test_a_damaged_table_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    table = JobTable(str(path))
    for number in range(500):
        table.start(StoredJob("fox", str(number), "eve", "running", NOW, None, ("n1",)))
    table.close()
    pages = bytearray(path.read_bytes())
    pages[8192:16384] = bytes(8192)
    path.write_bytes(pages)
    assert open_job_table(str(path)).find("fox", "7") == []
    assert (tmp_path / "jobs.sqlite.damaged").read_bytes() == pages


def test_a_job_that_can_not_be_read_costs_itself(
    table: JobTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for start in (NOW, NOW + 1):
        table.start(StoredJob("fox", "7", "eve", "running", start, None, ("n1",)))
    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        database.execute("update jobs set nodes = '[' where start = ?", (NOW,))
    assert [job.start for job in table.find("fox", "7")] == [NOW + 1]
    assert "job 7 can't be read" in caplog.text


def test_an_envelope_that_can_not_be_kept_is_asked_for_again(
    table: JobTable, tmp_path: Path
) -> None:
    store = new_store()
    api = StoreApi(
        store, new_ingest(store), GroupCommit(None, "write"), jobs=table, events=JobEvents(table)
    )
    job = {"job_id": 7, "start_time": "2026-11-22T20:00:00+00:00", "nodes": ["n1"]}
    envelope = {"data": {"attributes": {"cluster": "fox", "slurm_jobs": [job]}}}

    def send() -> int:
        return post(api, json.dumps(envelope).encode(), b"/api/jobs").status

    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        database.execute("create trigger full before insert on jobs"
                         " begin select raise(fail, 'disk is full'); end")  # fmt: skip
    assert send() == 503
    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        database.execute("drop trigger full")
    assert send() == 200


@pytest.mark.parametrize("stop", [0, NOW - 601, 10**15])
def test_an_end_at_no_possible_time_is_refused(stop: int, table: JobTable) -> None:
    events = JobEvents(table)
    events.take(event("start_job", START))
    events.take(event("stop_job", STOP | {"stopTime": stop}))
    assert (table.find("fox", "7")[0].stop, events.refused) == (None, 1)


def test_footprints_that_a_restart_interrupted_are_kept_later(table: JobTable) -> None:
    events = JobEvents(table)
    for number in (7, 8, 9):
        events.take(event("start_job", START | {"jobId": number}))
    for number, stop in ((7, NOW - 500), (8, NOW - 300), (9, NOW - 100)):
        events.take(event("stop_job", STOP | {"jobId": number, "stopTime": stop}))
    table.keep_footprint(events.ended[1], {})
    assert [job.job for job in table.find_ended(NOW - 500)] == ["7", "9"]
    assert [job.job for job in table.find_ended(NOW - 400)] == ["9"]


def test_queries_by_job_know_nodes_and_times(table: JobTable) -> None:
    events = JobEvents(table)
    events.take(event("start_job", START))
    body = {"cluster": "fox", "queries": [{"metric": "load"}], "for-all-nodes": ["power"]}
    request = expand_job(parse_request(json.dumps(body).encode()), "7", table, NOW)
    assert [(one.metric, one.host) for one in request.queries or ()] == [
        ("load", "n1"), ("load", "n2"), ("power", "n1"), ("power", "n2"),
    ]  # fmt: skip
    assert (request.start, request.end) == (NOW - 600, NOW)
    events.take(event("stop_job", STOP))
    request = expand_job(parse_request(b"{}"), "7", table, NOW)
    assert (request.cluster, request.end) == ("fox", NOW - 300)
    with pytest.raises(BadRequestError, match="no job called: 5"):
        expand_job(request, "5", table, NOW)


def test_a_footprint_is_kept_after_the_last_values(table: JobTable) -> None:
    store = new_store()
    events = JobEvents(table)
    ingest = new_ingest(store, others=events.take)
    lines = [f"load,cluster=fox,hostname=n{n} value={n + step} {NOW - 600 + 60 * step}"
             for step in range(10) for n in (1, 2)]  # fmt: skip
    for function, content in (("start_job", START), ("stop_job", STOP)):
        text = json.dumps(content).replace('"', '\\"')
        lines.append(f'job,function={function} event="{text}" {NOW}')
    assert ingest.write("\n".join(lines).encode()).bad_count == 0
    keeper = FootprintKeeper(store, table, events.ended)
    store.now = lambda: NOW - 299.0
    assert asyncio.run(keeper.keep()) == 0
    store.now = lambda: float(NOW)
    assert asyncio.run(keeper.keep()) == 1
    (job,) = table.find("fox", "7")
    assert job.footprint == {"load": {"avg": 3.5, "min": 1.0, "max": 6.0}}
    assert ask(store, NOW - 600, NOW, {"metric": "load", "host": "n1"})


def test_a_job_of_no_seconds_has_no_footprint(table: JobTable) -> None:
    store = new_store()
    events = JobEvents(table)
    lines = [f"load,cluster=fox,hostname=n1,type=hwthread,type-id={n} value=1 {NOW - 500 + 60 * n}"
             for n in range(2)]  # fmt: skip
    assert new_ingest(store).write("\n".join(lines).encode()).bad_count == 0
    events.take(event("start_job", START))
    events.take(event("stop_job", STOP | {"stopTime": NOW - 600}))
    assert asyncio.run(FootprintKeeper(store, table, events.ended).keep()) == 1
    assert table.find("fox", "7")[0].footprint == {}
    assert ask(store, NOW - 600, NOW - 600, {"metric": "load", "host": "n1"}) == [[]]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 30), st.floats(-1.7e308, 1.7e308, allow_nan=False)
        ),
        max_size=20,
    ),
    st.lists(st.tuples(st.integers(-2, 32), st.integers(-2, 32)), min_size=1, max_size=5),
)
def test_each_job_has_a_footprint(
    values: list[tuple[int, int, float]], times: list[tuple[int, int]]
) -> None:
    """Whenever components begin and end, and whenever jobs do."""
    store, begin = new_store(), NOW - 3600
    for core, step, value in values:
        store.write(("fox", "n1", f"core{core}"), "load", begin + 60 * step, value)
    jobs = [
        StoredJob("fox", str(number), "eve", "completed", begin + 60 * a, begin + 60 * b, ("n1",))
        for number, (a, b) in enumerate(times)
    ]
    with tempfile.TemporaryDirectory() as directory:
        table = JobTable(f"{directory}/jobs.sqlite")
        for job in jobs:
            table.start(job)
        with np.errstate(over="ignore", invalid="ignore"):  # as in the store
            assert asyncio.run(FootprintKeeper(store, table, [*jobs]).keep()) == len(jobs)
        table.close()


def test_a_footprint_since_1970_takes_no_memory_of_that_time(table: JobTable) -> None:
    """With `strict`, values of a clock that was not set are stored."""
    store = new_store()
    for core, times in enumerate(((0, NOW - 600), (60, NOW - 600), (NOW - 600,))):
        for time in times:
            store.write(("fox", "n1", f"core{core}"), "load", time, 1.0)
    job = StoredJob("fox", "7", "eve", "completed", 0, NOW - 300, ("n1",))
    table.start(job)
    tracemalloc.start()
    try:
        assert asyncio.run(FootprintKeeper(store, table, [job]).keep()) == 1
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.find("fox", "7")[0].footprint == {"load": {"avg": 1.0, "min": 1.0, "max": 1.0}}
    assert most < 100 << 20


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (ValueError("odd"), []),
        (BadRequestError("too many values"), []),
        (JobTableError("not reachable"), ["7"]),
    ],
    ids=repr,
)
def test_a_job_without_footprint_does_not_hold_up_others(
    error: Exception, left: list[str], table: JobTable
) -> None:
    events = JobEvents(table)
    for number in (7, 8):
        events.take(event("start_job", START | {"jobId": number}))
        events.take(event("stop_job", STOP | {"jobId": number}))

    async def read(job: StoredJob) -> MetricStore:
        if job.job == "7":
            raise error
        return new_store()

    keeper = FootprintKeeper(new_store(), table, events.ended, read)
    for _ in range(2):
        with contextlib.suppress(JobTableError):
            asyncio.run(keeper.keep())
    assert [job.job for job in table.find_ended(0)] == ["7"]
    assert [job.job for job in events.ended] == left


def test_old_jobs_are_removed_in_parts(table: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccagent.stores.metrics.job_table._REMOVED_AT_ONCE", 3)
    for number in range(8):
        stop = None if number == 7 else NOW - number
        table.start(StoredJob("fox", str(number), "eve", "running", NOW - 900, stop, ("n1",)))
    assert asyncio.run(table.remove_before(NOW)) == 6
    assert [bool(table.find("fox", str(number))) for number in range(8)] == [
        True, *[False] * 6, True,
    ]  # fmt: skip


def test_waiting_jobs_whose_end_was_never_told_are_removed_too(table: JobTable) -> None:
    for number, submitted in (("1", NOW - 10), ("2", NOW)):
        table.wait(WaitingJob("fox", number, "eve", submitted))
    asyncio.run(table.remove_before(NOW))
    assert table._execute("select job from waiting", ())[0] == [("2",)]
