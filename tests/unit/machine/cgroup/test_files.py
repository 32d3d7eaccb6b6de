"""/proc/PID/cgroup: Slurm jobs and containers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.machine.procfs.process_cgroup import CgroupMembership, parse_cgroup
from tests.support.paths import DATA

RECORDED = DATA / "slurm"


def recorded_processes(name: str) -> list[tuple[str, bytes]]:
    """The header and the cgroup lines of each process in a recording."""
    text = (RECORDED / name).read_bytes()
    found: list[tuple[str, bytes]] = []
    for part in text.split(b"### ")[1:]:
        header, _, rest = part.partition(b"\n")
        found.append((header.decode(), rest.partition(b"-- env:")[0]))
    return found


def test_every_recorded_process_of_a_v1_job_is_in_it() -> None:
    processes = recorded_processes("proc-cgroup-v1-a.txt")

    assert len(processes) == 8
    assert {parse_cgroup(cgroup).job for _, cgroup in processes} == {13}


def test_the_cgroup_of_slurmstepd_is_in_the_job_although_nothing_follows_its_id() -> None:
    assert parse_cgroup(b"6:freezer:/slurm_c1-1/uid_5002/job_13\n0::/\n").job == 13


def test_recorded_v2_processes_are_in_the_job_that_slurm_gave_them() -> None:
    for header, cgroup in recorded_processes("proc-cgroup-v2.txt"):
        inside = re.search(r"slurm_script|srun|/usr/bin/sleep|sleep 1000|\[2\.", header)
        assert parse_cgroup(cgroup).job == (2 if inside else 0), header


def test_without_proctrack_cgroup_the_cgroup_tells_no_job() -> None:
    assert {parse_cgroup(c).job for _, c in recorded_processes("proc-linuxproc.txt")} == {0}


def test_a_het_component_has_its_own_raw_id() -> None:
    assert parse_cgroup((RECORDED / "het-component-1.cgroup").read_bytes()).job == 51


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/slurm/uid_1/job_7/step_0", 7),
        ("/slurm_c1-1/uid_1/job_7/step_batch/task_0", 7),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/system.slice/c1-1_slurmstepd.scope/job_7/step_extern/slurm", 7),
        ("/system.slice/slurmstepd.scope/job_7", 7),
        ("/../../../system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../c1-1_slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("/../../slurm_c1-1/uid_1/job_7/step_batch", 7),
        ("/../user.slice/user-1.slice/slurmstepd.scope/job_13", 0),
        ("/...../system.slice/slurmstepd.scope/job_13", 0),
        ("/slurmstepd.scope/job_13", 0),
        ("/system.slice/slurmstepd.scope/system", 0),
        ("/system.slice/slurmstepd.scope/job_7x/step_0", 0),
        ("/user.slice/user-1.slice/user@1.service/app.slice/slurmstepd.scope/job_13/step_0", 0),
        ("/user.slice/user-1.slice/user@1.service/system.slice/slurmstepd.scope/job_13", 0),
        ("/user.slice/user-1.slice/user@1.service/slurm/uid_5/job_13/step_0", 0),
        ("/docker/" + "a" * 64 + "/slurm/uid_5/job_13", 0),
    ],
)
def test_only_a_path_that_slurm_itself_makes_names_a_job(path: str, job: int) -> None:
    assert parse_cgroup(f"0::{path}\n".encode()).job == job


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
    placement = parse_cgroup(f"0::{path}\n".encode())
    assert (placement.job, placement.step) == (7, step)


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/docker-{'0f' * 32}.scope",
        f"/docker/{'0f' * 32}",
        f"/machine.slice/libpod-{'0f' * 32}.scope/container",
        f"/kubepods.slice/kubepods-besteffort.slice/cri-containerd-{'0f' * 32}.scope",
        "/kubepods/besteffort/pod1/x",
        "/../../../kubepods/besteffort/pod1/x",
        "/lxc.payload.web/init.scope",
        f"/system.slice/web.service/libpod-payload-{'0f' * 32}",
        f"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/libpod-{'0f' * 32}",
    ],
)
def test_containers_are_known_by_their_cgroup(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n".encode()).container


@pytest.mark.parametrize("path", ["/", "/system.slice/docker.service", "/user.slice"])
def test_other_cgroups_are_no_containers(path: str) -> None:
    assert not parse_cgroup(f"0::{path}\n".encode()).container


@given(st.binary(max_size=300))
def test_any_bytes_give_a_placement(content: bytes) -> None:
    assert isinstance(parse_cgroup(content), CgroupMembership)
