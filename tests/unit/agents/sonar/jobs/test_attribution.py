"""Slurm jobs told by ancestors, where the cgroups name none; and what is nobody's job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sonar.jobs.attribution import EVERY, Containers
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.machine.cgroup.jobs import Step, is_all_root, parse_title
from ccagent.records.encoding import encode
from tests.machines.composed import linuxproc
from tests.support.paths import DATA
from tests.support.recorded import RecordedNode
from tests.support.schema import validate
from tests.support.tree import TreeNode

RECORDED = DATA / "slurm"
ROOT = "0\t0\t0\t0"
SETUID = "1002\t0\t0\t0"
V2 = "0::/system.slice/slurmstepd.scope/job_"
HOST = "22 27 0:21 / /proc rw - proc proc rw\n27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
ALL_USERS = "         0          0 4294967295\n"
ONE_USER = "         0       1001          1\n"
OVERLAY = "402 388 0:61 / / ro,nosuid - overlay overlay ro,lowerdir=/image\n"
SAME_ROOT = "310 140 8:1 / / ro - ext4 /dev/sda1 rw\n311 310 0:44 / /tmp rw - tmpfs tmpfs rw\n"


class CountingNode(TreeNode):
    """Counts the files that are read of each kind."""

    def __init__(self, root: Path) -> None:
        self.reads: list[str] = []
        super().__init__(root)

    def read_single(self, path: str) -> bytes:
        self.reads.append(path)
        return super().read_single(path)

    def of_daemons(self) -> list[str]:
        """The titles and the users that were asked for."""
        return [path for path in self.reads if path.endswith(("/cmdline", "/status"))]


@pytest.fixture
def node(tmp_path: Path) -> CountingNode:
    return CountingNode(tmp_path)


@pytest.fixture
def source(node: CountingNode) -> ProcfsSource:
    return ProcfsSource(node, ProcessSelection())


def daemon(
    node: TreeNode,
    pid: int,
    title: str = "slurmstepd: [13.0]",
    *,
    uid: int = 0,
    users: str = ROOT,
    **keys: Any,
) -> None:
    """A slurmstepd, or what looks like one."""
    node.process(pid, command="slurmstepd", uid=uid, **keys)
    node.write(f"{pid}/cmdline", title + "\0\0\0")
    node.write(f"{pid}/status", f"Name:\tslurmstepd\nUid:\t{users}\nGid:\t{users}\n")


def jobs(source: ProcfsSource | PsutilSource) -> dict[int, int]:
    """The job of each process, by pid, at one reading."""
    return {process.pid: process.job for process in source.read()}


def test_a_process_is_in_the_job_whose_daemon_it_descends_from(
    node: CountingNode, source: ProcfsSource
) -> None:
    daemon(node, 40)
    node.process(41, ppid=40)
    node.process(42, ppid=41)
    node.process(43)

    assert jobs(source) == {40: 0, 41: 13, 42: 13, 43: 0}


def test_the_order_of_pids_does_not_matter(node: CountingNode, source: ProcfsSource) -> None:
    daemon(node, 400)
    node.process(42, ppid=41)
    node.process(41, ppid=400)

    assert jobs(source) == {400: 0, 41: 13, 42: 13}


def test_the_cgroup_is_right_where_the_title_says_otherwise(
    node: CountingNode, source: ProcfsSource
) -> None:
    # As a component of a heterogeneous job, whose environment names the job's first id.
    daemon(node, 40, "slurmstepd: [50.0]")
    node.process(41, ppid=40, cgroup=(RECORDED / "het-component-1.cgroup").read_text())
    node.write("41/environ", "SLURM_JOB_ID=50\0")

    assert jobs(source)[41] == 51
    assert node.of_daemons() == []


class TestWhoIsNotBelieved:
    def test_a_user_who_calls_a_program_slurmstepd(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40, uid=1002, users="1002\t1002\t1002\t1002")
        node.process(41, ppid=40, uid=1002)

        assert jobs(source) == {40: 0, 41: 0}
        assert node.of_daemons() == []

    def test_a_set_user_id_program_under_that_name(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40, users=SETUID)
        node.process(41, ppid=40, uid=1002)

        assert jobs(source) == {40: 0, 41: 0}

    def test_a_program_of_root_with_that_title_and_another_name(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 39)
        daemon(node, 40)
        node.process(40, command="sudo", uid=0)
        node.process(41, ppid=40, uid=1002)

        assert jobs(source)[41] == 0

    def test_a_user_who_imitates_the_daemon_of_another_job_within_a_job(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40, "slurmstepd: [7.0]")
        daemon(node, 41, "slurmstepd: [13.0]", ppid=40, uid=1002, users="1002\t1002\t1002\t1002")
        daemon(node, 42, "slurmstepd: [13.0]", ppid=41, users=SETUID)
        node.process(43, ppid=42, uid=1002)

        assert jobs(source) == {40: 0, 41: 7, 42: 0, 43: 7}

    def test_a_daemon_that_began_after_its_child(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        # The pid of the parent went to a daemon between the reading of the two.
        daemon(node, 40, start=60000)
        node.process(41, ppid=40, start=50000)

        assert jobs(source)[41] == 0

    def test_the_environment(self, node: CountingNode, source: ProcfsSource) -> None:
        daemon(node, 40, "slurmstepd: [7.0]")
        node.process(41, ppid=40)
        node.process(42)
        for pid in (41, 42):
            node.write(f"{pid}/environ", "SLURM_JOB_ID=13\0SLURM_JOBID=13\0")

        assert jobs(source) == {40: 0, 41: 7, 42: 0}


class TestSlurmsOwn:
    """slurmstepd, and root's `sleep` in the step `extern`: no work of the user's."""

    @pytest.mark.parametrize("cgroup", ["0::/\n", f"{V2}13/step_extern/user/task_0\n"])
    def test_the_placeholder_is_in_no_job_and_what_else_is_in_the_step_is(
        self, node: CountingNode, source: ProcfsSource, cgroup: str
    ) -> None:
        daemon(node, 40, "slurmstepd: [13.extern]", cgroup=cgroup)
        node.process(41, ppid=40, uid=0, command="sleep", cgroup=cgroup)
        node.process(42, ppid=40, uid=0, command="sshd", cgroup=cgroup)
        node.process(43, ppid=40, uid=1001, command="sleep", cgroup=cgroup)
        node.process(44, ppid=42, uid=0, command="sleep", cgroup=cgroup)

        assert jobs(source) == {40: 0, 41: 0, 42: 13, 43: 13, 44: 13}

    @pytest.mark.parametrize("cgroup", ["0::/\n", f"{V2}13/step_0/user/task_0\n"])
    def test_roots_own_job_may_sleep(
        self, node: CountingNode, source: ProcfsSource, cgroup: str
    ) -> None:
        daemon(node, 40, "slurmstepd: [13.0]", cgroup=cgroup)
        node.process(41, ppid=40, uid=0, command="sleep", cgroup=cgroup)

        assert jobs(source) == {40: 0, 41: 13}

    def test_a_child_that_the_daemon_has_just_forked_is_work_from_its_exec_on(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40)
        daemon(node, 41, ppid=40)
        assert jobs(source) == {40: 0, 41: 0}
        node.process(41, ppid=40, command="slurm_script")
        assert jobs(source) == {40: 0, 41: 13}

    def test_they_appear_as_process_groups_of_root(self, node: CountingNode) -> None:
        daemon(node, 40, "slurmstepd: [13.extern]", group=38)
        node.process(41, ppid=40, uid=0, command="sleep")
        daemon(node, 42, "slurmstepd: [13.batch]", group=39)
        node.process(43, ppid=42)
        agent = SampleAgent(SampleSettings(), frozenset({"sonar"}))

        (message,) = encode(agent.sample(node), "sonar", node)

        found = validate("SampleEnvelope", message.body)["data"]["attributes"]["jobs"]
        assert {(j["job"], j["user"], bool(j["epoch"])) for j in found} == {
            (13, "ada", False), (38, "root", True), (39, "root", True), (41, "root", True),
        }  # fmt: skip


class TestOverTime:
    def test_who_was_in_a_job_stays_there_when_its_parents_end(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40)
        node.process(41, ppid=40)
        node.process(42, ppid=41)
        jobs(source)
        node.end(40)
        node.end(41)
        node.process(42, ppid=1)
        node.process(43, ppid=42)

        for _ in range(EVERY + 1):
            assert jobs(source) == {42: 13, 43: 13}

    def test_a_pid_that_is_used_again_inherits_nothing(
        self, node: CountingNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Without descriptors to keep, only the start time tells them apart.
        monkeypatch.setattr("ccagent.machine.descriptors.raise_limit", lambda: 0)
        source = ProcfsSource(node, ProcessSelection())
        daemon(node, 40)
        node.process(41, ppid=40)
        jobs(source)
        daemon(node, 40, "slurmstepd: [14.0]", start=60000)
        node.process(41, ppid=1, start=60001)
        node.process(42, ppid=40, start=60002)

        assert jobs(source) == {40: 0, 41: 0, 42: 14}

    def test_the_first_daemon_may_be_seen_before_it_is_one(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        node.process(40, command="slurmd", uid=0)
        assert jobs(source) == {40: 0}
        daemon(node, 40)
        node.process(41, ppid=40)

        assert jobs(source) == {40: 0, 41: 13}

    def test_a_daemon_whose_title_comes_late_is_asked_again(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40, "/usr/sbin/slurmstepd")
        node.process(41, ppid=40)
        assert jobs(source)[41] == 0
        daemon(node, 40)
        node.still.passed += 30

        assert jobs(source)[41] == 13

    def test_a_title_is_read_once(self, node: CountingNode, source: ProcfsSource) -> None:
        daemon(node, 40)
        for pid in range(41, 60):
            node.process(pid, ppid=40)
        for _ in range(2 * EVERY):
            jobs(source)
            node.still.passed += 30

        assert node.of_daemons() == ["proc/40/cmdline", "proc/40/status"]

    def test_an_impostor_is_asked_no_more_than_once_in_a_reading(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        daemon(node, 40, "slurmstepd infinity")
        for pid in range(41, 60):
            node.process(pid, ppid=40)
        jobs(source)

        assert node.of_daemons() == ["proc/40/cmdline"]

    def test_without_slurmstepd_no_other_file_is_read(
        self, node: CountingNode, source: ProcfsSource
    ) -> None:
        node.process(40, command="slurmd", uid=0)
        node.process(41, ppid=40, cgroup=f"{V2}13/step_0\n")
        for _ in range(2 * EVERY):
            jobs(source)

        assert {path.rpartition("/")[2] for path in node.reads} == {"cgroup"}
        assert source._attribution._ancestry is None

    @pytest.mark.parametrize("file", ["cmdline", "status"])
    def test_a_daemon_that_ends_meanwhile_costs_only_the_job(
        self, node: CountingNode, source: ProcfsSource, file: str
    ) -> None:
        daemon(node, 40)
        node.process(41, ppid=40)
        (node.path / "proc/40" / file).unlink()

        assert jobs(source) == {40: 0, 41: 0}
        assert source.errors == []


class TestTitles:
    def test_recorded_ones(self) -> None:
        text = (RECORDED / "proc-linuxproc.txt").read_text()
        lines = re.findall(r"^### .* cmd=\[(.*)\]$", text, re.MULTILINE)

        assert [parse_title(line.encode()) for line in lines] == [
            (89, "extern"), (90, "extern"), (90, "batch"), (89, "batch"), (89, "0"),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("cmdline", "step"),
        [
            (b"slurmstepd: [13.0]", Step(13, "0")),
            (b"slurmstepd: [13.0+1]\0", Step(13, "0")),
            (b"slurmstepd: [4294967295.interactive]  \0", Step(4294967295, "interactive")),
            (b"slurmstepd: [13.0]\0-c\0evil\0", None),
            (b"slurmstepd: [13.0] evil", None),
            (b"\0slurmstepd: [13.0]", None),
            (b"/usr/sbin/slurmstepd\0infinity\0", None),
            (b"slurmstepd: [0.0]", None),
            (b"slurmstepd: [-1.0]", None),
            (b"slurmstepd: [12345678901.0]", None),
            (b"slurmstepd: [13]", None),
            (b"slurmstepd: [13.other]", None),
            (b"", None),
        ],
    )
    def test_forms(self, cmdline: bytes, step: Step | None) -> None:
        assert parse_title(cmdline) == step

    @given(st.binary(max_size=60))
    def test_any_bytes_are_a_step_or_none(self, cmdline: bytes) -> None:
        step = parse_title(b"slurmstepd: [" + cmdline)
        assert step is None or step.job > 0

    @pytest.mark.parametrize("user", range(4))
    def test_each_of_the_four_users_must_be_root(self, user: int) -> None:
        ids = ["0"] * 4
        assert is_all_root(f"Name:\tx\nUid:\t{chr(9).join(ids)}\nGid:\t5\n".encode())
        ids[user] = "1001"
        assert not is_all_root(f"Name:\tx\nUid:\t{chr(9).join(ids)}\nGid:\t5\n".encode())

    def test_a_name_can_not_say_who_it_is(self) -> None:
        # The kernel escapes line breaks in it.
        status = b"Name:\t\\nUid:\t0\t0\t0\t0\nUid:\t1001\t0\t0\t0\n"
        assert not is_all_root(status)


def test_of_the_composed_machine_everybody_is_where_slurm_put_them() -> None:
    found = jobs(ProcfsSource(RecordedNode("linuxproc"), ProcessSelection()))

    assert {pid for pid, job in found.items() if job == 89} == {29760, 29761, 29764, 29777, 29778}
    assert {pid for pid, job in found.items() if job == 90} == {
        29757, 29758, 29759, 29780, 29781,
    }  # fmt: skip
    assert set(found.values()) == {0, 89, 90}
    assert {p.pid for p in linuxproc.impostors()} <= {p for p, job in found.items() if not job}


def is_inside(tmp_path: Path, mounts: str, users: str = ALL_USERS, pids: str = "5") -> bool:
    node = TreeNode(tmp_path)
    for pid, table, of_users, numbers in ((1, HOST, ALL_USERS, "1"), (5, mounts, users, pids)):
        node.write(f"{pid}/mountinfo", table)
        node.write(f"{pid}/uid_map", of_users)
        node.write(f"{pid}/status", f"Name:\tstarter-suid\nNSpid:\t{numbers}\n")
    return Containers(node).is_inside(5)


@pytest.mark.parametrize(
    ("mounts", "users", "pids"),
    [
        pytest.param(OVERLAY, ALL_USERS, "5\t1", id="docker"),
        pytest.param(OVERLAY, ALL_USERS, "5", id="Apptainer with a set-user-ID program"),
        pytest.param(OVERLAY, ONE_USER, "5", id="Charliecloud and enroot"),
        pytest.param(SAME_ROOT, ONE_USER, "5", id="bwrap --bind / /"),
        pytest.param(HOST, ALL_USERS, "5\t1", id="unshare --fork --pid"),
        pytest.param("50 60 8:1 /images/a / rw - ext4 /dev/sda1 rw\n", ALL_USERS, "5", id="bind"),
    ],
)
def test_other_roots_users_and_pids_are_containers(
    tmp_path: Path, mounts: str, users: str, pids: str
) -> None:
    assert is_inside(tmp_path, mounts, users, pids)


@pytest.mark.parametrize(
    ("mounts", "users"),
    [
        pytest.param(HOST, ALL_USERS, id="a program named starter-suid"),
        pytest.param(SAME_ROOT, ALL_USERS, id="a service with PrivateTmp="),
        pytest.param("", ALL_USERS, id="chroot to a directory"),
        pytest.param("22 27 0:21 / / rw - proc proc rw\n", ALL_USERS, id="chroot to a mount"),
        pytest.param(HOST, ONE_USER, id="unshare --user"),
    ],
)
def test_mount_namespaces_alone_are_no_containers(tmp_path: Path, mounts: str, users: str) -> None:
    assert not is_inside(tmp_path, mounts, users)
