"""The agent `jobs`: what it sends, what it doesn't, and what it remembers."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from ccagent.agents.slurm.jobs import sacct
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.config.duration import Duration
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import JobsEnvelope
from ccagent.records.message import Format
from tests.support.schema import validate

FAKE = f"""#!{sys.executable} -IS
import json, sys
here = HERE
with open(here + ".arguments", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
spec = json.load(open(here + ".json"))
delimiter = next(a for a in sys.argv if "\\x1f" in a)
delimiter = delimiter[delimiter.index("\\x1f"):][:26]
out = sys.stdout.buffer
rows = spec["rows"]
jobs = [a.partition("=")[2].split(",") for a in sys.argv if a.startswith("--jobs=")]
if jobs:
    known = rows if spec["by_id"] is None else spec["by_id"]
    rows = [row for row in known if row[1].partition(".")[0] in jobs[0]]
for row in rows:
    out.write(delimiter.join([*row, ""]).encode("utf-8", "surrogateescape") + b"\\n")
out.flush()
if spec["fails"]:
    sys.exit(spec["fails"])
"""


FAKE_SCONTROL = f"""#!{sys.executable} -IS
import json, sys
spec = json.load(open(HERE + ".json"))
status = 0
for line in sys.stdin:
    print("scontrol:", line, end="")
    words = line.split()
    if words[:2] == ["show", "hostnames"]:
        print(words[2])
    elif words[:2] == ["show", "job"] and words[2] in spec["jobs"]:
        print(spec["jobs"][words[2]], end="\\n\\n")
    elif words[:2] == ["write", "batch_script"]:
        print(spec["script"], end="")
    elif words[:1] == ["show"]:
        status = 1
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
sys.exit(status)
"""


class Scontrol:
    """A stand-in for scontrol, whose commands come on standard input."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "scontrol"
        self.path.write_text(FAKE_SCONTROL.replace("HERE", repr(str(self.path))))
        self.path.chmod(0o755)
        self.shows({})

    def shows(self, jobs: dict[str, str], *, script: str = "") -> None:
        Path(f"{self.path}.json").write_text(json.dumps({"jobs": jobs, "script": script}))


class Program:
    """A stand-in for sacct or squeue that prints the rows it is given."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self.path.write_text(FAKE.replace("HERE", repr(str(self.path))))
        self.path.chmod(0o755)
        self.prints()

    def prints(
        self, *rows: list[str], fails: str = "", by_id: list[list[str]] | None = None
    ) -> None:
        """Print `rows`; where jobs are asked for by id, those of them in `by_id`, if given."""
        spec = {"rows": rows, "fails": fails, "by_id": by_id}
        Path(f"{self.path}.json").write_text(json.dumps(spec))

    def asked(self) -> list[list[str]]:
        lines = Path(f"{self.path}.arguments").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Slurm:
    """Both programs, and agents that use them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sacct = Program(directory, "sacct")
        self.squeue = Program(directory, "squeue")
        self.scontrol = Scontrol(directory)
        self.sinfo = directory / "sinfo"
        self.nodes()
        self.clock = StillClock()
        self.node = Node(hostname="master", cluster="fox", clock=self.clock)

    def agent(self, wanted: Format = "sonar", **keys: Any) -> JobsAgent:
        settings = JobsSettings(
            sacct=str(self.sacct.path),
            squeue=str(self.squeue.path),
            scontrol=str(self.scontrol.path),
            sinfo=str(self.sinfo),
            **keys,
        )
        return JobsAgent(settings, frozenset({wanted}))

    def nodes(self, *lines: str) -> None:
        """Set what sinfo prints: name, sockets, cores of one, threads of one."""
        printed = "\n".join(lines)
        self.sinfo.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\n")
        self.sinfo.chmod(0o755)

    def envelopes(self, agent: JobsAgent, *, taken: bool = True) -> list[JobsEnvelope]:
        """Sample once; tell the agent that it was taken."""
        found: list[JobsEnvelope] = []
        for envelope in agent.sample(self.node):
            assert isinstance(envelope, JobsEnvelope)
            validate("JobsEnvelope", msgspec.json.encode(envelope))
            found.append(envelope)
        if taken:
            agent.commit_sample()
            agent.save_state()
        return found

    def sent(self, agent: JobsAgent, *, taken: bool = True) -> list[tuple[int, str]]:
        """Sample once; give job and state of all records."""
        return [
            (job.job_id, job.job_state)
            for envelope in self.envelopes(agent, taken=taken)
            if envelope.data is not None
            for job in envelope.data.attributes.slurm_jobs
        ]


class StillClock(Clock):
    """Stands until it is moved."""

    now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def job(number: int | str, state: str = "COMPLETED", **fields: str) -> list[str]:
    plain = {
        "JobID": str(number), "JobIDRaw": str(number), "Submit": "1699990000", "State": state,
        "User": "alice", "ElapsedRaw": "10", "JobName": "x",
        "Partition": "" if "." in str(number) else "normal",
    } | fields  # fmt: skip
    return [plain.get(name, "") for name in sacct.FIELDS]


def queued(number: int, name: str = "held", state: str = "PENDING", **fields: str) -> list[str]:
    plain = {
        "id": str(number), "raw_id": str(number), "state": state, "submit": "1699990000",
        "start": "N/A", "end": "1699993600", "user": "bob", "account": "chem",
        "partition": "normal", "time_limit": "1:00:00", "cpus": "1", "node_count": "1",
        "nodes": "", "priority": "0", "reservation": "(null)",
        "tres": "cpu=1,mem=100M,node=1,billing=1", "sharing": "OK", "exclusive": "",
        "name": name,
    } | fields  # fmt: skip
    return [*plain.values()]


def test_the_first_run_sends_all_and_the_next_what_changed(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1), job("1.batch"), job(2, "RUNNING"), job(3, "PENDING"))
    assert slurm.sent(agent) == [(1, "COMPLETED"), (1, "COMPLETED"), (2, "RUNNING"), (3, "PENDING")]
    slurm.sacct.prints(
        job(1), job("1.batch"), job(2, "RUNNING", ElapsedRaw="70"), job(3, "RUNNING")
    )
    assert slurm.sent(agent) == [(3, "RUNNING")]
    assert slurm.envelopes(agent) == []


