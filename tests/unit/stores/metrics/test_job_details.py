"""Details of jobs: events and envelopes complete each other."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import msgspec
import pytest

from ccagent.records.line_protocol import Line
from ccagent.stores.metrics.job_details import StartedJob, StoredJobDetails, read_details
from ccagent.stores.metrics.job_events import JobEvents
from ccagent.stores.metrics.job_table import JobTable
from tests.unit.stores.metrics.support import write_envelope

if TYPE_CHECKING:
    from pathlib import Path

EVENT = {
    "jobId": 7, "cluster": "fox", "user": "eve", "project": "phys", "partition": "gpu",
    "startTime": 1_800_000_000, "walltime": 3600, "numHwthreads": 8, "numAcc": 2,
    "requestedMemory": 4096, "shared": "none", "metaData": {"jobName": "train.py"},
    "resources": [{"hostname": "n1", "hwthreads": [0, 1, 2, 3], "accelerators": ["0000:0E:00.0"]},
                  {"hostname": "n2", "hwthreads": None}],
}  # fmt: skip
JOB = {
    "job_id": 7, "job_state": "COMPLETED", "user_name": "eve", "account": "phys",
    "nodes": ["n[1-2]"], "start_time": "2027-01-15T08:00:00Z", "end_time": "2027-01-15T09:00:00Z",
    "time_limit": 7202, "requested_resources": "cpu=8,mem=8G",
    "allocated_resources": "cpu=16,mem=8G,node=2,gres/gpu:a100=2,gres/gpu=2",
    "sacct": {"UserCPU": 100, "SystemCPU": 20},
}  # fmt: skip


def take(table: JobTable) -> None:
    line = Line("job", {"function": "start_job"}, "event", json.dumps(EVENT), None)
    JobEvents(table).take(line)


def test_the_event_of_a_start_has_cards_and_threads_by_node(tmp_path: Path) -> None:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    take(table)
    (job,) = table.find("fox", "7")
    assert job.details == StoredJobDetails(
        name="train.py", account="phys", partition="gpu", time_limit=3600, cores=8, gpus=2,
        memory=4096 << 20, cpus={"n1": 4}, cards={"n1": ["0000:0E:00.0"]}, is_exclusive=True,
    )  # fmt: skip
    table.close()


def test_an_envelope_replaces_what_it_knows_and_keeps_the_rest(tmp_path: Path) -> None:
    table = JobTable(str(tmp_path / "jobs.sqlite"))
    take(table)
    envelope = {"data": {"attributes": {"cluster": "fox", "slurm_jobs": [JOB]}}}
    write_envelope(JobEvents(table), json.dumps(envelope).encode())
    (job,) = table.find("fox", "7")
    details = job.details
    assert (details.name, details.cards) == ("train.py", {"n1": ["0000:0E:00.0"]})
    assert (details.time_limit, details.cores, details.memory) == (7200, 16, 8 << 30)
    assert (details.exit_code, details.cpu_seconds, details.asked_cores) == (0, 120, 8)
    table.close()


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, None), (1, None), (2, 0), (62, 60), ("x", None), (None, None)]
)
def test_an_unset_or_infinite_limit_is_none(limit: object, expected: int | None) -> None:
    assert read_details({"time_limit": limit}).time_limit == expected


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [("cpu=1,gres/shard=2", True), ("cpu=1,gres/mps:a100=50", True), ("cpu=1,gres/gpu=1", None)],
)
def test_a_part_of_a_gpu_is_known(allocated: str, expected: bool | None) -> None:
    assert read_details({"allocated_resources": allocated}).has_gpu_share is expected


def test_odd_values_are_unknown() -> None:
    odd = {"job_name": 7, "account": ["x"], "allocated_resources": None, "sacct": "x",
           "exit_code": "0:0", "end_time": "2027-01-15T09:00:00Z"}  # fmt: skip
    assert read_details(odd) == StoredJobDetails()
    assert len(read_details({"job_name": "x" * 100_000}).name) == 1024


@pytest.mark.parametrize("amount", [-1, 10**18, 2**64 - 1])
def test_implausible_amounts_are_unknown(amount: int) -> None:
    """Sums and shares of them would fail in the reports and pages of all jobs."""
    names = ("walltime", "numHwthreads", "numAcc", "requestedMemory")
    event = msgspec.convert(EVENT | dict.fromkeys(names, amount), StartedJob)
    job = JOB | {
        "time_limit": amount, "sacct": {"UserCPU": amount, "SystemCPU": 0},
        "requested_resources": f"cpu={amount}",
        "allocated_resources": f"cpu={amount},mem={amount}G,gres/gpu={amount}",
    }  # fmt: skip
    for found in (event.details(), read_details(job)):
        assert {found.time_limit, found.cores, found.asked_cores, found.memory} == {None}
        assert (found.gpus or None, found.cpu_seconds) == (None, None)


def test_a_table_of_an_earlier_release_gains_the_column(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(
            "create table jobs (cluster text not null, job text not null, user text not null,"
            " state text not null, start integer not null, stop integer, nodes text not null,"
            " footprint text, primary key (cluster, job, start)) strict, without rowid"
        )
        database.execute(
            "insert into jobs values ('fox', '7', 'eve', 'running', 1800000000, null, '[]', null)"
        )
    database.close()
    table = JobTable(path)
    assert table.find("fox", "7")[0].details == StoredJobDetails()
    take(table)
    assert table.find("fox", "7")[0].details.name == "train.py"
    table.close()


def test_details_of_another_form_are_unknown(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.sqlite")
    table = JobTable(path)
    take(table)
    with sqlite3.connect(path) as database:
        database.execute("update jobs set details = '[1'")
    database.close()
    assert table.find("fox", "7")[0].details == StoredJobDetails()
    table.close()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("BatchFlag=1 Reboot=0", "Command=/home/alice/bash"), False),
        (("BatchFlag=0 Reboot=0", "Command=bash"), True),  # srun --pty bash
        (("BatchFlag=0 Reboot=0", "Command=(null)"), True),  # salloc
        (("BatchFlag=0 Reboot=0", "Command=sleep"), None),  # srun sleep
        (("BatchFlag=0 Reboot=0", "Command=gdb", "SubmitLine=srun -n1 --pty gdb a.out"), True),
        (("BatchFlag=0 Reboot=0", "Command=a.out", "SubmitLine=srun -n4 a.out"), None),
        (("JobState=RUNNING",), None),
    ],
)
def test_jobs_from_a_terminal(lines: tuple[str, ...], expected: bool | None) -> None:
    """The lines are those of Slurm 22.05; SubmitLine is of newer versions."""
    text = "\n".join(["JobId=7 JobName=x", *(f"   {line}" for line in lines)])
    content = EVENT | {"metaData": {"jobName": "x", "slurmInfo": text}}
    details = msgspec.json.decode(json.dumps(content), type=StartedJob).details()
    assert details.has_terminal is expected
