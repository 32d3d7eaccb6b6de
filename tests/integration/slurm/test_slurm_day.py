"""A day of a real Slurm as each receiver has it at the end, against `sacct --duplicates`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from ccagent.records.envelopes import JobsEnvelope, SlurmJob
from tests.support.kafka_cluster import Cluster
from tests.support.nats_server import Bench
from tests.support.receiving_programs import CLUSTER, PASSWORD, Jobanalyzer
from tests.support.running import Running, until
from tests.support.slurm_fields import FIELDS, parse_moment, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.slurm_cluster import SlurmCluster
    from tests.support.slurm_scenarios import Jobs

CONFIGURATION = """\
cluster = "{cluster}"
hostname = "master"
status-socket = ""

[agents.jobs]
every = "2s"
on-startup = true
sacct = "{programs}/sacct"
squeue = "{programs}/squeue"
scontrol = "{programs}/scontrol"
sinfo = "{programs}/sinfo"

[sinks.kafka]
url = "kafka://{kafka}"
topic = "fox.sample"

[sinks.http]
url = "http://{http}/api/v1/insert"
receiver = "jobanalyzer"
password-file = "{password}"

[sinks.nats]
url = "{nats}"
jetstream = true
"""

CHANGING = ("running", "suspended", "timeout")
"""Jobs that still run, or whose accounting comes late: only their states are compared."""


Bodies = dict[str, "Callable[[], list[bytes]]"]
"""The bodies of messages that each receiver has got, in their order."""


class Run(NamedTuple):
    """A job or step from one submission or requeue to the next.

    start: seconds since 1970; empty if it did not start.
    """

    job: int
    step: str
    submit: str
    start: str


def keep_last(jobs: list[SlurmJob]) -> dict[Run, SlurmJob]:
    """Return the last record of each run; a run that has started replaces its waiting."""
    runs: dict[Run, SlurmJob] = {}
    for job in jobs:
        run = Run(job.job_id, job.job_step, seconds(job.submit_time), seconds(job.start_time))
        runs.pop(run._replace(start=""), None)
        runs[run] = job
    return runs


def read_envelopes(bodies: list[bytes]) -> list[SlurmJob]:
    jobs: list[SlurmJob] = []
    for body in bodies:
        envelope = msgspec.json.decode(body, type=JobsEnvelope)
        assert envelope.data is not None, envelope.errors
        jobs += envelope.data.attributes.slurm_jobs
    return jobs


class Day:
    """The jobs of a day, and what each receiver has got of them."""

    def __init__(
        self, slurm: SlurmCluster, receivers: dict[str, Callable[[], list[bytes]]]
    ) -> None:
        self.slurm = slurm
        self.ids: dict[str, int] = {}
        self.receivers = receivers

    def accounted(self) -> dict[Run, dict[str, str]]:
        """Return all fields of all runs of the day's jobs, from `sacct --duplicates`."""
        names = ["JobIDRaw", "Submit", "Start", *FIELDS]
        output = self.slurm.run(
            *("env", "SLURM_TIME_FORMAT=%s", "sacct", "-anDP", "--noconvert"),
            *("--delimiter=\x1f", "-o", ",".join(names)),
            *("-j", ",".join(str(number) for number in self.ids.values())),
        )
        rows = [dict(zip(names, line.split("\x1f"), strict=True)) for line in output.splitlines()]
        runs: dict[Run, dict[str, str]] = {}
        for row in rows:
            number, _, step = row["JobIDRaw"].partition(".")
            # Of some that never had a node accounting tells the time of their end as a start.
            start = "" if row["NodeList"] == "None assigned" else parse_moment(row["Start"])
            runs[Run(int(number), step, parse_moment(row["Submit"]), start)] = row
        return runs

    def received(self, name: str) -> dict[Run, SlurmJob]:
        """Return the last record of each run of the day's jobs at a receiver."""
        numbers = {*self.ids.values()}
        runs = keep_last(read_envelopes(self.receivers[name]()))
        return {
            run: job
            for run, job in runs.items()
            if numbers & {job.job_id, job.array_job_id, job.het_job_id}
        }

    def states(self, name: str) -> dict[Run, str]:
        return {run: job.job_state for run, job in self.received(name).items()}

    def wrong_fields(self, name: str) -> list[tuple[Run, str, object, object]]:
        """Return the fields at a receiver that differ from accounting."""
        changing = {self.ids[job] for job in CHANGING}
        received, wrong = self.received(name), list[tuple[Run, str, object, object]]()
        for run, row in self.accounted().items():
            for field, (told, expected) in FIELDS.items():
                if run.job in changing or (field == "TimelimitRaw" and is_unknown(row)):
                    continue
                pair = (told(received[run]), expected(row[field]))
                if pair[0] != pair[1]:
                    wrong.append((run, field, *pair))
        return wrong


def is_unknown(row: dict[str, str]) -> bool:
    """Return whether accounting gets a limit only when the job runs."""
    return row["TimelimitRaw"] == "Partition_Limit"


