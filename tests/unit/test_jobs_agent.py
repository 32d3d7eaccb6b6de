"""The agent `jobs`: what it sends, what it doesn't, and what it remembers."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccagent.agents.slurm import sacct
from ccagent.agents.slurm.jobs import JobsAgent, JobsSettings
from ccagent.clock import Clock
from ccagent.duration import Duration
from ccagent.envelopes import JobsEnvelope
from ccagent.message import Format, encode_each
from ccagent.node import Node
from tests.schema import validate

FAKE = f"""#!{sys.executable}
import json, sys
here = HERE
with open(here + ".arguments", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
spec = json.load(open(here + ".json"))
delimiter = next(a for a in sys.argv if "\\x1f" in a)
delimiter = delimiter[delimiter.index("\\x1f"):][:26]
out = sys.stdout.buffer
for row in spec["rows"]:
    out.write(delimiter.join(row).encode("utf-8", "surrogateescape") + b"\\n")
out.flush()
if spec["fails"]:
    sys.exit(spec["fails"])
"""


class Program:
    """A stand-in for sacct or squeue that prints the rows it is given."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self.path.write_text(FAKE.replace("HERE", repr(str(self.path))))
        self.path.chmod(0o755)
        self.prints()

    def prints(self, *rows: list[str], fails: str = "") -> None:
        spec = {"rows": rows, "fails": fails}
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
        self.clock = StillClock()
        self.node = Node(hostname="master", cluster="fox", clock=self.clock)

    def agent(self, wanted: Format = "sonar", **keys: Any) -> JobsAgent:
        settings = JobsSettings(sacct=str(self.sacct.path), squeue=str(self.squeue.path), **keys)
        return JobsAgent(settings, frozenset({wanted}))

    def envelopes(self, agent: JobsAgent, *, taken: bool = True) -> list[JobsEnvelope]:
        """Sample once; tell the agent that it was taken."""
        found: list[JobsEnvelope] = []
        for envelope in agent.sample(self.node):
            assert isinstance(envelope, JobsEnvelope)
            validate("JobsEnvelope", msgspec.json.encode(envelope))
            found.append(envelope)
        if taken:
            agent.handed_on()
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


def queued(number: int, name: str = "held", state: str = "PENDING") -> list[str]:
    return [str(number), str(number), state, "1699990000", "N/A", "1699993600", "bob", "chem",
            "normal", "1:00:00", "1", "1", "", "0", "(null)", name]  # fmt: skip


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
    assert "damaged; all is sent again" in caplog.text
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
    slurm.squeue.prints(queued(1), queued(2, state="CANCELLED"))
    assert slurm.sent(agent) == [(2, "CANCELLED")]


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
    slurm.sacct.prints(job(1), job("odd"), job(3))
    with caplog.at_level(logging.ERROR, "ccagent"):
        assert slurm.sent(slurm.agent()) == [(1, "COMPLETED"), (3, "COMPLETED")]
    assert "a row is left out: 'odd' is no job id" in caplog.text


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
    slurm.sacct.prints(job(1), job(2), fails="slurmdbd is away")
    data, errors = slurm.envelopes(agent)
    assert data.data is not None
    # The last row could be cut short.
    assert [j.job_id for j in data.data.attributes.slurm_jobs] == [1]
    assert "exit status 1: slurmdbd is away" in errors.errors[0].detail
    slurm.clock.now += 3600
    slurm.sacct.prints(job(1), job(2), job(3))
    assert slurm.sent(agent) == [(2, "COMPLETED"), (3, "COMPLETED")]
    assert f"--starttime=now-{7 * 86400 + 600}seconds" in slurm.sacct.asked()[1]


def test_without_the_queue_accounting_goes_on(
    slurm: Slurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.sacct.prints(job(1))
    slurm.squeue.prints(fails="slurmctld is away")
    with caplog.at_level(logging.ERROR, "ccagent"):
        assert slurm.sent(slurm.agent()) == [(1, "COMPLETED")]
    assert "held and dependent jobs are left out" in caplog.text


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
    assert record.gres_detail == ["gpu:a100:2", "gpu:2"]
    (envelope,) = slurm.envelopes(slurm.agent())
    assert envelope.data is not None
    assert envelope.data.attributes.slurm_jobs[0].gres_detail == []


def events(slurm: Slurm, agent: JobsAgent) -> list[str]:
    """Sample once; give the lines of the events."""
    messages = list(encode_each(agent.sample(slurm.node), ["line"], slurm.node))
    agent.handed_on()
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
        "jobState": "running",
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
