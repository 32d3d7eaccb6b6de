"""Which job a control group is of: layouts of all releases, and what users may name."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.jobs import (
    NO_MEMBERSHIP,
    CgroupPath,
    count_unknown,
    find_membership,
    job_directories,
    parse_cgroup,
)
from ccagent.machine.requirements import find_job_groups
from tests.support.paths import DATA
from tests.support.tree import TreeNode

RECORDED = DATA / "slurm"
SCOPE = "sys/fs/cgroup/system.slice/slurmstepd.scope"
SLUID = "s5K1KKYAYG5D00"
"""The example of Slurm's cgroup_v2.html."""

ROOT_IDS = "Uid:\t0\t0\t0\t0\n"


def job_of(path: str) -> int:
    found = parse_cgroup(f"0::{path}\n".encode())
    return 0 if found is None else found.job


def recorded_processes(name: str) -> list[tuple[str, bytes]]:
    """The header and the cgroup lines of each process in a recording."""
    text = (RECORDED / name).read_bytes()
    found: list[tuple[str, bytes]] = []
    for part in text.split(b"### ")[1:]:
        header, _, rest = part.partition(b"\n")
        found.append((header.decode(), rest.partition(b"-- env:")[0]))
    return found


def job_in(cgroup: bytes) -> int:
    found = parse_cgroup(cgroup)
    return 0 if found is None else found.job


def test_every_recorded_process_of_a_v1_job_is_in_it() -> None:
    processes = recorded_processes("proc-cgroup-v1-a.txt")

    assert len(processes) == 8
    assert {job_in(cgroup) for _, cgroup in processes} == {13}


def test_the_cgroup_of_slurmstepd_is_in_the_job_although_nothing_follows_its_id() -> None:
    assert job_in(b"6:freezer:/slurm_c1-1/uid_5002/job_13\n0::/\n") == 13


def test_recorded_v2_processes_are_in_the_job_that_slurm_gave_them() -> None:
    for header, cgroup in recorded_processes("proc-cgroup-v2.txt"):
        inside = re.search(r"slurm_script|srun|/usr/bin/sleep|sleep 1000|\[2\.", header)
        assert job_in(cgroup) == (2 if inside else 0), header


def test_without_proctrack_cgroup_the_cgroup_tells_no_job() -> None:
    assert {job_in(c) for _, c in recorded_processes("proc-linuxproc.txt")} == {0}


def test_a_het_component_has_its_own_raw_id() -> None:
    assert job_in((RECORDED / "het-component-1.cgroup").read_bytes()) == 51


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/slurm/uid_1/job_7/step_0", 7),
        ("/slurm_c1-1/uid_1/job_7/step_batch/task_0", 7),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/system.slice/c1-1_slurmstepd.scope/job_7/step_extern/slurm", 7),
        ("/system.slice/slurmstepd.scope/job_7", 7),
        ("/jobs.slice/jobs-batch.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../../../system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../jobs.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../c1-1_slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../../slurm_c1-1/uid_1/job_7/step_batch", 7),
        (f"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/libpod-{'0f' * 32}", 7),
        ("/../user.slice/user-1.slice/slurmstepd.scope/job_13", 0),
        ("/user.slice/slurmstepd.scope/job_13", 0),
        ("/...../system.slice/slurmstepd.scope/job_13", 0),
        ("/slurmstepd.scope/job_13", 0),
        ("/jobs/slurmstepd.scope/job_13", 0),
        ("/system.slice/slurmstepd.scope/system", 0),
        ("/system.slice/slurmstepd.scope/job_7x/step_0", 0),
        ("/user.slice/user-1.slice/user@1.service/app.slice/slurmstepd.scope/job_13/step_0", 0),
        ("/user.slice/user-1.slice/user@1.service/system.slice/slurmstepd.scope/job_13", 0),
        ("/user.slice/user-1.slice/user@1.service/slurm/uid_5/job_13/step_0", 0),
        ("/docker/" + "a" * 64 + "/slurm/uid_5/job_13", 0),
    ],
)
def test_only_a_path_that_slurm_itself_makes_names_a_job(path: str, job: int) -> None:
    assert job_of(path) == job


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/slurm/uid_1/job_7/step_0", "0"),
        ("/slurm_c1-1/uid_1/job_7/step_extern/task_0", "extern"),
        ("/system.slice/slurmstepd.scope/job_7/step_batch/slurm", "batch"),
        ("/system.slice/slurmstepd.scope/job_7/step_0+1/user/task_0", "0+1"),
        ("/system.slice/slurmstepd.scope/job_7/step_", ""),
        ("/system.slice/slurmstepd.scope/job_7/step_0?/user", ""),
        ("/slurm_c1-1/uid_1/job_7", ""),
    ],
)
def test_the_step_stands_behind_the_job(path: str, step: str) -> None:
    found = parse_cgroup(f"0::{path}\n".encode())
    assert found is not None
    assert (found.job, found.step) == (7, step)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_path_or_none(content: bytes) -> None:
    assert isinstance(parse_cgroup(content), CgroupPath | None)


