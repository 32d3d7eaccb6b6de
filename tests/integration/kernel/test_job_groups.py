"""The job that the kernel programs find, by the place of a control group and slurmstepd's title.

On this machine's kernel, in a hierarchy that is mounted for the test alone.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.machine.bpf import loading
from ccagent.machine.bpf.process_records import EndedKey
from tests.support.kernel_programs import NOBODY, hierarchy, own_directory, read_ended
from tests.support.running import until

SLUID = "s5K1KKYAYG5D0"
"""All but the last digit of Slurm's own example."""

NESTED = "step_0/user/task_0/system.slice/slurmstepd.scope/job_13/step_0"


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    with own_directory() as path:
        loading.load(path)
        yield path


@pytest.fixture(scope="module", params=["v1", "v2"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with hierarchy(request.param) as path:
        yield path


@pytest.fixture(scope="module")
def v2() -> Iterator[str]:
    with hierarchy("v2") as path:
        yield path


class Programs:
    """Programs that run in groups, under names by which their ends are found."""

    numbers = 0

    def __init__(self, directory: str, path: Path) -> None:
        self._directory = directory
        self._path = path

    def end_in(
        self, group: str, *, daemon: str = "", name: str = "", is_own: bool = False
    ) -> EndedKey:
        """Let a program end in a group; return the key under which the kernel has counted it.

        daemon: the directory and title of a slurmstepd that starts it.
        """
        os.makedirs(group, exist_ok=True)
        Programs.numbers += 1
        name = name or f"ids-{os.getpid()}-{Programs.numbers}"
        program = self._path / name
        shutil.copy("/bin/true", program)
        step, _, title = daemon.partition(" ")
        join = f"echo $$ > {group}/cgroup.procs; exec {program}"
        script = f'sh -c "{join}"\ntrue\n'.replace("$", "\\$")
        shell = self._path / ("slurmstepd" if daemon else "shell")
        shutil.copy("/bin/sh", shell)
        if daemon:
            os.makedirs(step, exist_ok=True)
            script = f"echo $$ > {step}/cgroup.procs\n{script}"
        subprocess.run(
            [title or "sh"], executable=str(shell), input=script, text=True, check=True, timeout=60
        )

        def counted() -> list[EndedKey]:
            entries = read_ended(self._directory).entries
            # Other programs of this machine may sleep, too, but in no job.
            return [
                key for key in entries
                if key.command.decode() == name[:15]
                and (key.is_slurms_own if is_own else name != "sleep" or key.job)
            ]  # fmt: skip

        until(counted)
        return counted()[0]


@pytest.fixture
def programs(directory: str, tmp_path: Path) -> Programs:
    return Programs(directory, tmp_path)


def clean(root: str, top: str) -> None:
    """Remove groups from below, except for those that a Slurm of other tests uses."""
    for path, _, _ in os.walk(f"{root}/{top}", topdown=False):
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
                raise


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("slurm/uid_1/job_7/step_0", 7),
        ("slurm_c1-1/uid_1/job_7/step_batch/task_0", 7),
        ("system.slice/slurmstepd.scope/job_7", 7),
        ("system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("system.slice/c1-1_slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("jobs.slice/jobs-gpu.slice/slurmstepd.scope/job_4294967295/step_0/user/task_0", 2**32 - 1),
        ("system.slice/slurmstepd.scope/job_4294967296/step_0", 0),
        (f"system.slice/slurmstepd.scope/job_7/{NESTED}", 7),
        ("user.slice/user-1.slice/user@1.service/system.slice/slurmstepd.scope/job_13", 0),
        ("user.slice/slurmstepd.scope/job_13", 0),
        ("slurmstepd.scope/job_13", 0),
        ("docker/slurm/uid_1/job_13", 0),
        ("system.slice/slurmstepd.scope/system", 0),
        ("system.slice/slurmstepd.scope/job_7x/step_0", 0),
        ("system.slice/own.service/uid_1/job_13", 0),
    ],
)
def test_only_groups_that_slurm_makes_are_jobs(
    programs: Programs, root: str, path: str, job: int
) -> None:
    try:
        assert programs.end_in(f"{root}/{path}").job == job
    finally:
        clean(root, path.partition("/")[0])


class TestSluids:
    def test_the_title_of_its_slurmstepd_is_the_number(self, programs: Programs, v2: str) -> None:
        job = f"{v2}/jobs.slice/slurmstepd.scope/{SLUID}1"
        try:
            key = programs.end_in(
                f"{job}/{NESTED}", daemon=f"{job}/step_batch/slurm slurmstepd: [77.batch]"
            )
            assert (key.job, key.cgroup) == (77, 0)
        finally:
            clean(v2, "jobs.slice")

    @pytest.mark.parametrize(
        "title", ["slurmstepd infinity", "slurmstepd: [77]", "slurmstepd: [99999999999.0]"]
    )
    def test_without_a_title_the_group_of_the_job_is_told(
        self, programs: Programs, v2: str, title: str
    ) -> None:
        job = f"{v2}/jobs.slice/slurmstepd.scope/{SLUID}2"
        os.makedirs(job)
        try:
            key = programs.end_in(f"{job}/step_0/user", daemon=f"{job}/step_batch/slurm {title}")
            assert (key.job, key.cgroup) == (0, os.stat(job).st_ino)
        finally:
            clean(v2, "jobs.slice")

    def test_a_name_that_is_none(self, programs: Programs, v2: str) -> None:
        for name in (f"{SLUID}U", f"{SLUID}22", f"S{SLUID[1:]}3"):
            job = f"{v2}/system.slice/slurmstepd.scope/{name}"
            try:
                key = programs.end_in(
                    f"{job}/step_0/user", daemon=f"{job}/step_batch/slurm slurmstepd: [77.batch]"
                )
                assert key.job == 0
            finally:
                clean(v2, "system.slice")


def test_a_scope_of_a_user_has_no_jobs(programs: Programs, v2: str) -> None:
    scope = Path(f"{v2}/own.slice/slurmstepd.scope")
    scope.mkdir(parents=True)
    os.chown(scope, NOBODY, NOBODY)
    try:
        assert programs.end_in(f"{scope}/job_13/step_0").job == 0
    finally:
        clean(v2, "own.slice")


@pytest.mark.parametrize(("step", "is_own"), [("extern", True), ("batch", False)])
def test_the_placeholder_of_the_step_extern_is_slurms_own(
    programs: Programs, v2: str, step: str, is_own: bool
) -> None:
    number = os.getpid()
    job = f"{v2}/system.slice/slurmstepd.scope/job_{number}"
    try:
        key = programs.end_in(
            f"{job}/step_{step}/user/task_0",
            daemon=f"{job}/step_{step}/slurm slurmstepd: [{number}.{step}]",
            name="sleep",
            is_own=is_own,
        )
        assert key.job == (0 if is_own else number)
    finally:
        clean(v2, "system.slice")