def test_what_was_not_taken_is_sent_again(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1))
    assert slurm.sent(agent, taken=False) == [(1, "COMPLETED")]
    assert slurm.sent(agent) == [(1, "COMPLETED")]
    assert slurm.sent(agent) == []


def test_the_state_survives_a_restart(slurm: Slurm, tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.state")
    slurm.sacct.prints(job(1))
    assert slurm.sent(slurm.agent(state_file=path)) == [(1, "COMPLETED")]
    slurm.sacct.prints(job(1), job(2))
    assert slurm.sent(slurm.agent(state_file=path)) == [(2, "COMPLETED")]
    assert slurm.sent(slurm.agent(state_file=path, resend=True)) == [
        (1, "COMPLETED"), (2, "COMPLETED"),
    ]  # fmt: skip


def test_a_damaged_state_is_said_and_all_is_sent_again(
    slurm: Slurm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.state"
    path.write_bytes(b"\x93\x01 no state")
    slurm.sacct.prints(job(1))
    with caplog.at_level(logging.WARNING, "ccagent"):
        assert slurm.sent(slurm.agent(state_file=str(path))) == [(1, "COMPLETED")]
    assert "damaged; sending all again" in caplog.text
    assert slurm.sent(slurm.agent(state_file=str(path))) == []


def test_a_gap_is_caught_up_within_bounds(slurm: Slurm) -> None:
    agent = slurm.agent(max_catch_up=Duration("2d"))
    for seconds in (0, 60, 86400, 30 * 86400):
        slurm.clock.now += seconds
        slurm.sent(agent)
    asked = [next(a for a in call if "starttime" in a) for call in slurm.sacct.asked()]
    assert asked == [
        f"--starttime=now-{reach}seconds" for reach in (172800 + 600, 660, 87000, 172800 + 600)
    ]


def test_batches_keep_the_steps_of_a_job_together(slurm: Slurm) -> None:
    rows = [row for n in range(1, 6) for row in (job(n), job(f"{n}.batch"), job(f"{n}.0"))]
    slurm.sacct.prints(*rows)
    found = slurm.envelopes(slurm.agent(batch_size=2))
    assert [len(e.data.attributes.slurm_jobs) for e in found if e.data is not None] == [6, 6, 3]


def test_a_requeued_job_is_told_apart_from_itself(slurm: Slurm) -> None:
    slurm.sacct.prints(
        job(1, "REQUEUED", Start="1699990001"), job(1, "RUNNING", Start="1699991000")
    )
    first, second = slurm.envelopes(slurm.agent())
    assert first.data is not None
    assert second.data is not None
    assert first.data.attributes.slurm_jobs[0].job_state == "REQUEUED"
    assert second.data.attributes.slurm_jobs[0].job_state == "RUNNING"


def test_the_queue_adds_what_accounting_does_not_show(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1, "PENDING"))
    slurm.squeue.prints(queued(1), queued(2), queued(3, "nl\n4\x1f5"))
    assert slurm.sent(agent) == [(1, "PENDING"), (2, "PENDING"), (3, "PENDING")]
    assert slurm.sent(agent) == []


def never_started(number: int, *, submit: str = "1699990000") -> list[str]:
    return job(
        number, "CANCELLED by 5", Submit=submit, Start="1699999980", End="1699999980",
        NodeList="None assigned",
    )  # fmt: skip


def test_a_job_that_no_window_shows_is_asked_for_by_its_id(slurm: Slurm) -> None:
    agent = slurm.agent()
    held = job(2, "PENDING", ReqMem="1000M", ReqNodes="2", ReqTRES="cpu=3,mem=1000M,node=2",
               Account="chem", TimelimitRaw="Partition_Limit", ReqCPUS="1")  # fmt: skip
    slurm.sacct.prints(job(1), by_id=[held])
    slurm.squeue.prints(queued(2))
    (envelope,) = slurm.envelopes(agent)
    assert envelope.data is not None
    _, record = envelope.data.attributes.slurm_jobs
    assert (record.job_state, record.requested_memory_per_node) == ("PENDING", 500 * 1024)
    assert record.requested_resources == "cpu=3,mem=1000M,node=2"
    assert record.time_limit == 3602  # of the partition, which only the queue knows
    # It is not sent again when it becomes eligible, so that a window shows it.
    slurm.sacct.prints(job(1), held)
    assert slurm.sent(agent) == []
    slurm.sacct.prints(job(1), by_id=[never_started(2)])
    slurm.squeue.prints(queued(2, state="CANCELLED", end="1699999980"))
    (envelope,) = slurm.envelopes(agent)
    assert envelope.data is not None
    (record,) = envelope.data.attributes.slurm_jobs
    assert (record.job_state, record.start_time) == ("CANCELLED", "")
    assert record.end_time
    assert slurm.sent(agent) == []


def test_a_job_that_only_the_queue_knows_is_complete(slurm: Slurm) -> None:
    agent = slurm.agent(extras=["gres_detail"])
    slurm.squeue.prints(
        queued(2, tres="cpu=3,mem=1000M,node=2,billing=3,gres/gpu=2", node_count="2-2", cpus="3")
    )
    (envelope,) = slurm.envelopes(agent)
    assert envelope.data is not None
    (record,) = envelope.data.attributes.slurm_jobs
    assert record.requested_memory_per_node == 500 * 1024
    assert record.requested_resources == "billing=3,cpu=3,gres/gpu=2,mem=1000M,node=2"
    assert record.gres_detail == ["gpu:2"]
    assert (record.requested_node_count, record.time_limit) == (2, 3602)


def test_a_requeued_job_that_is_held_has_not_ended(slurm: Slurm) -> None:
    agent = slurm.agent()
    ran = job(1, "REQUEUED", Start="1699990001", End="1699999900", NodeList="c1")
    slurm.sacct.prints(ran, by_id=[ran, job(1, "PENDING", Submit="1699999900")])
    slurm.squeue.prints(queued(1, submit="1699999900"))
    first, second = slurm.envelopes(agent)
    assert first.data is not None
    assert second.data is not None
    assert first.data.attributes.slurm_jobs[0].job_state == "REQUEUED"
    assert second.data.attributes.slurm_jobs[0].job_state == "PENDING"
    assert slurm.sent(agent) == []


def test_the_remainder_of_an_array_is_none_of_its_tasks(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1), by_id=[job(5, "PENDING", JobID="5_[1,3-9%2]")])
    slurm.squeue.prints(queued(5, id="5_[1,3-9%2]"), queued(7, id="7_[2]"))
    (envelope,) = slurm.envelopes(agent)
    assert envelope.data is not None
    for record in envelope.data.attributes.slurm_jobs[1:]:
        assert (record.job_state, record.array_job_id, record.array_task_id) == ("PENDING", 0, 0)
    slurm.squeue.prints(queued(5, id="5_[3-9%2]"), queued(7, id="7_[2]"))
    assert slurm.sent(agent) == []