@pytest.fixture(scope="module")
def receivers(tmp_path_factory: pytest.TempPathFactory, slurm: SlurmCluster) -> Iterator[Bodies]:
    """A daemon on the master and its three receivers."""
    directory = tmp_path_factory.mktemp("day")
    password = directory / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    kafka, jobanalyzer, daemon = Cluster(), Jobanalyzer(), Running(directory)
    try:
        with Bench(directory) as bench:
            server = bench.stream_server()
            daemon.start(
                CONFIGURATION.format(
                    cluster=CLUSTER, programs=slurm.programs, kafka=kafka.place,
                    http=jobanalyzer.place, password=password, nats=server.url,
                )
            )  # fmt: skip
            yield {
                "kafka": lambda: [body for body in kafka.bodies() if body is not None],
                "http": lambda: [json.dumps(each).encode() for each in jobanalyzer.stored],
                "nats": lambda: [body for _, body, _ in server.stored()],
            }
            daemon.stop()
            assert {*jobanalyzer.answers} == {204}
    finally:
        daemon.kill()
        jobanalyzer.stop()
        kafka.stop()


@pytest.fixture(scope="module")
def day(slurm: SlurmCluster, receivers: Bodies, slurm_jobs: Jobs) -> Day:
    """The jobs of all scenarios, and those whose node fails or whose deadline passes."""
    day = Day(slurm, receivers)
    slurm_jobs.wait()
    day.ids |= slurm_jobs.ids | submit_more(slurm)

    def have_all() -> bool:
        expected = {run: row["State"].split()[0] for run, row in day.accounted().items()}
        return all(day.states(name) == expected for name in receivers)

    deadline = time.monotonic() + 90
    while not have_all() and time.monotonic() < deadline:
        time.sleep(1)  # accounting settles; the tests say what is missing
    return day


def submit_more(slurm: SlurmCluster) -> dict[str, int]:
    """Submit jobs, and do to them what a node, an administrator or a user may do."""
    ids = {
        "deadline": slurm.submit("alice", "-w", "c2-03", "-t1", "--deadline=now+70", "--wrap=true"),
        "requeuehold": slurm.submit("bob", "--wrap=sleep 300"),
        "cancelled with steps": slurm.submit("bob", "-n2", "--wrap=srun -n1 true; srun sleep 99"),
        "cancelled task": slurm.submit("alice", "--array=0-2%1", "--wrap=sleep 2"),
        "never started": slurm.submit("alice", "--hold", "--wrap=true"),
    }
    # The jobs of other tests on this node have ended.
    on_node = ("-p", "bigmem", "--mem=200", "--wrap=srun sleep 300")
    ids["node fails"] = slurm.submit("bob", "--no-requeue", *on_node)
    ids["node fails, requeued"] = slurm.submit("bob", "--requeue", *on_node)
    slurm.run("scontrol", "update", f"JobId={ids['deadline']}", "Deadline=now+2")
    slurm.run("scancel", str(ids["never started"]), user="alice")
    slurm.run("scancel", f"{ids['cancelled task']}_2", user="alice")
    for name in ("node fails", "node fails, requeued", "requeuehold", "cancelled with steps"):
        slurm.wait_for(ids[name], {"RUNNING"})
    slurm.run("scontrol", "update", "NodeName=bigmem1", "State=DOWN", "Reason=test")
    slurm.run("scontrol", "requeuehold", str(ids["requeuehold"]))
    slurm.wait_for(ids["node fails"], {"NODE_FAIL"})
    # It answers, so Slurm takes it back by itself (ReturnToService).
    until(lambda: "down" not in slurm.run("sinfo", "-hn", "bigmem1", "-o", "%T"))
    slurm.run("scancel", str(ids["node fails, requeued"]), user="bob")
    slurm.run("scancel", str(ids["cancelled with steps"]), user="bob")
    slurm.wait_for(ids["deadline"], {"DEADLINE"})
    return ids


RECEIVERS = pytest.mark.parametrize("name", ["kafka", "http", "nats"])


def test_a_day_has_all_that_may_happen_to_a_job(day: Day) -> None:
    states = {row["State"].split()[0] for row in day.accounted().values()}
    assert states >= {
        "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "PENDING", "PREEMPTED",
        "REQUEUED", "RESIZING", "RUNNING", "SUSPENDED", "TIMEOUT",
    }  # fmt: skip


@RECEIVERS
def test_a_receiver_has_the_jobs_and_last_states_of_slurm(day: Day, name: str) -> None:
    expected = {run: row["State"].split()[0] for run, row in day.accounted().items()}
    states = day.states(name)
    assert states.keys() - expected.keys() == set()
    assert expected.keys() - states.keys() == set()
    assert {
        run: (states[run], state) for run, state in expected.items() if states[run] != state
    } == {}


@RECEIVERS
def test_no_field_at_a_receiver_is_wrong(day: Day, name: str) -> None:
    assert len(day.received(name)) > 200
    assert day.wrong_fields(name) == []


def test_receivers_have_equal_records(day: Day) -> None:
    changing = {day.ids[job] for job in CHANGING}
    kafka, http, nats = (
        {run: job for run, job in day.received(name).items() if run.job not in changing}
        for name in ("kafka", "http", "nats")
    )
    assert kafka == http == nats
