"""The process source `bpf`: the records of `procfs`, and what ended processes used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sonar.jobs.ended import EndedDelta, EndedDeltas
from ccagent.machine.bpf.process_records import EndedKey
from ccagent.machine.procfs.process_files import Io
from ccagent.records.encoding import encode
from ccagent.records.points import Point
from tests.support.kernel_tree import PinnedNode
from tests.support.schema import validate
from tests.support.tree import TreeNode

JOB = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
V1 = "3:cpuacct:/slurm/uid_1001/job_{}/step_0\n1:memory:/slurm/uid_1001/job_{}/step_0\n0::/\n"
GONE = "3:cpuacct:/\n1:memory:/\n0::/\n"


@pytest.fixture
def node(tmp_path: Path) -> PinnedNode:
    return PinnedNode(tmp_path)


def make(**keys: Any) -> SampleAgent:
    return SampleAgent(SampleSettings(**keys), frozenset({"sonar"}))


def sample(agent: SampleAgent, node: TreeNode) -> dict[str, Any]:
    """One sample's attributes, validated; the pinned files are as new as /proc."""
    if isinstance(node, PinnedNode):
        node.pin()
    (message,) = encode(agent.sample(node), "sonar", node)
    attributes: dict[str, Any] = validate("SampleEnvelope", message.body)["data"]["attributes"]
    return attributes