class TestCpuTimesOfJobsWithSeveralSteps:
    """sacct adds up the steps it shows, and a window leaves out those that ended before it."""

    RAN: ClassVar[dict[str, str]] = {
        "Start": "1699998000", "End": "1699999950", "NodeList": "c1", "ElapsedRaw": "1950",
    }  # fmt: skip
    EARLY: ClassVar[list[str]] = job(
        "1.0", Start="1699998000", End="1699998060", UserCPU="00:32.058", SystemCPU="00:28.003"
    )
    LATE: ClassVar[list[str]] = job(
        "1.1", Start="1699999940", End="1699999950", UserCPU="00:03.055", SystemCPU="00:02.003"
    )
    SHOWN: ClassVar[list[str]] = job(1, **RAN, UserCPU="00:03.055", SystemCPU="00:02.003")
    WHOLE: ClassVar[list[str]] = job(1, **RAN, UserCPU="00:35.120", SystemCPU="00:30.030")

    def of_job(self, slurm: Slurm, agent: JobsAgent) -> list[tuple[int, int]]:
        """Sample; return user and system time of each record of the job itself."""
        return [
            (record.sacct.user_cpu, record.sacct.system_cpu)
            for envelope in slurm.envelopes(agent)
            if envelope.data is not None
            for record in envelope.data.attributes.slurm_jobs
            if not record.job_step and record.job_id == 1 and record.sacct is not None
        ]

    @pytest.fixture
    def agent(self, slurm: Slurm) -> JobsAgent:
        """An agent whose next window is eleven minutes long."""
        agent = slurm.agent()
        slurm.clock.now -= 60
        slurm.sent(agent)
        slurm.clock.now += 60
        return agent

    def test_the_last_record_has_those_of_all_steps(self, slurm: Slurm, agent: JobsAgent) -> None:
        slurm.sacct.prints(self.SHOWN, self.LATE, by_id=[self.WHOLE, self.EARLY, self.LATE])
        assert self.of_job(slurm, agent) == [(35, 30)]
        assert slurm.sacct.asked()[-1][-1] == "--jobs=1"

    def test_it_is_not_sent_again_when_its_steps_leave_the_window(
        self, slurm: Slurm, agent: JobsAgent
    ) -> None:
        ran = self.RAN | {"Start": "1699999500"}
        whole = job(1, **ran, UserCPU="00:35.120", SystemCPU="00:30.030")
        early = job("1.0", Start="1699999500", End="1699999560", UserCPU="00:32.058")
        slurm.sacct.prints(whole, early, self.LATE)
        assert self.of_job(slurm, agent) == [(35, 30)]
        slurm.clock.now += 300
        slurm.sacct.prints(job(1, **ran, UserCPU="00:03.055", SystemCPU="00:02.003"), self.LATE)
        assert slurm.sent(agent) == []

    def test_a_step_that_is_accounted_for_late_adds_to_the_job(
        self, slurm: Slurm, agent: JobsAgent
    ) -> None:
        slurm.sacct.prints(self.SHOWN, by_id=[self.SHOWN, self.EARLY])
        assert self.of_job(slurm, agent) == [(3, 2)]
        slurm.sacct.prints(self.SHOWN, self.LATE, by_id=[self.WHOLE, self.EARLY, self.LATE])
        assert self.of_job(slurm, agent) == [(35, 30)]
        assert self.of_job(slurm, agent) == []

    def test_a_job_waits_for_its_open_steps(self, slurm: Slurm, agent: JobsAgent) -> None:
        still = job("1.1", "RUNNING", Start="1699999940", End="Unknown")
        slurm.sacct.prints(self.SHOWN, still, by_id=[self.WHOLE, self.EARLY, self.LATE])
        assert self.of_job(slurm, agent) == []
        slurm.sacct.prints(self.SHOWN, self.LATE, by_id=[self.WHOLE, self.EARLY, self.LATE])
        assert self.of_job(slurm, agent) == [(35, 30)]

    def test_what_accounting_does_not_answer_is_asked_again(
        self, slurm: Slurm, agent: JobsAgent
    ) -> None:
        slurm.sacct.prints(self.SHOWN, self.LATE, by_id=[])
        assert self.of_job(slurm, agent) == []
        slurm.sacct.prints(self.SHOWN, self.LATE, by_id=[self.WHOLE, self.EARLY, self.LATE])
        assert self.of_job(slurm, agent) == [(35, 30)]

    @pytest.mark.slow
    def test_jobs_are_asked_for_in_batches(self, slurm: Slurm, agent: JobsAgent) -> None:
        rows = [job(number, **self.RAN) for number in range(1, 1202)]
        slurm.sacct.prints(*rows)
        assert len(slurm.sent(agent)) == 1201
        lengths = [len(call[-1].split(",")) for call in slurm.sacct.asked() if "--jobs" in call[-1]]
        assert lengths == [500, 500, 201]

    def test_another_job_that_once_had_the_id_is_left_out(
        self, slurm: Slurm, agent: JobsAgent
    ) -> None:
        old = job(1, **self.RAN, Submit="1500000000", UserCPU="99:00:00")
        slurm.sacct.prints(self.SHOWN, by_id=[old, self.WHOLE])
        assert self.of_job(slurm, agent) == [(35, 30)]


