"""The agent `sample`, on a /proc that the test writes."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.config.configuration import check
from ccagent.config.duration import Duration
from ccagent.records.encoding import encode
from ccagent.records.message import Format
from tests.support.schema import validate
from tests.support.tree import TreeNode


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def make(*, formats: frozenset[str] = frozenset({"sonar"}), **keys: Any) -> SampleAgent:
    return SampleAgent(SampleSettings(**keys), formats)  # type: ignore[arg-type]


def sample(agent: SampleAgent, node: TreeNode) -> dict[str, Any]:
    """One sample's attributes, validated."""
    (message,) = encode(agent.sample(node), "sonar", node)
    attributes: dict[str, Any] = validate("SampleEnvelope", message.body)["data"]["attributes"]
    return attributes


def processes(attributes: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {p["pid"]: p for job in attributes["jobs"] for p in job["processes"]}


def test_the_status_counts_groups_whose_job_is_unknown(node: TreeNode) -> None:
    group = "system.slice/slurmstepd.scope/sEKNKTV3WPV500"
    (node.path / "sys/fs/cgroup" / group).mkdir(parents=True)
    node.process(42, cgroup=f"0::/{group}/step_0/user/task_0\n")
    agent = make()
    assert agent.describe() == {}

    sample(agent, node)

    assert agent.describe() == {"unknown_groups": 1}


def test_a_process_has_the_fields_of_the_specification(node: TreeNode) -> None:
    node.process(42, command="solver", ppid=7, utime=4000, stime=1000, children=160, threads=5)

    (job,) = sample(make(), node)["jobs"]

    assert (job["job"], job["user"], job["epoch"]) == (42, "ada", 1700000000 - 1577836800)
    assert job["processes"] == [
        {
            "resident_memory": 800,
            "virtual_memory": 800,
            "cmd": "solver",
            "pid": 42,
            "ppid": 7,
            "num_threads": 4,
            "cpu_avg": 10.0,
            "cpu_time": 52,
            "data_read": 2,
            "data_written": 1,
            "data_cancelled": 1,
        }
    ]


def test_the_node_itself(node: TreeNode) -> None:
    assert sample(make(), node) == {
        "time": "2023-11-14T22:30:00Z",
        "cluster": "test.org",
        "node": "c1-1",
        "system": {
            "boot": "2023-11-14T22:13:20Z",
            "cpus": [17],
            "disks": [{"name": "sda", "major": 8, "minor": 0, "stats": [1, 2, 3, 4]}],
            "used_memory": 4000,
            "load1": 0.5,
            "load5": 0.25,
            "runnable_entities": 2,
            "existing_entities": 345,
        },
    }


def test_meta_holds_only_what_every_consumer_accepts(node: TreeNode) -> None:
    (message,) = encode(make().sample(node), "sonar", node)
    assert set(msgspec.json.decode(message.body)["meta"]) == {"producer", "version"}


def test_extras_are_sent_on_demand(node: TreeNode, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    agent = make(extras=["attrs", "format"], token_file=str(secret))

    (message,) = encode(agent.sample(node), "sonar", node)

    meta = validate("SampleEnvelope", message.body)["meta"]
    assert meta["token"] == "s3cret"
    assert meta["format"] == 0
    assert {"key": "source", "value": "procfs"} in meta["attrs"]


def test_utilization_is_counted_over_the_real_interval(node: TreeNode) -> None:
    agent = make()
    node.process(42, utime=100)
    sample(agent, node)
    node.still.passed += 30
    node.process(42, utime=1600)

    assert processes(sample(agent, node))[42]["cpu_util"] == 50.0


def test_reaping_children_is_no_utilization(node: TreeNode) -> None:
    agent = make()
    node.process(42)
    sample(agent, node)
    node.still.passed += 30
    node.process(42, children=90000)

    process = processes(sample(agent, node))[42]

    assert "cpu_util" not in process
    assert process["cpu_time"] == 900


def test_utilization_ends_when_the_process_sleeps(node: TreeNode) -> None:
    agent = make()
    for utime, expected in ((0, None), (300, 10.0), (300, None), (600, 10.0)):
        node.process(42, utime=utime)
        assert processes(sample(agent, node))[42].get("cpu_util") == expected
        node.still.passed += 30


def test_what_a_process_used_that_began_since_the_last_sample_belongs_to_this_one(
    node: TreeNode,
) -> None:
    agent = make()
    sample(agent, node)
    node.still.passed += 30
    node.process(42, start=102000, utime=500)

    # 5 of the 30 seconds, though it has run for 10 only: the sum over samples is what was used.
    assert processes(sample(agent, node))[42]["cpu_util"] == 16.667


def test_prepare_gives_the_first_sample_its_utilization(node: TreeNode) -> None:
    agent = make()
    node.process(42, utime=100)
    node.clock.sleep(agent.prepare(node))
    node.process(42, utime=105)

    assert processes(sample(agent, node))[42]["cpu_util"] == 50.0


def test_a_reused_pid_is_another_process(node: TreeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without descriptors to keep, only the start time tells them apart.
    monkeypatch.setattr("ccagent.machine.descriptors.raise_limit", lambda: 0)
    agent = make()
    node.process(42, command="first", utime=100)
    sample(agent, node)
    node.still.passed += 30
    node.process(42, command="second", utime=90000, start=102900, uid=1002)

    (job,) = sample(agent, node)["jobs"]

    assert job["user"] == "bob"
    assert job["processes"][0]["cmd"] == "second"
    assert job["processes"][0]["cpu_util"] == 3000.0


def test_samples_are_equal_with_and_without_kept_descriptors(
    node: TreeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, opened = make(), make()
    for pid in range(40, 50):
        node.process(pid, utime=pid)
    kept.prepare(node)
    monkeypatch.setattr("ccagent.machine.descriptors.raise_limit", lambda: 4)
    opened.prepare(node)
    for step in range(5):
        node.still.passed += 10
        node.process(44, utime=44 + step, statm="300 251 50 1 0 210 0\n")
        assert sample(kept, node) == sample(opened, node)


def test_slurm_jobs_have_epoch_zero_and_are_grouped_by_user_without_slurmstepd(
    node: TreeNode,
) -> None:
    cgroup = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
    node.process(41, uid=0, command="slurmstepd", cgroup=cgroup)
    node.process(42, cgroup=cgroup)
    node.process(43, cgroup=cgroup, group=42)
    node.process(44, cgroup=cgroup, uid=1002)

    jobs = sample(make(), node)["jobs"]

    assert {(j["job"], j["user"], j["epoch"], len(j["processes"])) for j in jobs} == {
        (41, "root", 1700000000 - 1577836800, 1),
        (7, "ada", 0, 2),
        (7, "bob", 0, 1),
    }


def test_the_job_may_be_the_process_group_even_inside_slurm(node: TreeNode) -> None:
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n")

    (job,) = sample(make(jobs_by_process_group=True), node)["jobs"]

    assert job["job"] == 42
    assert job["epoch"]


def test_a_process_moved_into_a_job_right_after_its_start_is_found_there(node: TreeNode) -> None:
    agent = make()
    node.process(42)
    sample(agent, node)
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n")

    assert sample(agent, node)["jobs"][0]["job"] == 7


def test_exec_and_setuid_are_noticed(node: TreeNode) -> None:
    agent = make()
    node.process(42, command="login", uid=0)
    for _ in range(3):
        sample(agent, node)
    node.process(42, command="bash", uid=1001)

    assert sample(agent, node)["jobs"][0]["user"] == "ada"


def test_a_silent_change_of_owner_is_noticed_within_twenty_samples(node: TreeNode) -> None:
    agent = make()
    node.process(42, uid=0)
    for _ in range(3):
        sample(agent, node)
    node.owners[42] = 1001

    users = [sample(agent, node)["jobs"][0]["user"] for _ in range(20)]

    assert users[-1] == "ada"


def test_an_unknown_user_is_named_by_number(node: TreeNode) -> None:
    node.process(42, uid=4711)
    assert sample(make(), node)["jobs"][0]["user"] == "_user_4711"


def test_processes_that_vanish_are_left_out_in_silence(node: TreeNode) -> None:
    agent = make()
    node.process(42)
    node.process(43)
    sample(agent, node)
    node.end(42)
    (node.path / "proc" / "44").mkdir()

    attributes = sample(agent, node)

    assert set(processes(attributes)) == {43}
    assert "errors" not in attributes


@pytest.mark.parametrize(
    ("file", "lost"),
    [("statm", {"resident_memory", "virtual_memory"}), ("io", {"data_read", "data_written"})],
)
def test_an_unparsable_file_costs_its_fields_and_leaves_one_error(
    node: TreeNode, file: str, lost: set[str]
) -> None:
    node.process(42, utime=100)
    node.process(43)
    node.write(f"42/{file}", "nonsense")
    agent = make()

    for _ in range(3):
        attributes = sample(agent, node)
        found = processes(attributes)
        assert not lost & set(found[42])
        assert found[42]["cpu_time"] == 1
        assert lost <= set(found[43])
        (error,) = attributes["errors"]
        assert error["detail"].startswith(f"/proc/42/{file}: ")


@pytest.mark.parametrize("file", ["stat", "meminfo", "loadavg", "diskstats"])
def test_an_unparsable_system_file_leaves_one_error_and_the_rest(node: TreeNode, file: str) -> None:
    node.process(42)
    node.write(file, "cpu0 x\nMemTotal: x\n")

    attributes = sample(make(), node)

    assert len(attributes["errors"]) == 1
    assert f"/proc/{file}" in attributes["errors"][0]["detail"]
    assert 42 in processes(attributes)


def test_without_any_proc_a_sample_says_what_is_wrong(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    (tmp_path / "proc").rename(tmp_path / "elsewhere")

    attributes = sample(make(), node)

    assert attributes["errors"][0]["detail"] == "/proc: No such file or directory"


def test_a_sample_of_an_empty_proc_is_blind(
    node: TreeNode, caplog: pytest.LogCaptureFixture
) -> None:
    seeing, agent = make(), make()
    sample(seeing, node)
    assert not seeing.is_blind
    shutil.rmtree(node.path / "proc")
    (node.path / "proc").mkdir()
    (error,) = sample(agent, node)["errors"]
    assert agent.is_blind
    assert error["detail"] == "can't read anything below /proc: is it mounted?"
    assert error["detail"] in caplog.text


@pytest.mark.slow
def test_errors_are_bounded(node: TreeNode) -> None:
    for pid in range(100, 300):
        node.process(pid, statm="?")

    errors = sample(make(), node)["errors"]

    assert len(errors) == 51
    assert errors[-1]["detail"] == "and 150 more errors"


def test_absent_io_is_no_error(node: TreeNode) -> None:
    node.process(42, io=None)

    attributes = sample(make(), node)

    assert "errors" not in attributes
    assert "data_read" not in processes(attributes)[42]


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({}, {1, 42, 43, 44}),
        ({"exclude_system_jobs": True}, {42, 43, 44}),
        ({"exclude_users": ["ada"]}, {1, 44}),
        ({"exclude_commands": ["ba", "init"]}, {43, 44}),
        ({"min_cpu_time": Duration("2s")}, {43}),
        ({"exclude_users": ["bob"], "min_cpu_time": Duration("1s")}, {42, 43}),
    ],
)
def test_filters(node: TreeNode, keys: dict[str, Any], left: set[int]) -> None:
    node.process(1, command="init", ppid=0, uid=0)
    node.process(42, command="bash", utime=100)
    node.process(43, command="solver", utime=200)
    node.process(44, command="ssh", uid=1002)
    agent = make(**keys)

    for _ in range(3):
        assert set(processes(sample(agent, node))) == left


def test_root_inside_a_container_is_no_system_job(node: TreeNode) -> None:
    node.process(30, command="containerd-shim", uid=0)
    node.process(31, command="nginx", ppid=30, uid=0)
    node.write("31/status", "NSpid:\t31\t1\n")
    node.write("31/mountinfo", "")

    found = processes(sample(make(exclude_system_jobs=True), node))

    assert {pid: process["in_container"] for pid, process in found.items()} == {31: True}


def test_the_filters_keep_unwanted_processes_from_being_read(node: TreeNode) -> None:
    node.process(42, statm="unparsable", io="unparsable")
    assert "errors" not in sample(make(exclude_users=["ada"]), node)


def test_a_circle_of_parents_ends(node: TreeNode) -> None:
    node.process(50, ppid=51)
    node.process(51, ppid=50)
    assert set(processes(sample(make(), node))) == {50, 51}


def test_rollup_sums_equal_leaves_and_keeps_the_rest(node: TreeNode) -> None:
    node.process(40, command="mpirun")
    for pid in (41, 42, 43):
        node.process(pid, command="rank", ppid=40, group=40, utime=100, threads=2)
    node.process(44, command="helper", ppid=40, group=40)

    (job,) = sample(make(rollup=True), node)["jobs"]

    kept = {p["cmd"]: p for p in job["processes"]}
    assert set(kept) == {"mpirun", "rank", "helper"}
    assert kept["helper"]["pid"] == 44
    rank = kept["rank"]
    assert (rank["rolledup"], rank["cpu_time"], rank["num_threads"]) == (2, 3, 3)
    assert rank["resident_memory"] == 2400
    assert rank["pid"] > 32768


def test_synthetic_pids_are_distinct_and_stay(node: TreeNode) -> None:
    for parent in (40, 50, 60):
        node.process(parent, command="mpirun")
        for pid in range(parent + 1, parent + 4):
            node.process(pid, command="rank", ppid=parent, group=40)
    agent, other = make(rollup=True), make(rollup=True)

    def synthetic(agent: SampleAgent) -> list[int]:
        return sorted(pid for pid in processes(sample(agent, node)) if pid > 32768)

    first = synthetic(agent)
    assert len(set(first)) == 3
    assert synthetic(agent) == first
    assert synthetic(other) == first
    assert max(first) < 2**31


def test_points_of_slurm_jobs(node: TreeNode) -> None:
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", utime=300)
    node.process(43)
    agent = make(formats=frozenset({"line"}))

    (message,) = encode(agent.sample(node), "line", node)

    lines = message.body.decode().splitlines()
    job = "cluster=test.org,hostname=c1-1,stype=job,stype-id=7,type=node"
    assert f"job_cpu_time,{job} value=3i 1700001000" in lines
    assert not any("stype-id=43" in line for line in lines)
    assert message.topic == "test.org.metrics"


def test_lines_have_the_node_where_metrics_does_not_run(node: TreeNode) -> None:
    (message,) = encode(make(formats=frozenset({"line"})).sample(node), "line", node)
    lines = message.body.decode().splitlines()
    assert lines[0] == "cpu_load,cluster=test.org,hostname=c1-1,type=node value=0.5 1700001000"


@pytest.mark.parametrize(
    ("metrics", "points"),
    [
        ("", "auto"),
        ("[agents.metrics]", "own"),
        ('[agents.metrics]\nreaders = ["cpu", "cgroup-jobs"]', "own"),
        ('[agents.metrics]\nreaders = ["power"]', "all"),
    ],
)
def test_the_configuration_decides_who_owns_metrics(metrics: str, points: str) -> None:
    table = tomllib.loads(
        f"[agents.sample]\n{metrics}\n[sinks.out]\nurl = 'stdout:'\nformat = 'line'\n"
    )
    settings = check(table, "site.toml").agents["sample"]
    assert isinstance(settings, SampleSettings)
    assert settings.points == points


JOB_7 = "../sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def account(node: TreeNode, cpu_time: int) -> None:
    """Write what the control group of job 7 accounts for; us of CPU time."""
    node.write(f"{JOB_7}/cpu.stat", f"usage_usec {cpu_time}\nthrottled_usec 5000\n")
    node.write(f"{JOB_7}/memory.current", "3000000000\n")
    node.write(f"{JOB_7}/memory.stat", "anon 500000000\nfile 2400000000\nshmem 100000000\n")
    node.write(f"{JOB_7}/memory.events", "oom 4\noom_kill 2\n")


def test_points_of_jobs_are_those_of_their_control_groups(node: TreeNode) -> None:
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", utime=300)
    account(node, 1_000_000)
    agent = make(formats=frozenset({"line"}))
    agent.prepare(node)
    node.still.sleep(10)
    account(node, 6_000_000)
    (message,) = encode(agent.sample(node), "line", node)
    values = {
        line.split(",")[0]: line.split(" ")[1].removeprefix("value=")
        for line in message.body.decode().splitlines()
        if "stype-id=7" in line
    }
    assert float(values["job_cpu_util"]) == 50
    assert float(values["job_mem_used"]) == 3
    # Not what its processes have, which count shared pages several times or not at all.
    assert float(values["job_mem_rss"]) == pytest.approx(0.6)
    assert float(values["job_mem_file"]) == pytest.approx(2.4)
    assert float(values["job_oom_kills"].rstrip("i")) == 2
    assert values["job_cpu_time"] == "3i"


@pytest.mark.parametrize("has_cgroup", [True, False])
def test_no_series_comes_from_two_agents(node: TreeNode, *, has_cgroup: bool) -> None:
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", utime=300)
    node.process(43, cgroup="0::/system.slice/slurmstepd.scope/job_8/step_0\n", utime=300)
    settings = MetricsSettings(include=("proc_run", "proc_total"))
    own = SampleSettings().beside({"metrics": settings})
    wanted: frozenset[Format] = frozenset({"line"})
    agents = SampleAgent(own, wanted), MetricsAgent(settings, wanted)
    if has_cgroup:
        account(node, 1_000_000)
    for agent in agents:
        agent.prepare(node)
    node.still.sleep(10)
    if has_cgroup:
        account(node, 6_000_000)
    series = [
        {line.rsplit(b" ", 2)[0] for m in encode(agent.sample(node), "line", node)
         for line in m.body.splitlines()}
        for agent in agents
    ]  # fmt: skip
    assert not series[0] & series[1]
    for metric in ("job_cpu_util", "job_mem_rss"):
        line = f"{metric},cluster=test.org,hostname=c1-1,stype=job,stype-id=%d,type=node"
        assert (line % 7).encode() in series[has_cgroup]
        assert (line % 8).encode() in series[0]


def test_a_job_without_processes_still_has_its_control_group(node: TreeNode) -> None:
    account(node, 0)
    agent = make(formats=frozenset({"line"}))
    (message,) = encode(agent.sample(node), "line", node)
    assert b"job_mem_used,cluster=test.org,hostname=c1-1,stype=job,stype-id=7" in message.body


def test_envelopes_have_control_groups_on_demand(node: TreeNode) -> None:
    node.process(42, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", uid=1001)
    node.process(43, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n", uid=1002)
    account(node, 6_000_000)
    assert ["cgroup" in job for job in sample(make(), node)["jobs"]] == [False, False]
    (message,) = encode(make(extras=["job-cgroups"]).sample(node), "sonar", node)
    jobs = json.loads(message.body)["data"]["attributes"]["jobs"]
    # Once for a job, whichever of its users comes first.
    assert [job["cgroup"] for job in jobs if "cgroup" in job] == [
        {
            "used_memory": 2929687,
            "rss_memory": 585937,
            "anon_memory": 488281,
            "shmem_memory": 97656,
            "file_memory": 2343750,
            "oom_kills": 2,
            "cpu_time": 6000,
            "throttled_time": 5,
        }
    ]


ROLLUP = """55d4f2ce8000-7ffc9d5f6000 ---p 00000000 00:00 0                          [rollup]
Rss:                5000 kB
Pss:                {} kB
Pss_Anon:           1000 kB
"""


def test_shared_pages_of_a_job_are_divided_on_demand(node: TreeNode) -> None:
    step = "0::/system.slice/slurmstepd.scope/job_7/step_0\n"
    for pid, pss in ((42, 1500), (43, 2500)):
        node.process(pid, cgroup=step)
        node.write(f"{pid}/smaps_rollup", ROLLUP.format(pss))
    node.process(44, cgroup=step, state="Z")
    node.process(45)
    node.write("45/smaps_rollup", ROLLUP.format(10**6))
    for wanted in (False, True):
        agent = make(formats=frozenset({"line"}), job_pss=wanted)
        (message,) = encode(agent.sample(node), "line", node)
        values = [
            float(line.split(" ")[1].removeprefix("value="))
            for line in message.body.decode().splitlines()
            if "job_mem_pss" in line
        ]
        assert values == [pytest.approx(0.004096)] * wanted
    agent = make(job_pss=True, extras=["job-cgroups"])
    (message,) = encode(agent.sample(node), "sonar", node)
    jobs = json.loads(message.body)["data"]["attributes"]["jobs"]
    assert [job["cgroup"] for job in jobs if "cgroup" in job] == [{"pss_memory": 4000}]


def test_a_job_with_pages_that_cannot_be_told_has_no_sum(node: TreeNode) -> None:
    for pid, text in ((42, ROLLUP.format(1)), (43, "Pss: much\n"), (44, ROLLUP.format(1))):
        node.process(pid, cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n")
        node.write(f"{pid}/smaps_rollup", text)
    (message,) = encode(make(job_pss=True, extras=["job-cgroups"]).sample(node), "sonar", node)
    attributes = json.loads(message.body)["data"]["attributes"]
    assert ["cgroup" in job for job in attributes["jobs"]] == [False]
    (error,) = attributes["errors"]
    assert error["detail"].startswith("/proc/43/smaps_rollup: no Pss")


def test_what_storage_was_asked_for_replaces_what_calls_passed(node: TreeNode) -> None:
    node.process(
        42,
        io="rchar: 9000\nwchar: 8000\nread_bytes: 4096\nwrite_bytes: 2048\n"
        "cancelled_write_bytes: 1\n",
    )
    found = {
        each: sample(make(process_io=each), node)["jobs"][0]["processes"][0]
        for each in ("calls", "storage")
    }
    assert [found["calls"][name] for name in ("data_read", "data_written")] == [9, 8]
    assert [found["storage"][name] for name in ("data_read", "data_written")] == [4, 2]
    assert found["storage"]["data_cancelled"] == 1


def test_a_clock_set_back_a_little_does_not_change_the_identity_of_jobs(node: TreeNode) -> None:
    agent = make()
    node.process(42)
    before = sample(agent, node)["jobs"][0]["epoch"]
    node.write("stat", "cpu0 1 1 1 1 1 1 1 1\nbtime 1699999999\n")
    assert sample(agent, node)["jobs"][0]["epoch"] == before
    node.write("stat", "cpu0 1 1 1 1 1 1 1 1\nbtime 1600000000\n")
    assert sample(agent, node)["jobs"][0]["epoch"] == 1600000000 - 1577836800


def test_an_epoch_before_2020_is_not_negative(node: TreeNode) -> None:
    node.process(42)
    node.write("stat", "cpu0 1 1 1 1 1 1 1 1\nbtime 10\n")
    assert sample(make(), node)["jobs"][0]["epoch"] == 1


def test_descriptors_are_closed_with_their_processes(node: TreeNode) -> None:
    agent = make(source="procfs")
    agent.prepare(node)
    source = agent._source
    assert isinstance(source, ProcfsSource)
    kept = source._files.descriptors._kept
    for pid in range(100, 150):
        node.process(pid)
    sample(agent, node)
    assert source._files.descriptors._kept == kept + 150
    for pid in range(100, 150):
        node.end(pid)
    sample(agent, node)
    assert source._files.descriptors._kept == kept
    assert not source._entries
    assert not agent._records[False]._known


_FILES = ["42/stat", "42/statm", "42/io", "42/cgroup", "stat", "meminfo", "loadavg", "diskstats"]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(_FILES), st.binary(max_size=200), max_size=8))
def test_whatever_proc_holds_a_valid_envelope_comes_out(
    node: TreeNode, contents: dict[str, bytes]
) -> None:
    node.process(42)
    node.process(43)
    agent = make(rollup=True)
    sample(agent, node)
    for name, content in contents.items():
        node.write(name, content)
    found = processes(sample(agent, node))
    assert 43 in found
    sample(make(), node)


@given(
    st.sampled_from(_FILES),
    st.integers(0, 400),
    st.sampled_from([b"", b"-", b"99999999999999999999999", b"\n", b"\0", b" "]),
)
def test_truncated_and_bent_files_never_raise(
    node: TreeNode, name: str, place: int, bend: bytes
) -> None:
    node.process(42)
    node.process(43)
    node.write("stat", "cpu0 1000 0 500 9 9 100 100 0\nbtime 1700000000\n")
    path = node.path / "proc" / name
    content = path.read_bytes()
    node.write(name, content[:place] + bend + (content[place + 1 :] if bend else b""))
    sample(make(), node)


def test_a_raised_limit_of_descriptors_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from ccagent.machine.descriptors import raise_limit

    limits: list[tuple[int, int]] = []

    def getrlimit(which: int) -> tuple[int, int]:
        return 1024, 4096

    def setrlimit(which: int, new: tuple[int, int]) -> None:
        limits.append(new)

    monkeypatch.setattr("resource.getrlimit", getrlimit)
    monkeypatch.setattr("resource.setrlimit", setrlimit)

    assert raise_limit() == 4096 - 256
    assert limits == [(4096, 4096)]