NAMES = st.one_of(
    st.sampled_from(
        ["slurm", "slurm_c1", "uid_1", "job_13", SLUID, "system.slice", "a-b.slice", "step_0",
         "slurmstepd.scope", "c1_slurmstepd.scope", "user", "slurm", "..x", "user-1.slice"]
    ),
    st.text(string.printable, min_size=1, max_size=30).filter(
        lambda name: "/" not in name and name not in (".", "..")
    ),
)  # fmt: skip
"""Names that a directory can have; the kernel refuses line breaks in those of control groups."""


@given(
    top=st.sampled_from(
        ["/user.slice/user-1.slice/user@1.service", "/system.slice/own.service",
         "/docker/aa", f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0",
         "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "/slurm/uid_1/job_7/step_0"]
    ),
    below=st.lists(NAMES, max_size=6),
)  # fmt: skip
@example(top="/system.slice/own.service", below=["slurmstepd.scope", "slurm"])
def test_nothing_below_a_users_own_group_changes_its_job(top: str, below: list[str]) -> None:
    path = "/".join([top, *below]).replace("\n", "")
    found = parse_cgroup(f"0::{path}\n".encode())
    own = parse_cgroup(f"0::{top}\n".encode())

    # What looks like a Slurm in a place of no known release is reported, and is no job.
    if own is None and found is not None and found.is_other:
        assert (found.job, found.step) == (0, "")
    else:
        assert found == own


class Slurm:
    """The directories and slurmstepd of jobs on a machine with cgroup v2."""

    def __init__(self, root: Path) -> None:
        self.node = TreeNode(root)

    def step(
        self, directory: str, job: int, pid: int, *, uid: int = 0, title: str = "", ids: str = ""
    ) -> None:
        """A step with a slurmstepd."""
        place = self.node.path / directory / "step_batch/slurm"
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(f"{pid}\n")
        self.node.process(pid, command="slurmstepd", uid=uid)
        self.node.write(f"{pid}/cmdline", (title or f"slurmstepd: [{job}.batch]") + "\0\0")
        self.node.write(f"{pid}/status", f"Name:\tslurmstepd\n{ids or ROOT_IDS}")

    def jobs(self) -> dict[str, int]:
        """The job of each directory below the scope that is one of a job."""
        return {each.path: each.job for each in job_directories(self.node, ("memory",))}

    def membership(self, directory: str) -> int:
        path = f"{directory.removeprefix('sys/fs/cgroup')}/step_batch/user/task_0"
        return find_membership(self.node, f"0::{path}\n".encode()).job


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


class TestSluids:
    @pytest.mark.parametrize(
        "scope",
        [SCOPE, "sys/fs/cgroup/jobs.slice/jobs-gpu.slice/c1-1_slurmstepd.scope"],
    )
    def test_the_slurmstepd_inside_tells_the_job(self, slurm: Slurm, scope: str) -> None:
        slurm.step(f"{scope}/{SLUID}", 77, 40)
        slurm.step(f"{scope}/job_78", 78, 41)

        assert slurm.jobs() == {f"{scope}/{SLUID}": 77, f"{scope}/job_78": 78}
        assert slurm.membership(f"{scope}/{SLUID}") == 77

    @pytest.mark.parametrize("suffix", [".batch stepmgr]", ".extern]", ".0]", ".interactive]"])
    def test_each_kind_of_step(self, slurm: Slurm, suffix: str) -> None:
        slurm.step(f"{SCOPE}/{SLUID}", 0, 40, title=f"slurmstepd: [77{suffix}")
        assert slurm.membership(f"{SCOPE}/{SLUID}") == 77

    def test_the_number_stays_until_the_directory_goes(self, slurm: Slurm) -> None:
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40)
        slurm.jobs()
        slurm.node.end(40)
        assert slurm.jobs() == {f"{SCOPE}/{SLUID}": 77}

        (slurm.node.path / SCOPE / SLUID).rename(slurm.node.path / "gone")
        assert slurm.jobs() == {}
        (slurm.node.path / "gone").rename(slurm.node.path / SCOPE / SLUID)
        assert slurm.jobs() == {}

    @pytest.mark.parametrize(
        "keys",
        [
            {"uid": 1001},
            {"ids": "Uid:\t1001\t0\t0\t0\n"},
            {"title": "slurmstepd: [77.batch] evil"},
            {"title": "slurmstepd infinity"},
            {"title": f"slurmstepd: [{SLUID}.batch]"},
        ],
    )
    def test_nobody_but_roots_slurmstepd_is_believed(
        self, slurm: Slurm, keys: dict[str, Any]
    ) -> None:
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40, **keys)

        assert slurm.jobs() == {}
        assert slurm.membership(f"{SCOPE}/{SLUID}") == 0

    def test_a_user_below_its_own_job_is_not_believed(self, slurm: Slurm) -> None:
        task = f"{SCOPE}/{SLUID}/step_batch/user/task_0"
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40)
        slurm.step(f"{task}/system.slice/slurmstepd.scope/job_13", 13, 41)

        assert slurm.jobs() == {f"{SCOPE}/{SLUID}": 77}
        assert slurm.membership(f"{task}/system.slice/slurmstepd.scope/job_13") == 77

    def test_a_scope_of_a_user_has_no_jobs(
        self, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A slice that an administrator has given to a user."""
        scope = "sys/fs/cgroup/own.slice/slurmstepd.scope"
        slurm.step(f"{scope}/job_13", 13, 40)
        owner = slurm.node.owner

        def of_user(path: str) -> int:
            return 1001 if path.startswith(scope) else owner(path)

        monkeypatch.setattr(slurm.node, "owner", of_user)

        with pytest.raises(CcagentError):
            slurm.jobs()
        assert find_membership(
            slurm.node, b"0::/own.slice/slurmstepd.scope/job_13/step_0\n"
        ) == NO_MEMBERSHIP  # fmt: skip

    def test_what_stays_unknown_is_logged_once_and_found_by_the_doctor(
        self, slurm: Slurm, caplog: pytest.LogCaptureFixture
    ) -> None:
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40)
        slurm.step(f"{SCOPE}/neither\x1b", 0, 41)
        slurm.step(f"{SCOPE}/system", 0, 42)
        for _ in range(4):
            slurm.jobs()
            slurm.node.still.passed += 6

        assert [record.getMessage() for record in caplog.records] == [
            "the Slurm job of /"
            + SCOPE
            + "/neither\\x1b is unknown: what is in it is in no job; see ccagent doctor"
        ]
        result = find_job_groups(slurm.node)
        assert result.state == "problem"
        assert "1 jobs have one now, and the job of 1 is unknown" in result.found

    def test_a_process_in_an_unknown_group_is_enough_to_count_it(
        self, slurm: Slurm, caplog: pytest.LogCaptureFixture
    ) -> None:
        slurm.step(f"{SCOPE}/{SLUID}", 0, 40, title="sleep")
        for _ in range(4):
            assert slurm.membership(f"{SCOPE}/{SLUID}") == 0
            slurm.node.still.passed += 6

        assert len(caplog.records) == 1
        assert count_unknown(slurm.node) == 1
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40)
        assert count_unknown(slurm.node) == 0

    @pytest.mark.parametrize(
        ("place", "job"),
        [
            ("/docker.slice/docker-0f.scope/system.slice/slurmstepd.scope", "job_1/step_0"),
            ("/docker/0f/slurm/uid_1001", "job_1/step_0/task_0"),
            ("/system.slice/slurmstepd.scope", "job-1/step_0/user/task_0"),
        ],
    )
    def test_a_place_of_no_release_is_logged_once_and_found_by_the_doctor(
        self, slurm: Slurm, caplog: pytest.LogCaptureFixture, place: str, job: str
    ) -> None:
        content = f"0::{place}/{job}\n"
        slurm.node.process(43, uid=1001, cgroup=content)
        for _ in range(4):
            assert find_membership(slurm.node, content.encode()).job == 0
            slurm.node.still.passed += 6

        (record,) = caplog.records
        assert f"the Slurm job of /sys/fs/cgroup{place} is unknown" in record.getMessage()
        assert f"/sys/fs/cgroup{place}, where no known release" in find_job_groups(slurm.node).found

    @pytest.mark.parametrize(
        "path",
        [
            "/system.slice/slurmstepd.scope/system",
            "/user.slice/user-1.slice/user@1.service/slurmstepd.scope/job_1/step_0",
            "/user.slice/user-1.slice/session-1.scope",
            "/system.slice/slurmd.service",
            "/pbs_jobs.service/jobid/13.server",
            "/lsf/fox/job.13.1.1",
            "/htcondor/condor_slot1_1@c1",
            "/kubepods.slice/kubepods-pod0f.slice/cri-containerd-0f.scope",
        ],
    )
    def test_other_groups_are_not_slurms(
        self, slurm: Slurm, caplog: pytest.LogCaptureFixture, path: str
    ) -> None:
        for _ in range(4):
            assert find_membership(slurm.node, f"0::{path}\n".encode()) == NO_MEMBERSHIP
            slurm.node.still.passed += 6
        assert not caplog.records
        assert not slurm.node.unknown_groups

    def test_a_directory_is_not_unknown_while_slurm_makes_it(
        self, slurm: Slurm, caplog: pytest.LogCaptureFixture
    ) -> None:
        (slurm.node.path / SCOPE / SLUID).mkdir(parents=True)
        slurm.jobs()
        slurm.step(f"{SCOPE}/{SLUID}", 77, 40)
        slurm.node.still.passed += 60

        assert slurm.jobs() == {f"{SCOPE}/{SLUID}": 77}
        assert caplog.records == []
        assert find_job_groups(slurm.node).state == "good"
