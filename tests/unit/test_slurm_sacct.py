"""Records out of the rows of sacct."""

from __future__ import annotations

import json
import time
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm import sacct
from ccagent.envelopes import SlurmJob
from ccagent.errors import UnparsableError
from tests.schema import validate_part
from tests.slurm_recorded import DIRECTORY, recorded_rows


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def parsed(row: list[bytes]) -> SlurmJob:
    complaints: list[str] = []
    job = sacct.Parser(complaints.append).record(row)
    assert complaints == []
    return job


def row(**fields: str) -> list[bytes]:
    """A row of a plain job with some of its fields changed."""
    plain = {
        "JobID": "7", "JobIDRaw": "7", "Submit": "1700000000", "Start": "1700000010",
        "End": "1700000020", "State": "COMPLETED", "User": "alice", "Account": "physics",
        "Partition": "normal", "ElapsedRaw": "10", "TimelimitRaw": "60", "ReqCPUS": "1",
        "ReqMem": "300M", "ReqNodes": "1", "NodeList": "c1-1", "Priority": "1057",
        "ExitCode": "0:0", "JobName": "plain",
    } | fields  # fmt: skip
    return [plain.get(name, "").encode("utf-8", "surrogateescape") for name in sacct.FIELDS]


def test_every_recorded_row_becomes_a_record() -> None:
    rows = recorded_rows()
    jobs = [parsed(one) for one in rows]
    assert len(jobs) == 227
    for job in jobs:
        validate_part("SlurmJob", msgspec.json.encode(job))
    # The other recording of the same moment has no free text, so any parser can count it.
    lines = (DIRECTORY / "mid-sacct-epoch.txt").read_text().splitlines()[1:]
    assert Counter(job.job_state for job in jobs) == Counter(
        line.split("|")[2].split()[0] for line in lines
    )


def test_a_plain_job() -> None:
    (job,) = [one for one in map(parsed, recorded_rows()) if (one.job_id, one.job_step) == (3, "")]
    assert json.loads(msgspec.json.encode(job)) == {
        "job_id": 3,
        "job_state": "FAILED",
        "job_name": "exit3",
        "user_name": "alice",
        "account": "physics",
        "submit_time": "2026-11-21T09:48:57Z",
        "time_limit": 62,
        "partition": "normal",
        "nodes": ["c1-1"],
        "priority": 1059,
        "allocated_resources": "billing=1,cpu=1,mem=300M,node=1",
        "requested_cpus": 1,
        "requested_memory_per_node": 300 * 1024,
        "requested_node_count": 1,
        "start_time": "2026-11-21T09:49:02Z",
        "end_time": "2026-11-21T09:49:02Z",
        "exit_code": 3,
        "sacct": {"AllocTRES": "billing=1,cpu=1,mem=300M,node=1"},
    }


def test_odd_names_are_kept_and_stay_their_own() -> None:
    names = {job.job_name for job in map(parsed, recorded_rows())}
    assert {"a|b", "new\nline", "tab\there", "ctl\x01\x1b[31mred", "cr\rx", "*", "x,y;z"} <= names
    (job,) = [one for one in map(parsed, recorded_rows()) if "TRES=cpu=77" in one.job_name]
    assert job.job_name == "nl\nJobId=2 TRES=cpu=77 x=y"
    (two,) = [one for one in map(parsed, recorded_rows()) if (one.job_id, one.job_step) == (2, "")]
    assert (two.job_name, two.allocated_resources) == ("ok", "billing=1,cpu=1,mem=300M,node=1")


@pytest.mark.parametrize(
    ("shown", "raw", "expected"),
    [
        ("7", "7", (7, "", 0, 0, 0, 0)),
        ("7.batch", "7.batch", (7, "batch", 0, 0, 0, 0)),
        ("7.0", "7.0", (7, "0", 0, 0, 0, 0)),
        ("12_3", "15", (15, "", 12, 3, 0, 0)),
        ("80_2.batch", "83.batch", (83, "batch", 80, 2, 0, 0)),
        ("12_[1,3,5,10,15,20%3]", "12", (12, "", 12, 0, 0, 0)),
        ("50+0", "50", (50, "", 0, 0, 50, 0)),
        ("50+1.0", "51.0", (51, "0", 0, 0, 50, 1)),
    ],
)
def test_ids_of_arrays_and_het_jobs(
    shown: str, raw: str, expected: tuple[int, str, int, int, int, int]
) -> None:
    job = parsed(row(JobID=shown, JobIDRaw=raw))
    assert (
        job.job_id, job.job_step, job.array_job_id, job.array_task_id, job.het_job_id,
        job.het_job_offset,
    ) == expected  # fmt: skip


def test_a_job_that_never_started_has_no_times() -> None:
    job = parsed(
        row(State="CANCELLED by 5002", Start="None", End="1700000020", NodeList="None assigned")
    )
    assert (job.job_state, job.start_time, job.nodes) == ("CANCELLED", "", [])
    assert job.end_time == "2023-11-14T22:13:40Z"


def test_times_have_the_offset_of_their_own_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Oslo")
    time.tzset()
    job = parsed(row(Submit="1690000000", Start="1700000000"))
    assert job.submit_time == "2023-07-22T06:26:40+02:00"
    assert job.start_time == "2023-11-14T23:13:20+01:00"


def test_names_that_are_not_utf_8_are_kept_readable() -> None:
    assert parsed(row(JobName="bad\udcff\udcfeutf")).job_name == "bad\\xff\\xfeutf"


def test_one_field_that_cant_be_understood_costs_only_itself() -> None:
    complaints: list[str] = []
    job = sacct.Parser(complaints.append).record(
        row(Priority="high", NodeList="c[", Submit="yesterday")
    )
    assert (job.priority, job.nodes, job.submit_time) == (0, [], "")
    assert (job.job_id, job.job_state, job.user_name) == (7, "COMPLETED", "alice")
    assert [text.split(": ")[:2] for text in complaints] == [
        ["job 7", "Submit"], ["job 7", "NodeList"], ["job 7", "Priority"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [{"JobIDRaw": "x"}, {"JobIDRaw": "0"}, {"State": ""}, {"State": "odd"}, {"JobID": "a_b"}],
)
def test_a_row_without_id_or_state_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(UnparsableError):
        sacct.Parser(lambda _: None).record(row(**fields))


@given(st.lists(st.binary(max_size=30), min_size=len(sacct.FIELDS), max_size=len(sacct.FIELDS)))
def test_whatever_the_fields_are_it_is_a_record_or_an_error(fields: list[bytes]) -> None:
    try:
        job = sacct.Parser(lambda _: None).record(fields)
    except UnparsableError:
        return
    validate_part("SlurmJob", msgspec.json.encode(job))


def test_only_elapsed_time_is_no_change() -> None:
    same = [sacct.without_elapsed(row(ElapsedRaw=text)) for text in ("10", "20")]
    assert same[0] == same[1]
    assert sacct.without_elapsed(row(Priority="1")) != same[0]
    assert sacct.without_elapsed(row(JobName="other")) != same[0]