def of_jobs(attributes: dict[str, Any]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    jobs = attributes.get("jobs", [])
    return {(job["job"], job["user"]): job["processes"] for job in jobs}


def by_pid(attributes: dict[str, Any]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    return {key: sorted(group, key=_pid) for key, group in of_jobs(attributes).items()}


def _pid(process: dict[str, Any]) -> int:
    return int(process["pid"])


def of_job(number: int, command: bytes = b"sh", uid: int = 1001) -> EndedKey:
    return EndedKey(0, 0, number, 0, uid, 0, command)


def outside(cgroup: int, group: int, command: bytes = b"sh", uid: int = 1001) -> EndedKey:
    return EndedKey(cgroup, cgroup, 0, group, uid, 0, command)


PROCESS = st.fixed_dictionaries({
    "command": st.sampled_from(["sleep", "python3", "a) b(", "kworker/0:1", b"\xff\xfe"]),
    "ppid": st.sampled_from([0, 1, 2, 100, 101]),
    "group": st.sampled_from([100, 101, 102]),
    "uid": st.sampled_from([0, 1001, 1002, 4711]),
    "utime": st.integers(0, 10**6),
    "stime": st.integers(0, 10**6),
    "children": st.integers(0, 10**6),
    "threads": st.integers(1, 500),
    "state": st.sampled_from("RSDZTI"),
    "flags": st.sampled_from([0, 0x200000]),
    "cgroup": st.sampled_from(["0::/\n", "0::/user.slice\n", JOB.format(7), V1.format(8, 8)]),
    "statm": st.sampled_from(["300 250 50 1 0 200 0\n", "9 7 7 1 0 3 0\n"]),
    "io": st.sampled_from([
        "rchar: 1025\nwchar: 1024\ncancelled_write_bytes: 1\n",
        "rchar: 0\nwchar: 99999999999\ncancelled_write_bytes: 0\n",
    ]),
})  # fmt: skip


@pytest.mark.slow
@given(tables=st.lists(st.dictionaries(st.integers(100, 106), PROCESS), min_size=2, max_size=4))
def test_it_gives_the_records_that_procfs_gives(
    tmp_path_factory: pytest.TempPathFactory, tables: list[dict[int, dict[str, Any]]]
) -> None:
    node = PinnedNode(tmp_path_factory.mktemp("node"))
    agents = [make(source="bpf"), make(source="procfs")]
    born: dict[int, dict[str, Any]] = {}
    for table in tables:
        for pid in set(node.tasks) - set(table):
            node.end(pid)
            del born[pid]
        for pid, keys in table.items():
            first = born.setdefault(pid, keys | {"utime": 0, "stime": 0})
            # CPU time never gets less. Owner and cgroup seldom change: procfs is late then.
            for name in ("utime", "stime"):
                first[name] += keys[name]
                keys[name] = first[name]
            keys |= {name: first[name] for name in ("uid", "cgroup", "flags")}
            if keys["flags"]:
                keys["statm"] = "0 0 0 0 0 0 0\n"  # a kernel thread has no memory of its own
            node.process(pid, **keys)
        of_bpf, of_procfs = (sample(agent, node) for agent in agents)
        assert by_pid(of_bpf) == by_pid(of_procfs)
        node.still.passed += 30


def test_the_source_is_chosen_where_it_is_pinned(node: PinnedNode, tmp_path: Path) -> None:
    for directory, source in ((None, "bpf"), (tmp_path / "other", "procfs")):
        machine = node if directory is None else TreeNode(directory)
        agent = make(extras=["attrs"])
        (message,) = encode(agent.sample(machine), "sonar", machine)
        attributes = validate("SampleEnvelope", message.body)["meta"]["attrs"]
        assert {"key": "source", "value": source} in attributes


def test_a_zombie_stays_in_its_job(node: PinnedNode) -> None:
    # Version 1 tells that processes which have exited are in the root.
    for source in ("bpf", "procfs"):
        agent = make(source=source)
        node.process(42, cgroup=V1.format(7, 7))
        sample(agent, node)
        node.process(42, cgroup=V1.format(7, 7), state="Z")
        node.write("42/cgroup", GONE)
        for _ in range(3):
            ((job, (process,)),) = of_jobs(sample(agent, node)).items()
            assert (job, process["cmd"]) == ((7, "ada"), "sleep <defunct>"), source


def test_a_process_that_exits_meanwhile_is_where_others_of_its_cgroup_are(
    node: PinnedNode,
) -> None:
    agent = make()
    node.process(42, cgroup=V1.format(7, 7))
    sample(agent, node)
    node.process(43, cgroup=V1.format(7, 7))
    node.write("43/cgroup", GONE)
    node.process(44, cgroup=V1.format(7, 7))
    (path,) = (node.path / "proc/44").glob("cgroup")
    path.unlink()
    jobs = of_jobs(sample(agent, node))
    assert {key: {p["pid"] for p in group} for key, group in jobs.items()} == {
        (7, "ada"): {42, 43, 44}
    }


def test_a_hidden_process_is_in_the_job_whose_cgroup_has_its_id(node: PinnedNode) -> None:
    # hidepid=2: the iterator tells of it, /proc doesn't.
    step = node.path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0"
    step.mkdir(parents=True)
    node.process(42)
    number = step.stat().st_ino
    node.tasks[42] = node.tasks[42]._replace(cgroup=number, cpuacct=1, memory=1)
    (node.path / "proc/42/cgroup").unlink()
    assert [*of_jobs(sample(make(), node))] == [(7, "ada")]


def test_what_began_and_ended_between_two_samples_is_a_record_of_its_job(
    node: PinnedNode,
) -> None:
    agent = make()
    node.process(42, cgroup=JOB.format(7), utime=5)
    node.has_ended(of_job(7), processes=1000, runtime=50)  # before anybody looked
    sample(agent, node)
    node.still.passed += 30
    node.has_ended(of_job(7), processes=12, runtime=1.5)
    node.has_ended(of_job(7, b"tar"), processes=1, runtime=3)
    node.has_ended(of_job(8), processes=2, runtime=0.003)
    jobs = of_jobs(sample(agent, node))

    assert [*jobs] == [(7, "ada"), (8, "ada")]
    alive, shell, tar = jobs[7, "ada"]
    assert alive["pid"] == 42
    pid = shell.pop("pid")
    assert shell == {"cmd": "sh <ended>", "ppid": 1, "cpu_util": 5.0, "rolledup": 11}
    assert (tar["cmd"], tar["cpu_util"], tar.get("rolledup")) == ("tar <ended>", 10.0, None)
    assert len({42, pid, tar["pid"]}) == 3
    assert min(pid, tar["pid"]) > 32768
    assert jobs[8, "ada"][0]["cpu_util"] == 0.01

    node.still.passed += 30
    assert [len(group) for group in of_jobs(sample(agent, node)).values()] == [1]


def test_what_storage_was_asked_for_replaces_what_calls_passed(node: PinnedNode) -> None:
    calls = "rchar: 9000\nwchar: 8000\ncancelled_write_bytes: 0\n"
    node.process(42, io=calls, storage=Io(4096, 2048, 0))
    found = {
        each: of_jobs(sample(make(process_io=each), node))[42, "ada"][0]
        for each in ("calls", "storage")
    }
    assert [found["calls"][name] for name in ("data_read", "data_written")] == [9, 8]
    assert [found["storage"][name] for name in ("data_read", "data_written")] == [4, 2]


def test_a_rolled_up_sample_keeps_them_apart(node: PinnedNode) -> None:
    agent = make(rollup=True)
    for pid in (42, 43):
        node.process(pid, cgroup=JOB.format(7), command="sh")
    sample(agent, node)
    node.still.passed += 10
    node.has_ended(of_job(7), processes=5, runtime=1)
    group = of_jobs(sample(agent, node))[7, "ada"]
    assert sorted((p["cmd"], p["rolledup"]) for p in group) == [("sh", 1), ("sh <ended>", 4)]


def test_what_was_told_while_it_was_alive_is_not_told_again(node: PinnedNode) -> None:
    agent = make()
    node.process(42, cgroup=JOB.format(7), utime=300)
    sample(agent, node)
    node.still.passed += 10
    node.process(42, cgroup=JOB.format(7), utime=500)
    ((alive,),) = of_jobs(sample(agent, node)).values()
    assert alive["cpu_util"] == 20.0

    # It used 0.7 s more. The kernel tells of it later than the process is gone.
    node.still.passed += 10
    node.end(42)
    assert of_jobs(sample(agent, node)) == {}
    node.still.passed += 10
    node.has_ended(of_job(7, b"sleep"), processes=1, runtime=5.7)
    ((ended,),) = of_jobs(sample(agent, node)).values()
    assert ended["cpu_util"] == 7.0


def test_outside_of_jobs_they_belong_to_their_process_group(node: PinnedNode) -> None:
    agent = make()
    node.process(42)
    sample(agent, node)
    node.still.passed += 10
    cgroup = node.cgroup("0::/user.slice\n")
    node.has_ended(outside(cgroup, 42), processes=2, runtime=1)
    node.has_ended(outside(cgroup, 99), processes=3, runtime=0.5)
    jobs = of_jobs(sample(agent, node))
    assert {key: [p["cmd"] for p in group] for key, group in jobs.items()} == {
        (42, "ada"): ["sleep", "sh <ended>"],
        (99, "ada"): ["sh <ended>"],
    }


def test_what_short_processes_used_is_not_lost_however_little_each_did(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    node.still.passed += 10
    # Less than a clock tick in each group; and some that the kernel has without their group.
    for group in range(200, 300):
        node.has_ended(outside(1, group), processes=1, runtime=0.009)
    node.has_ended(outside(1, 0), processes=500, runtime=0.1)
    node.has_ended(outside(2, 0, b"ls"), processes=1, runtime=0.002)
    node.has_ended(outside(2, 0, b"ls", uid=1002), processes=1, runtime=0.003)
    attributes = sample(agent, node)
    told = {
        key: [(p["cmd"], p["cpu_util"], p.get("rolledup", 0)) for p in group]
        for key, group in of_jobs(attributes).items()
    }
    assert told == {
        (0, "ada"): [("ls <ended>", 0.02, 0), ("sh <ended>", 10.0, 599)],
        (0, "bob"): [("ls <ended>", 0.03, 0)],
    }
    assert "errors" not in attributes


def test_a_short_process_that_was_sent_alive_is_not_sent_twice(node: PinnedNode) -> None:
    agent = make()
    node.process(42, group=40)
    sample(agent, node)
    # It used 50 ms while it lived, and 20 ms more; its group had no leader.
    node.process(42, group=40, utime=5)
    node.still.passed += 10
    ((alive,),) = of_jobs(sample(agent, node)).values()
    assert alive["cpu_util"] == 0.5
    node.end(42)
    node.still.passed += 10
    node.has_ended(outside(1, 0, b"sleep"), processes=1, runtime=0.07)
    ((ended,),) = of_jobs(sample(agent, node)).values()
    assert ended["cpu_util"] == 0.2


def test_who_is_not_wanted_alive_is_not_wanted_ended(node: PinnedNode) -> None:
    agent = make(exclude_users=["bob"], exclude_commands=["cc1"], exclude_system_jobs=True)
    sample(agent, node)
    node.still.passed += 10
    for key in (of_job(7, uid=1002), of_job(7, b"cc1plus"), of_job(7, uid=0), of_job(7, b"ld")):
        node.has_ended(key, processes=1, runtime=1)
    ((ended,),) = of_jobs(sample(agent, node)).values()
    assert ended["cmd"] == "ld <ended>"


def test_many_names_make_few_records(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    node.still.passed += 10
    for number in range(2000):
        node.has_ended(of_job(7, b"%d" % number), processes=1, runtime=0.001 + number / 1e6)
    ((group),) = of_jobs(sample(agent, node)).values()
    assert len(group) == 51
    (others,) = [process for process in group if process["cmd"] == "_others_ <ended>"]
    assert others["rolledup"] == 2000 - 50 - 1
    assert sum(process["cpu_util"] for process in group) == pytest.approx(39.99, abs=0.05)


def test_of_many_process_groups_those_that_used_most_have_records(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    node.still.passed += 10
    for number in range(1, 1101):
        node.has_ended(outside(1, number), processes=1, runtime=0.01 + number / 1000)
    attributes = sample(agent, node)
    jobs = of_jobs(attributes)
    assert {job for job, _ in jobs} == {0, *range(101, 1101)}
    (rest,) = jobs[0, "ada"]
    assert rest["rolledup"] == 99
    assert rest["cpu_util"] == pytest.approx(100 * 0.01 * 100 / 10 + 5050 / 100, abs=0.01)
    assert "errors" not in attributes


@pytest.mark.slow
def test_of_many_users_those_that_used_most_have_records(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    node.still.passed += 10
    for uid in range(100_000, 101_003):
        node.has_ended(outside(1, 0, uid=uid), processes=1, runtime=0.001 + uid / 1e9)
    attributes = sample(agent, node)
    assert len(of_jobs(attributes)) == 1000
    (error,) = attributes["errors"]
    assert "are omitted for 3 users" in error["detail"]


@pytest.mark.slow
def test_what_is_known_of_entries_is_bounded(node: PinnedNode) -> None:
    growth = EndedDeltas(node, "run/ccagent-kernel/ended")
    for start in range(0, 60_000, 15_000):
        node.ended.clear()
        for number in range(start, start + 15_000):
            node.has_ended(outside(1, number + 1), processes=1, runtime=0.001)
        node.still.passed += 1
        node.pin()
        assert growth.read([]).keys() == (node.ended.keys() if start else set())
    # Those of the last reading are known: only what they do from now on is new.
    node.still.passed += 1
    node.has_ended(outside(1, 60_000), processes=2, runtime=1)
    node.pin()
    assert growth.read([]) == {outside(1, 60_000): EndedDelta(2, 10**9)}
    assert len(growth._known) < 16_384 * 3 // 2


def test_an_entry_that_the_kernel_forgot_begins_anew(node: PinnedNode) -> None:
    agent = make()
    node.has_ended(of_job(7), processes=10, runtime=10)
    sample(agent, node)
    node.still.passed += 10
    del node.ended[of_job(7)]
    node.has_ended(of_job(7), processes=1, runtime=2)
    ((ended,),) = of_jobs(sample(agent, node)).values()
    assert (ended["cpu_util"], ended.get("rolledup")) == (20.0, None)


def test_lost_cpu_time_of_ended_processes_is_reported_once(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    node.count(3)
    assert "errors" not in sample(agent, node)
    (error,) = sample(agent, node)["errors"]
    assert "the CPU time of 3 ended processes was lost" in error["detail"]
    assert "errors" not in sample(agent, node)
    node.count(2)
    sample(agent, node)
    assert "CPU time of 2 ended" in sample(agent, node)["errors"][0]["detail"]


def test_what_is_in_the_total_first_and_told_apart_later_is_no_error(node: PinnedNode) -> None:
    agent = make()
    sample(agent, node)
    for _ in range(3):
        # The kernel had added to the total, but not yet to the entry.
        node.still.passed += 10
        node.count(1)
        assert "errors" not in sample(agent, node)
        node.still.passed += 10
        node.has_ended(of_job(7), processes=1, runtime=1)
        node.count(-1)
        attributes = sample(agent, node)
        assert "errors" not in attributes
        assert len(of_jobs(attributes)) == 1


def test_programs_that_are_loaded_anew_count_from_zero(node: PinnedNode) -> None:
    agent = make()
    node.has_ended(of_job(7), processes=10, runtime=10)
    sample(agent, node)
    node.still.passed += 10
    node.ended.clear()
    node.total = node.total._replace(processes=0)
    node.has_ended(of_job(7), processes=1, runtime=1)
    attributes = sample(agent, node)
    ((ended,),) = of_jobs(attributes).values()
    assert ended["cpu_util"] == 10.0
    assert "errors" not in attributes


def test_they_are_no_processes_of_the_jobs_points(node: PinnedNode) -> None:
    agent = SampleAgent(SampleSettings(), frozenset({"line"}))
    node.process(42, cgroup=JOB.format(7))
    node.pin()
    list(agent.sample(node))
    node.still.passed += 10
    node.has_ended(of_job(7), processes=5, runtime=1)
    node.pin()
    points = {p.name: p.value for p in agent.sample(node) if isinstance(p, Point)}
    assert points["job_processes"] == 1
    assert points["job_cpu_util"] == 10.0


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def of_another_layout(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] += 1
    path.write_bytes(content)


def not_readable(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "cut off"),
    (of_another_layout, "layout 2"),
    (not_readable, "directory"),
    (Path.unlink, "tasks"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_without_the_iterator_proc_is_read(
    node: PinnedNode,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    agent = make(source="bpf")
    node.process(42, utime=100)
    sample(agent, node)
    damage(node.directory / "tasks")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            node.still.passed += 10
            (message,) = encode(agent.sample(node), "sonar", node)
            assert b'"pid":42' in message.body
    (line,) = [record.getMessage() for record in caplog.records]
    assert "source bpf: " in line
    assert reason in line
    assert line.endswith("; processes are read from /proc")


def test_it_is_used_again_when_it_is_back(node: PinnedNode) -> None:
    agent = make(source="auto")
    node.process(42)
    sample(agent, node)
    not_readable(node.directory / "tasks")
    sources: list[str] = []
    for number in range(24):
        if number == 3:
            (node.directory / "tasks").rmdir()
        if number >= 3:
            node.pin()
        node.still.passed += 10
        node.process(42, utime=100 * number)
        if number >= 3:
            node.pin()
        (message,) = encode(agent.sample(node), "sonar", node)
        sources.append(agent.attributes()["source"])
        if number > 1:
            assert b'"cpu_util":10.0' in message.body
    assert sources == ["procfs"] * 20 + ["bpf"] * 4


def test_it_is_found_when_it_is_loaded_after_the_first_sample(node: PinnedNode) -> None:
    pinned = node.directory.rename(node.directory.with_name("elsewhere"))
    agent = make(source="auto")
    node.process(42)
    sources: list[str] = []
    for number in range(23):
        if number == 10:
            pinned.rename(node.directory)
        node.still.passed += 10
        list(agent.sample(node))
        sources.append(agent.attributes()["source"])
    assert sources == ["procfs"] * 20 + ["bpf"] * 3


def test_it_is_said_when_it_is_unloaded_whoever_chose_it(
    node: PinnedNode, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(source="auto")
    node.process(42)
    sample(agent, node)
    node.directory.rename(node.directory.with_name("elsewhere"))
    for _ in range(3):
        node.still.passed += 10
        list(agent.sample(node))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("; processes are read from /proc")


def test_nothing_is_said_where_it_was_never_pinned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = TreeNode(tmp_path)
    node.process(42)
    sample(make(source="auto"), node)
    assert not caplog.records
    sample(make(source="bpf"), node)
    assert len(caplog.records) == 1


@given(content=st.binary(max_size=2000))
def test_no_content_costs_a_sample(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    node = PinnedNode(tmp_path_factory.mktemp("node"))
    node.process(42)
    for name in ("tasks", "ended"):
        (node.directory / name).write_bytes(content)
        agent = make()
        (message,) = encode(agent.sample(node), "sonar", node)
        assert b'"pid":42' in message.body or name == "ended"
        node.pin()


def test_slurms_own_are_in_no_job_alive_or_ended(node: PinnedNode) -> None:
    extern = JOB.format(7).replace("step_0", "step_extern")
    agent = make()
    node.process(40, command="slurmstepd", uid=0, cgroup=extern, utime=300)
    node.process(41, command="sleep", ppid=40, uid=0, cgroup=extern)
    node.process(42, command="solver", cgroup=JOB.format(7))
    sample(agent, node)
    alive = {key: {p["cmd"] for p in each} for key, each in of_jobs(sample(agent, node)).items()}
    assert alive == {
        (7, "ada"): {"solver"}, (40, "root"): {"slurmstepd"}, (41, "root"): {"sleep"},
    }  # fmt: skip

    node.still.passed += 10
    for pid in (40, 41):
        node.end(pid)
    node.has_ended(EndedKey(0, 0, 0, 40, 0, 1, b"slurmstepd"), processes=1, runtime=3.1)
    node.has_ended(EndedKey(0, 0, 0, 0, 0, 1, b"sleep"), processes=1, runtime=0.001)
    ended = of_jobs(sample(agent, node))
    assert {key: [p["cmd"] for p in each] for key, each in ended.items()} == {
        (7, "ada"): ["solver"],
        (40, "root"): ["slurmstepd <ended>"],
        (0, "root"): ["sleep <ended>"],
    }
    # Most of its CPU time was sent while it lived.
    assert ended[40, "root"][0]["cpu_util"] == 1.0
