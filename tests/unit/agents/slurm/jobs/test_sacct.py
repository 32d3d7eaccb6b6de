"""Records out of the rows of sacct."""

from __future__ import annotations

import json
import time
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.slurm.jobs import sacct
from ccagent.agents.slurm.tres import gres_detail
from ccagent.errors import UnparsableError
from ccagent.records.envelopes import SlurmJob
from tests.support.schema import validate_part
from tests.support.slurm_recorded import DIRECTORY, recorded_rows


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
        "time_limit": 3602,
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
        ("12_[1,3,5,10,15,20%3]", "12", (12, "", 0, 0, 0, 0)),
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
    [
        {"JobIDRaw": "x"},
        {"JobIDRaw": "0"},
        {"State": ""},
        {"State": "odd"},
        {"JobID": "a_b"},
        {"JobID": f"{'9' * 30}_1"},
        {"JobID": f"1+{'9' * 30}"},
    ],
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


def test_only_time_that_passes_is_no_change() -> None:
    same = [sacct.content(row(ElapsedRaw=text)) for text in ("10", "20")]
    assert same[0] == same[1]
    assert sacct.content(row(Priority="1")) != same[0]
    assert sacct.content(row(JobName="other")) != same[0]
    for raw in ("7", "7.0"):
        suspended = [
            sacct.content(row(JobIDRaw=raw, State=state, Suspended=text))
            for state, text in (
                ("SUSPENDED", "00:00:10"), ("SUSPENDED", "00:01:10"), ("RUNNING", "00:01:10"),
            )
        ]  # fmt: skip
        assert suspended[0] == suspended[1] != suspended[2]


def test_cpu_times_change_a_step_and_not_its_job() -> None:
    # Those of a job depend on the steps that sacct was asked to show.
    jobs = [sacct.content(row(UserCPU=text)) for text in ("00:01", "00:02")]
    assert jobs[0] == jobs[1]
    steps = [sacct.content(row(JobIDRaw="7.0", UserCPU=text)) for text in ("00:01", "00:02")]
    assert steps[0] != steps[1]


@pytest.mark.parametrize("user", ["00:00:00", "00:00.000", ""])
def test_a_step_without_cpu_time(user: str) -> None:
    assert not sacct.has_cpu_time(row(UserCPU=user, SystemCPU="00:00:00"))
    assert sacct.has_cpu_time(row(UserCPU=user, SystemCPU="00:00.010"))


def test_a_resized_job_asks_a_node_for_what_each_of_its_nodes_has() -> None:
    # As accounting has a job of 100 MB a node that gave up one of its two.
    job = parsed(
        row(Submit="1795344334", Start="1795344322", End="1795344347", ReqMem="200M",
            ReqNodes="1", ReqCPUS="2", ReqTRES="billing=2,cpu=2,mem=200M,node=1",
            AllocTRES="billing=1,cpu=1,mem=100M,node=1")
    )  # fmt: skip
    assert job.requested_memory_per_node == 100 * 1024


def test_a_job_cancelled_while_held_never_started() -> None:
    # Slurm 22.05 tells the time of the end as that of a start if it is cancelled within seconds.
    job = parsed(
        row(State="CANCELLED by 0", Start="1795344074", End="1795344074", NodeList="None assigned")
    )
    assert (job.start_time, job.end_time) == ("", "2026-11-22T10:41:14Z")


def test_disk_traffic_is_in_kilobytes() -> None:
    job = parsed(row(JobIDRaw="7.0", AveDiskRead="12.50M", AveDiskWrite="1025"))
    assert job.sacct is not None
    assert (job.sacct.ave_disk_read, job.sacct.ave_disk_write) == (12800, 2)


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        ("cpu=1,gres/gpu:a100=1,gres/gpu=1", ["gpu:a100:1"]),
        ("gres/gpu:a100=1,gres/gpu:h100=2,gres/gpu=3", ["gpu:a100:1", "gpu:h100:2"]),
        ("gres/gpu:a100=1,gres/gpu=3", ["gpu:a100:1", "gpu:2"]),
        ("gres/gpu=2,gres/nic=1", ["gpu:2", "nic:1"]),
        ("billing=1,cpu=1,mem=100M", []),
        ("", []),
    ],
)
def test_no_card_is_listed_twice(tres: str, expected: list[str]) -> None:
    assert gres_detail(tres) == expected
