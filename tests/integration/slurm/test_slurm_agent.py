"""The agents `jobs` and `cluster` against a real Slurm, its tools, and its running jobs."""

from __future__ import annotations

import faulthandler
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec
import pytest

from ccagent.agents.slurm import values
from ccagent.agents.slurm.cluster import ClusterAgent, ClusterSettings
from ccagent.agents.slurm.jobs.agent import JobsAgent, JobsSettings
from ccagent.agents.slurm.tres import count_gpus, memory_per_node
from ccagent.machine.hostlist import expand, split
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import ClusterEnvelope, JobsEnvelope, SlurmJob
from ccagent.records.line_protocol import decode
from ccagent.records.message import Format
from tests.support.effort import IS_NIGHTLY
from tests.support.running import until
from tests.support.schema import validate
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_fields import FIELDS, parse_moment, seconds
from tests.support.slurm_scenarios import ODD_NAMES, Jobs
from tests.unit.agents.slurm.jobs.test_events import Backend, check_start

NODE = Node(hostname="master", cluster="fox")
WAITING = ("held", "held array", "dependent", "never", "later", "no nodes", "held by root")


def new_agent(slurm: SlurmCluster, wanted: Format = "sonar", **keys: Any) -> JobsAgent:
    programs = slurm.programs
    settings = JobsSettings(
        sacct=str(programs / "sacct"),
        squeue=str(programs / "squeue"),
        scontrol=str(programs / "scontrol"),
        sinfo=str(programs / "sinfo"),
        extras=["gres_detail"],
        **keys,
    )
    return JobsAgent(settings, frozenset({wanted}))


def sampled(agent: JobsAgent) -> list[SlurmJob]:
    jobs: list[SlurmJob] = []
    for envelope in agent.sample(NODE):
        assert isinstance(envelope, JobsEnvelope)
        validate("JobsEnvelope", msgspec.json.encode(envelope))
        assert envelope.data is not None, envelope.errors
        jobs += envelope.data.attributes.slurm_jobs
    agent.commit_sample()
    return jobs


@pytest.fixture(scope="module")
def agent(slurm: SlurmCluster) -> JobsAgent:
    return new_agent(slurm)


@pytest.fixture(scope="module")
def records(slurm_jobs: Jobs, agent: JobsAgent) -> list[SlurmJob]:
    """What rounds tell from when all jobs are in their last states until all have settled."""
    slurm_jobs.wait()
    jobs: list[SlurmJob] = []
    wanted = {
        (slurm_jobs.ids[name], state)
        for name, states in slurm_jobs.expected.items()
        for state in states
    }

    def told() -> set[tuple[int, str]]:
        return {
            (number, job.job_state)
            for job in jobs
            if not job.job_step
            for number in (job.job_id, job.array_job_id, job.het_job_id)
        }

    deadline = time.monotonic() + 120
    while not wanted <= told():
        assert time.monotonic() < deadline, wanted - told()
        jobs += sampled(agent)
        time.sleep(1)
    return jobs


@pytest.fixture(scope="module")
def latest(records: list[SlurmJob]) -> dict[tuple[int, str], SlurmJob]:
    """The last record of each job and step, as a receiver keeps it."""
    return {(job.job_id, job.job_step): job for job in records}


def asked(slurm: SlurmCluster, jobs: Jobs, field: str) -> dict[str, str]:
    """Ask sacct for a single field of all jobs, the latest run of each: raw id to value."""
    ids = ",".join(str(number) for number in jobs.ids.values())
    command = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-anP", "--noconvert", "-j", ids,
               "-o", f"JobIDRaw,{field}"]  # fmt: skip
    lines = [line for line in slurm.run(*command).splitlines() if re.match(r"\d+(\.\w+)?\|", line)]
    return dict(line.split("|", 1) for line in lines)