@pytest.mark.slow
def test_a_run_that_was_sent_long_ago_is_not_sent_after_the_last(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sent(agent)
    slurm.clock.now += 3600
    slurm.sent(agent)
    # The queue has a resized job under its first submission, which no window shows any more.
    before = job(1, "RESIZING", Start="1699990000", End="1699991000", NodeList="c[1-2]")
    after = job(1, Submit="1699991000", Start="1699990000", End="1700003500", NodeList="c1")
    slurm.sacct.prints(after, by_id=[before, after])
    slurm.squeue.prints(queued(1, state="COMPLETED", start="1699990000", end="1700003500"))
    assert slurm.sent(agent) == [(1, "COMPLETED")]
    assert slurm.sent(agent) == []


class TestRowsThatAreNotFinal:
    """What slurmdbd has not all of waits for the next round."""

    def test_right_after_an_event(self, slurm: Slurm) -> None:
        agent = slurm.agent()
        slurm.sacct.prints(job(1, "RUNNING", Start="1699999995", NodeList="c1"))
        assert slurm.sent(agent) == []
        slurm.clock.now += 60
        assert slurm.sent(agent) == [(1, "RUNNING")]

    @pytest.mark.parametrize(
        "fields", [{"State": "COMPLETED", "End": "Unknown"}, {"State": "RUNNING"}]
    )
    def test_that_contradict_themselves(self, slurm: Slurm, fields: dict[str, str]) -> None:
        agent = slurm.agent()
        row = {"Start": "1699999900", "End": "1699999950", "NodeList": "c1"} | fields
        state = row.pop("State")
        slurm.sacct.prints(job(1, state, **row))
        assert slurm.sent(agent) == []
        slurm.clock.now += 700  # it will not get better
        assert slurm.sent(agent) == [(1, state)]

    def test_of_a_job_that_the_queue_shows_ended_first(self, slurm: Slurm) -> None:
        agent = slurm.agent()
        slurm.sacct.prints(job(2), by_id=[job(1, "FAILED", Partition="", Start="Unknown")])
        slurm.squeue.prints(queued(1, state="FAILED", start="1699999900", end="1699999950"))
        assert slurm.sent(agent) == [(2, "COMPLETED")]
        row = job(1, "FAILED", Start="1699999900", End="1699999950", NodeList="c1", ExitCode="1:0")
        slurm.sacct.prints(job(2), row)
        (envelope,) = slurm.envelopes(agent)
        assert envelope.data is not None
        assert [j.exit_code for j in envelope.data.attributes.slurm_jobs] == [1]


def test_records_of_one_job_have_distinct_times_and_the_latest_is_last(slurm: Slurm) -> None:
    first = [job(1, "REQUEUED", Start="1699990001", End="1699990500"), job("1.batch")]
    later = [job(1, "RUNNING", Submit="1699990500", Start="1699991000"), job("1.batch", "RUNNING")]
    slurm.sacct.prints(*first, job(2), *later, *(job(n) for n in range(3, 60)))
    found = slurm.envelopes(slurm.agent(max_envelope_bytes=10_000))
    kept: dict[tuple[int, str, str], str] = {}
    states: list[str] = []
    for envelope in found:
        assert envelope.data is not None
        for record in envelope.data.attributes.slurm_jobs:
            key = (record.job_id, record.job_step, envelope.data.attributes.time)
            assert key not in kept, "both receivers keep the first"
            kept[key] = record.job_state
            if (record.job_id, record.job_step) == (1, ""):
                states.append(record.job_state)
    assert states == ["REQUEUED", "RUNNING"]
    times = [e.data.attributes.time for e in found if e.data is not None]
    assert times == sorted(times)
    assert len(set(times)) == 2


def test_envelopes_are_bounded_in_bytes(slurm: Slurm) -> None:
    rows = [job(n, JobName="\x01" * 200) for n in range(1, 400)]
    many_steps = [job(400), *(job(f"400.{step}") for step in range(500))]
    slurm.sacct.prints(*rows, *many_steps)
    found = list(slurm.agent(max_envelope_bytes=50_000).sample(slurm.node))
    sizes = [len(msgspec.json.encode(envelope)) for envelope in found]
    assert max(sizes) <= 50_000
    assert min(sizes[:-1]) > 45_000
    assert len(msgspec.json.encode(list(slurm.agent().sample(slurm.node)))) < 1024 * 1024


class TestEndedJobsOnly:
    """`uncompleted = false`, as Sonar's default is."""

    def test_jobs_that_wait_or_run_are_left_out(self, slurm: Slurm) -> None:
        agent = slurm.agent(uncompleted=False)
        running = job(2, "RUNNING", Start="1699999000", NodeList="c1")
        slurm.sacct.prints(job(1), running, job("2.0"), job(3, "PENDING"))
        slurm.squeue.prints(queued(4))
        assert slurm.sent(agent) == [(1, "COMPLETED")]

    def test_an_ended_job_comes_with_all_its_steps(self, slurm: Slurm) -> None:
        agent = slurm.agent(uncompleted=False)
        ran = {"Start": "1699999000", "NodeList": "c1"}
        slurm.sacct.prints(job(2, "RUNNING", **ran), job("2.0", Start="1699999000"))
        slurm.sent(agent)
        slurm.clock.now += 3600
        slurm.sent(agent)
        slurm.clock.now += 60
        ended = job(2, **ran, End="1700003640")
        steps = [job("2.0", Start="1699999000"), job("2.1", Start="1700003600", End="1700003640")]
        slurm.sacct.prints(ended, steps[1], by_id=[ended, *steps])
        (envelope,) = slurm.envelopes(agent)
        assert envelope.data is not None
        assert [j.job_step for j in envelope.data.attributes.slurm_jobs] == ["", "0", "1"]
        assert slurm.sent(agent) == []


def test_what_waits_in_memory_is_not_remembered_over_a_restart(
    slurm: Slurm, tmp_path: Path
) -> None:
    path = str(tmp_path / "jobs.state")
    slurm.sacct.prints(job(1))
    agent = slurm.agent(state_file=path)
    assert slurm.sent(agent, taken=False) == [(1, "COMPLETED")]
    agent.commit_sample()
    # The same process does not send it twice; one after it has to.
    assert slurm.sent(agent, taken=False) == []
    assert slurm.sent(slurm.agent(state_file=path), taken=False) == [(1, "COMPLETED")]
    agent.save_state()
    assert slurm.sent(slurm.agent(state_file=path)) == []


def test_a_name_alters_no_other_job(slurm: Slurm) -> None:
    slurm.sacct.prints(job(1, JobName="x\nJobId=2 TRES=cpu=77"), job(2), job(3, JobName="y\n3|3|"))
    (envelope,) = slurm.envelopes(slurm.agent())
    assert envelope.data is not None
    assert [(j.job_id, j.job_name) for j in envelope.data.attributes.slurm_jobs] == [
        (1, "x\nJobId=2 TRES=cpu=77"), (2, "x"), (3, "y\n3|3|"),
    ]  # fmt: skip


def test_a_bad_row_costs_only_itself_and_is_said(
    slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.sacct.prints(job(1), job("odd"), job(3), job(4)[1:], job(5))
    with caplog.at_level(logging.ERROR, "ccagent"):
        assert [number for number, _ in slurm.sent(slurm.agent())] == [1, 3, 5]
    assert "a row is skipped: expected a job id and 32 more fields, found 'odd odd " in caplog.text


def test_without_slurm_there_is_a_sentence(slurm: Slurm) -> None:
    slurm.sacct.path.unlink()
    (envelope,) = slurm.envelopes(slurm.agent())
    assert envelope.data is None
    (error,) = envelope.errors
    assert error.detail.endswith(
        "sacct: no such program: Slurm is not installed on this node, or elsewhere: set its path"
    )


def test_what_came_before_a_failure_is_sent_and_nothing_is_missed(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1), job(2), job(3), fails="slurmdbd is away")
    data, errors = slurm.envelopes(agent)
    assert data.data is not None
    # The last row could be cut short, and steps of the job before it could follow.
    assert [j.job_id for j in data.data.attributes.slurm_jobs] == [1]
    assert "exit status 1: slurmdbd is away" in errors.errors[0].detail
    slurm.clock.now += 3600
    slurm.sacct.prints(job(1), job(2), job(3))
    assert slurm.sent(agent) == [(2, "COMPLETED"), (3, "COMPLETED")]
    assert f"--starttime=now-{7 * 86400 + 600}seconds" in slurm.sacct.asked()[1]


def test_an_answer_without_any_row_is_a_failure_and_nothing_is_missed(slurm: Slurm) -> None:
    agent = slurm.agent()
    assert slurm.sent(agent) == []
    slurm.sacct.prints(["maintenance until noon"])
    (envelope,) = slurm.envelopes(agent)
    assert agent.is_blind
    assert envelope.errors[0].detail.endswith("fields: 'maintenance until noon'")
    slurm.clock.now += 3600
    slurm.sacct.prints(job(1))
    assert slurm.sent(agent) == [(1, "COMPLETED")]
    assert "--starttime=now-4200seconds" in slurm.sacct.asked()[-1]


def test_without_the_queue_accounting_goes_on(
    slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.sacct.prints(job(1))
    slurm.squeue.prints(fails="slurmctld is away")
    with caplog.at_level(logging.ERROR, "ccagent"):
        assert slurm.sent(slurm.agent()) == [(1, "COMPLETED")]
    assert "held and dependent jobs are missing" in caplog.text


def test_a_row_that_slurmdbd_has_not_finished_waits(slurm: Slurm) -> None:
    agent = slurm.agent()
    slurm.sacct.prints(job(1, "RUNNING", Partition="", JobName="allocation"))
    assert slurm.sent(agent) == []
    slurm.sacct.prints(job(1, "RUNNING"))
    assert slurm.sent(agent) == [(1, "RUNNING")]


def test_resources_are_told_apart_on_demand(slurm: Slurm) -> None:
    slurm.sacct.prints(job(1, AllocTRES="billing=1,cpu=4,gres/gpu:a100=2,gres/gpu=2"))
    (envelope,) = slurm.envelopes(slurm.agent(extras=["gres_detail"]))
    assert envelope.data is not None
    (record,) = envelope.data.attributes.slurm_jobs
    assert record.gres_detail == ["gpu:a100:2"]
    (envelope,) = slurm.envelopes(slurm.agent())
    assert envelope.data is not None
    assert envelope.data.attributes.slurm_jobs[0].gres_detail == []


ON_TWO_NODES = """JobId={} JobName=x
   JobState=RUNNING Reason=None
     Nodes=g[1-2] CPU_IDs=0-1 Mem=1 GRES=gpu:a100:2(IDX:0,3)
     Nodes=c1 CPU_IDs=4 Mem=1 GRES="""


def test_the_cards_of_a_running_job_are_in_gres_detail(slurm: Slurm) -> None:
    # Also where accounting does not count cards: without AccountingStorageTRES=gres/gpu.
    slurm.sacct.prints(job(1, "RUNNING", AllocTRES="cpu=5"), job(2, AllocTRES="gres/gpu=1"),
                       job(3, "RUNNING", AllocTRES="gres/gpu=1"))  # fmt: skip
    slurm.scontrol.shows({"1": ON_TWO_NODES.format(1), "2": ON_TWO_NODES.format(2)})
    (envelope,) = slurm.envelopes(slurm.agent(extras=["gres_detail"]))
    assert envelope.data is not None
    told = {one.job_id: one.gres_detail for one in envelope.data.attributes.slurm_jobs}
    assert told[1] == ["gpu:a100:2(IDX:0,3)", "gpu:a100:2(IDX:0,3)"]
    assert told[2] == ["gpu:1"]  # it has ended
    assert told[3] == ["gpu:1"]  # slurmctld does not know it


def test_without_scontrol_cards_are_counted(slurm: Slurm, caplog: pytest.LogCaptureFixture) -> None:
    slurm.scontrol.path.unlink()
    slurm.sacct.prints(job(3, "RUNNING", AllocTRES="gres/gpu=1"))
    (envelope,) = slurm.envelopes(slurm.agent(extras=["gres_detail"]))
    assert envelope.data is not None
    assert envelope.data.attributes.slurm_jobs[0].gres_detail == ["gpu:1"]
    assert "hwthreads and cards of running jobs are missing" in caplog.text


def events(slurm: Slurm, agent: JobsAgent) -> list[str]:
    """Sample once; give the lines of the events."""
    messages = encode(agent.sample(slurm.node), ["line"], slurm.node)
    agent.commit_sample()
    assert all(message.kind == "events.job" for message in messages)
    return [line for message in messages for line in message.body.decode().splitlines()]


def test_jobs_that_start_and_end_are_events(slurm: Slurm) -> None:
    agent = slurm.agent("line", sub_cluster="main")
    ran = {"Start": "1699999000", "NodeList": "c[1-2]", "Account": "chem", "TimelimitRaw": "60"}
    slurm.sacct.prints(
        job(1, "COMPLETED", **ran, End="1699999100"), job(2, "RUNNING", **ran), job(3, "PENDING")
    )
    (line,) = events(slurm, agent)
    start, _, rest = line.partition(' event="')
    assert start == "job,function=start_job,hostname=master,type=node"
    text, _, moment = rest.rpartition('" ')
    assert moment == "1699999000"
    assert json.loads(text.replace('\\"', '"')) == {
        "jobId": 2, "cluster": "fox", "subCluster": "main", "partition": "normal",
        "user": "alice", "project": "chem", "startTime": 1699999000, "numNodes": 2,
        "walltime": 3600, "resources": [{"hostname": "c1"}, {"hostname": "c2"}],
        "jobState": "running", "submitTime": 1699990000, "shared": "multi_user",
        "metaData": {"jobName": "x"},
    }  # fmt: skip
    assert events(slurm, agent) == []
    slurm.sacct.prints(
        job(2, "TIMEOUT", **ran, End="1699999900"),
        job(3, "CANCELLED by 5", Start="None", End="1699999500"),
        job(4, "FAILED", **ran, End="1699999901"),
    )
    lines = events(slurm, agent)
    assert [line.split(",")[1] for line in lines] == [
        "function=stop_job", "function=start_job", "function=stop_job",
    ]  # fmt: skip
    assert (
        r"{\"jobId\":2,\"cluster\":\"fox\",\"startTime\":1699999000,"
        r'\"stopTime\":1699999900,\"jobState\":\"timeout\"}" 1699999900' in lines[0]
    )
    assert events(slurm, agent) == []


def test_a_cluster_without_jobs_says_so_once(slurm: Slurm) -> None:
    agent = slurm.agent()
    (envelope,) = slurm.envelopes(agent)
    assert envelope.data is not None
    assert envelope.data.attributes.slurm_jobs == []
    assert slurm.envelopes(agent) == []