def test_every_field_is_what_sacct_says(
    slurm: SlurmCluster, slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    # What runs still changes, and the accounting of what was killed last comes late.
    changing = {slurm_jobs.ids[name] for name in ("running", "suspended", "timeout")}

    def compared(
        field: str,
        told: Callable[[SlurmJob], object],
        expected: Callable[[str], object],
        without: set[str],
    ) -> None:
        said = asked(slurm, slurm_jobs, field)
        assert len(said) > 150
        for raw, text in said.items():
            number, _, step = raw.partition(".")
            if int(number) in changing or raw in without:
                continue
            job = latest[int(number), step]
            assert told(job) == expected(text), (raw, field)

    never = {
        raw for raw, text in asked(slurm, slurm_jobs, "NodeList").items() if text == "None assigned"
    }
    assert never

    # Of some that never had a node accounting tells the time of their end as that of a start.
    for raw, text in asked(slurm, slurm_jobs, "Start").items():
        number, _, step = raw.partition(".")
        if int(number) not in changing:
            expected = "" if raw in never else parse_moment(text)
            assert seconds(latest[int(number), step].start_time) == expected, raw
    # The limit of a partition is in accounting once the job runs.
    unknown = {raw for raw, text in asked(slurm, slurm_jobs, "TimelimitRaw").items()
               if text == "Partition_Limit"}  # fmt: skip
    for field, how in FIELDS.items():
        compared(field, *how, without=unknown if field == "TimelimitRaw" else set())


def test_memory_and_cards_are_what_sacct_says(
    slurm: SlurmCluster, slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    nodes = asked(slurm, slurm_jobs, "ReqNodes")
    resized = str(slurm_jobs.ids["resized"])
    for raw, text in asked(slurm, slurm_jobs, "ReqMem").items():
        if "." in raw or raw == resized:
            continue  # of a resized job accounting has the memory of all nodes it once had
        expected = values.memory_per_node(text, 1, int(nodes[raw]))
        assert latest[int(raw), ""].requested_memory_per_node == expected, raw
    assert latest[int(resized), ""].requested_memory_per_node == 100 * 1024
    checked = 0
    for raw, text in asked(slurm, slurm_jobs, "AllocTRES").items():
        number, _, step = raw.partition(".")
        if count_gpus(text):
            cards = [one for one in latest[int(number), step].gres_detail if "gpu" in one]
            assert sum(int(one.rpartition(":")[2]) for one in cards) == count_gpus(text), raw
            checked += 1
    assert checked >= 4


def test_every_field_is_what_scontrol_says(
    slurm: SlurmCluster, slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    odd = ("name: ", "comment", "working directory")
    plain = [name for name in slurm_jobs.ids if not name.startswith(odd)]
    checked = 0
    for name in plain:
        number = slurm_jobs.ids[name]
        command = ["env", "SLURM_TIME_FORMAT=%s", "scontrol", "-o", "show", "job", str(number)]
        text = slurm.run(*command)
        for line in text.splitlines():
            said = dict(re.findall(r"(?:^| )([A-Z][A-Za-z/]*)=(\S*)", line))
            job = latest[int(said["JobId"]), ""]
            if name in {"special exit", "resized"}:
                continue  # scontrol tells the state of another run than accounting
            # Slurm may still clean up after one that has ended.
            assert said["JobState"] in {job.job_state, "COMPLETING"}, name
            assert said["UserId"].partition("(")[0] == job.user_name
            assert said["Account"] == job.account
            assert said["Partition"] in {job.partition, *job.partition.split(",")}
            assert said["SubmitTime"] == seconds(job.submit_time), name
            limit = said["TimeLimit"]
            assert job.time_limit == (1 if limit == "UNLIMITED" else values.seconds(limit) + 2)
            assert job.requested_memory_per_node == memory_per_node(
                said["TRES"] if "TRES" in said else said["ReqTRES"]  # since 23.02
            ) or name in {
                "all memory",  # asked for none, has all
                "two nodes", "salloc",
            }, name  # fmt: skip
            code = int(said["ExitCode"].partition(":")[0])
            if job.job_state == "TIMEOUT":
                code = 0  # sacct leaves out what the job returned when it was ended
            # sacct of 22.05 subtracts 128, that of 26.05 does not.
            assert job.exit_code in ({code} if code < 128 else {code, code - 128})
            if job.start_time and job.job_state != "PENDING":
                assert said["StartTime"] == seconds(job.start_time), name
                assert split(said["NodeList"]) == job.nodes
            if "ArrayTaskId" in said and said["ArrayTaskId"].isdecimal():
                assert job.array_job_id == int(said["ArrayJobId"])
                assert job.array_task_id == int(said["ArrayTaskId"])
            if "HetJobId" in said:
                assert job.het_job_id == int(said["HetJobId"])
                assert job.het_job_offset == int(said["HetJobOffset"])
            checked += 1
    assert checked > 40


def test_jobs_that_accounting_does_not_show_are_there(
    slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    assert {latest[slurm_jobs.ids[name], ""].job_state for name in WAITING} == {"PENDING"}


def test_no_name_alters_another_job(
    slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    ids = slurm_jobs.ids
    injected = latest[ids["name: another job"], ""]
    assert injected.job_name == f"x\nJobId={ids['plain']} JobState=FAILED TRES=cpu=77"
    plain = latest[ids["plain"], ""]
    assert (plain.job_name, plain.job_state) == ("plain", "COMPLETED")
    assert "cpu=77" not in plain.allocated_resources
    kept = {name for name in ODD_NAMES if name not in {
        "unicode", "quotes", "not UTF-8", "300 characters", "empty",  # sacct alters these
    }}  # fmt: skip
    for name in kept:
        assert latest[ids[f"name: {name}"], ""].job_name == ODD_NAMES[name]


def test_arrays_het_jobs_and_steps(
    slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob], records: list[SlurmJob]
) -> None:
    array = slurm_jobs.ids["array"]
    tasks = {j.array_task_id for j in latest.values() if j.array_job_id == array}
    assert tasks == {0, 1, 2, 3, 4, 5}
    het = slurm_jobs.ids["het"]
    parts = {(j.het_job_offset, j.job_id) for j in latest.values() if j.het_job_id == het}
    assert parts == {(0, het), (1, het + 1)}
    steps = {j.job_step for j in latest.values() if j.job_id == slurm_jobs.ids["steps"]}
    assert {"", "batch", "extern", "0", "1", "2", "3"} <= steps
    requeued = [j for j in records if (j.job_id, j.job_step) == (slurm_jobs.ids["requeued"], "")]
    assert [j.job_state for j in requeued] == ["REQUEUED", "COMPLETED"]
    resized = [j for j in records if (j.job_id, j.job_step) == (slurm_jobs.ids["resized"], "")]
    assert [j.job_state for j in resized] == ["RESIZING", "COMPLETED"]


def test_memory_and_limits(slurm_jobs: Jobs, latest: dict[tuple[int, str], SlurmJob]) -> None:
    def job(name: str) -> SlurmJob:
        return latest[slurm_jobs.ids[name], ""]

    assert job("memory per cpu").requested_memory_per_node == 2 * 123 * 1024
    assert job("memory per node").requested_memory_per_node == 1500 * 1024
    assert job("unlimited").time_limit == values.INFINITE
    assert job("days").time_limit == (3 * 1440 + 4 * 60 + 6) * 60 + 2
    assert "gres/gpu" in job("gpu").allocated_resources
    assert job("resumed").suspend_time >= 2


EARLY_AND_LATE = """\
srun -n1 python3 -c 'while __import__("time").process_time() < 3: sum(range(100000))'
sleep {pause}
srun -n1 python3 -c 'while __import__("time").process_time() < 1: sum(range(100000))'
"""


def test_steps_that_ended_before_the_window_count_for_their_job(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a short run the window of ten minutes is one of twelve seconds.
    window, pause = (600, 680) if IS_NIGHTLY else (12, 20)
    faulthandler.cancel_dump_traceback_later()  # it ends a test after ten minutes
    monkeypatch.setattr("ccagent.agents.slurm.jobs.agent._OVERLAP", window)
    agent = new_agent(slurm)
    sampled(agent)
    job = slurm.submit("alice", "--wrap=" + EARLY_AND_LATE.replace("{pause}", str(pause)))
    told: list[SlurmJob] = []
    deadline = time.monotonic() + pause + 160
    quiet = 0
    while quiet < 4:  # until accounting has settled
        assert time.monotonic() < deadline
        time.sleep(1)
        found = [one for one in sampled(agent) if one.job_id == job]
        told += found
        is_over = "COMPLETED" in {one.job_state for one in told if not one.job_step}
        quiet = quiet + 1 if is_over and not found else 0
    last = [one for one in told if not one.job_step][-1]
    assert last.job_state == "COMPLETED"
    assert last.sacct is not None
    text = slurm.run("sacct", "-nP", "-j", str(job), "-o", "UserCPU,SystemCPU").splitlines()[0]
    user, system = map(values.seconds, text.split("|"))
    assert (last.sacct.user_cpu, last.sacct.system_cpu) == (user, system)
    assert user + system >= 3
    # It is not sent again when its steps leave the window.
    for _ in range(window):
        time.sleep(1)
        assert [one for one in sampled(agent) if one.job_id == job] == []
    states = [state for state, _ in groupby(one.job_state for one in told if not one.job_step)]
    assert states == list(dict.fromkeys(states)), "no state comes back"


def test_a_requeued_job_waits_again_in_seconds(slurm: SlurmCluster) -> None:
    agent = new_agent(slurm)
    job = slurm.submit("bob", "--wrap=sleep 300")
    slurm.wait_for(job, {"RUNNING"})
    slurm.run("scontrol", "requeuehold", str(job))
    told: list[str] = []
    begun = time.monotonic()
    while told[-1:] != ["PENDING"] or "REQUEUED" not in told:
        assert time.monotonic() < begun + 90, told
        time.sleep(1)
        told += [one.job_state for one in sampled(agent) if (one.job_id, one.job_step) == (job, "")]
    assert told[-2:] == ["REQUEUED", "PENDING"]
    slurm.run("scancel", str(job))


def test_what_has_not_changed_is_not_sent_again(
    slurm_jobs: Jobs, agent: JobsAgent, latest: dict[tuple[int, str], SlurmJob]
) -> None:
    # Its accounting is gathered for a while after the last job has ended.
    late = slurm_jobs.ids["timeout"]
    again = [job for job in sampled(agent) if latest.get((job.job_id, job.job_step)) == job]
    assert {job.job_id for job in again} <= {late}


def test_starts_and_ends_are_events(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    agent = new_agent(slurm, "line")

    def lines() -> list[str]:
        messages = encode(agent.sample(NODE), ["line"], NODE)
        agent.commit_sample()
        return [line for m in messages for line in m.body.decode().splitlines()]

    running: list[str] = []
    deadline = time.monotonic() + 60
    while not running:  # until accounting has settled
        assert time.monotonic() < deadline
        time.sleep(0.5)
        running += [line for line in lines() if f'jobId\\":{slurm_jobs.ids["running"]},' in line]
    assert len(running) == 1
    assert running[0].startswith("job,function=start_job,hostname=master,type=node event=")
    value = decode(running[0], "s").value
    assert isinstance(value, str)
    start = json.loads(value)
    check_start(start)
    (resource,) = start["resources"]
    assert len(resource["hwthreads"]) == start["numHwthreads"] == 2
    assert start["metaData"]["slurmInfo"].startswith(f"JobId={slurm_jobs.ids['running']} ")
    job = slurm.submit("alice", "--wrap=sleep 1")
    slurm.wait_for(job)
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < 2:  # until accounting has settled
        assert time.monotonic() < deadline
        time.sleep(0.5)
        found += [line for line in lines() if f'jobId\\":{job},' in line]
    assert [line.split(",")[1] for line in found] == ["function=start_job", "function=stop_job"]
    assert '"completed\\"' in found[1].replace("\\\\", "\\")


def test_the_backends_list_becomes_that_of_slurm(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    agent = new_agent(slurm, "line")
    backend = Backend()

    def look() -> None:
        backend.take_all(encode(agent.sample(NODE), ["line"], NODE))
        agent.commit_sample()

    def is_listed(job: int, state: str) -> bool:
        return state in {told for (number, _), told in backend.states.items() if number == job}

    def wait_for(*wanted: tuple[int, str]) -> None:
        deadline = time.monotonic() + 90
        while not all(is_listed(*one) for one in wanted):
            assert time.monotonic() < deadline, (wanted, backend.states)
            time.sleep(1)
            look()

    look()
    requeued, resized = (slurm.submit("bob", f"-N{n}", "--wrap=sleep 300") for n in (1, 2))
    plain = slurm.submit("alice", "--wrap=sleep 1")
    failed = slurm.submit("alice", "--wrap=exit 3")
    held = slurm.submit("bob", "--hold", "--wrap=true")
    slurm.run("scancel", str(held))
    wait_for((requeued, "running"), (resized, "running"))
    slurm.run("scontrol", "requeuehold", str(requeued))
    slurm.run("scontrol", "update", f"JobId={resized}", "NumNodes=1")
    wait_for((plain, "completed"), (failed, "failed"), (requeued, "cancelled"))
    assert is_listed(resized, "running")
    slurm.run("scancel", str(resized), str(requeued))
    wait_for((resized, "cancelled"))
    own = [str(job) for job in (requeued, resized, plain, failed)]
    assert not any(job in text for job in own for text in backend.refused)
    assert not any(number == held for number, _ in backend.states)

    def is_that_of_slurm() -> bool:  # jobs of other tests may just have ended
        look()
        running = slurm.run("squeue", "-h", "--states=RUNNING,SUSPENDED", "-o", "%A").split()
        listed = {number for (number, _), told in backend.states.items() if told == "running"}
        return listed == set(map(int, running))

    until(is_that_of_slurm)


def test_the_cluster_is_what_sinfo_shows(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    settings = ClusterSettings(sinfo=str(slurm.programs / "sinfo"))
    (envelope,) = ClusterAgent(settings, frozenset({"sonar"})).sample(NODE)
    assert isinstance(envelope, ClusterEnvelope)
    validate("ClusterEnvelope", msgspec.json.encode(envelope))
    assert envelope.data is not None
    attributes = envelope.data.attributes
    shown: dict[str, set[str]] = {}
    for line in slurm.run("sinfo", "-ahN", "-o", "%R %N").splitlines():
        partition, name = line.split()
        shown.setdefault(partition, set()).add(name)
    told = {
        one.name: {host for ranges in one.nodes for host in expand(ranges)}
        for one in attributes.partitions
    }
    assert {name: hosts for name, hosts in told.items() if hosts} == shown
    assert set().union(*shown.values()) == {
        host for one in attributes.nodes for ranges in one.names for host in expand(ranges)
    }
    assert any({"DOWN", "NOT_RESPONDING"} & set(one.states) for one in attributes.nodes)


def test_the_state_of_nodes_is_an_event(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    programs = slurm.programs
    settings = ClusterSettings(sinfo=str(programs / "sinfo"), squeue=str(programs / "squeue"))
    agent = ClusterAgent(settings, frozenset({"line"}))
    told: dict[str, Any] = {}

    def is_that_of_sinfo() -> bool:  # jobs of other tests may just have ended
        (message,) = encode(agent.sample(NODE), ["line"], NODE)
        text = message.body.decode().partition(' event="')[2].rpartition('" ')[0]
        told.update({one["hostname"]: one for one in json.loads(text.replace(r"\"", '"'))["nodes"]})
        shown = slurm.run("sinfo", "-ahN", "-O", "NodeList:|,CPUsState:|").splitlines()
        expected = {line.split("|")[0]: int(line.split("|")[1].split("/")[0]) for line in shown}
        return {host: one["cpusAllocated"] for host, one in told.items()} == expected

    until(is_that_of_sinfo)
    where = slurm.run("squeue", "-hj", str(slurm_jobs.ids["running"]), "-o", "%N")
    (place,) = expand(where.strip())
    assert told[place]["jobsRunning"] >= 1
    assert told[place]["states"][0] in {"mixed", "allocated"}
    assert any(one["states"] == ["down"] for one in told.values())


def jobs_sampled(slurm: SlurmCluster) -> dict[int, Any]:
    """What `ccagent sample` sees of jobs inside the cluster."""
    command = slurm.enter(sys.executable, "-m", "ccagent", "sample", "--once")
    output = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    envelope = validate("SampleEnvelope", output)
    return {job["job"]: job for job in envelope["data"]["attributes"]["jobs"]}


def assert_is_the_users_work(job: Any) -> None:
    """Two tasks that sleep, and nothing of Slurm's own."""
    assert (job["user"], job["epoch"]) == ("alice", 0)
    commands = [process["cmd"] for process in job["processes"]]
    assert commands.count("sleep") == 2, json.dumps(job)
    assert "slurmstepd" not in commands


def test_processes_of_a_running_job_carry_its_id(slurm: SlurmCluster, slurm_jobs: Jobs) -> None:
    slurm_jobs.wait("running")
    number = slurm_jobs.ids["running"]
    until(lambda: str(jobs_sampled(slurm).get(number)).count("'sleep'") == 2)
    assert_is_the_users_work(jobs_sampled(slurm)[number])


@pytest.mark.usefixtures("slurm")  # where this one can run, so can another
def test_without_cgroups_ancestry_tells_the_job() -> None:
    with SlurmCluster("linuxproc") as cluster:
        number = cluster.submit("alice", "-n2", "--wrap=srun -n2 sleep 600")
        cluster.wait_for(number, {"RUNNING"})
        until(lambda: str(jobs_sampled(cluster).get(number)).count("'sleep'") == 2)
        assert_is_the_users_work(jobs_sampled(cluster)[number])


@pytest.mark.parametrize(
    ("command", "tools", "kind"),
    [
        ("jobs", ("sacct", "squeue"), "JobsEnvelope"),
        ("cluster", ("sinfo", "squeue"), "ClusterEnvelope"),
    ],
)
def test_the_commands(
    slurm: SlurmCluster, records: list[SlurmJob], command: str, tools: tuple[str, str], kind: str
) -> None:
    keys = (option for tool in tools for option in ("--set", f"{tool}={slurm.programs / tool}"))
    result = subprocess.run(
        [sys.executable, "-m", "ccagent", command, "--once", "--cluster", "fox", *keys],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    envelopes = [validate(kind, line)["data"]["attributes"] for line in lines]
    if command == "jobs":
        told = {job["job_id"] for each in envelopes for job in each["slurm_jobs"]}
        assert told >= {record.job_id for record in records}
    else:
        assert envelopes[0]["partitions"]
