"""A Slurm of one node in the emulated machine (debian_machine.py), with either control groups.

Nothing is accounted, so there is no database; a user `alice` exists there alone. What it writes
goes with the machine.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

HOSTNAME = "c1-1"
ALICE = 5001
DIRECTORY = Path("/run/slurm")
CGROUPS = "/sys/fs/cgroup"

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "SLURM_CONF": f"{DIRECTORY}/slurm.conf",
}
_OF_VERSION_1 = ("freezer", "cpuacct", "devices")
"""Controllers that version 2 does not hold for as long as one of its groups is remembered."""

_CONFIGURATION = """\
ClusterName=emulated
SlurmctldHost=c1-1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
StateSaveLocation={directory}/slurmctld
SlurmdSpoolDir={directory}/slurmd
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# Emulated, everything takes long.
MessageTimeout=100
SlurmctldTimeout=300
SlurmdTimeout=300
SchedulerParameters=bf_interval=1,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=300
# Jobs of another version have other numbers.
FirstJobId={first_job}
SlurmdParameters=config_overrides
NodeName=c1-1 CPUs=2 CoresPerSocket=2 RealMemory=1800
PartitionName=normal Nodes=c1-1 Default=YES MaxTime=UNLIMITED
"""
_OF_CGROUPS = {
    "v1": "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n",
    # No systemd runs that would make Slurm's scope.
    "v2": "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nCgroupAutomount=yes\nConstrainRAMSpace=yes\n",
}

_BY_NUMBER, _BY_SLUID = b"/job_%u\0", b"/s%013X\0"

Version = Literal["v1", "v2"]

FIRST_JOBS: dict[Version, int] = {"v1": 5001, "v2": 1}


class EmulatedSlurm:
    """Running daemons; see `emulated_slurm`."""

    def submit(self, *arguments: str) -> int:
        """Submit a batch job as alice; return its number, for an array that of the whole."""
        output = _run("sbatch", "--parsable", "-D", "/", "-o", "/tmp/job-%A_%a", *arguments)
        return int(output)

    def wait_until_running(self, count: int) -> None:
        """Wait until so many jobs have control groups with a process of alice."""
        _wait(
            lambda: sum(any(_is_alices(pid) for pid in pids) for pids in _pids_by_job()) >= count,
            lambda: f"jobs: {_run('squeue')}{_job_groups()}",
        )

    def wait_until_ended(self) -> None:
        """Wait until no job is there any more, and none of their control groups."""
        _wait(lambda: not _run("squeue", "-h"), lambda: f"jobs: {_run('squeue')}")
        _wait(lambda: not _job_groups(), lambda: f"control groups: {_job_groups()}")


@contextmanager
def emulated_slurm(version: Version, more: str = "") -> Generator[EmulatedSlurm]:
    """Have Slurm run for a while, on /sys/fs/cgroup with control groups of one version.

    more: lines of slurm.conf.
    """
    if socket.gethostname() != HOSTNAME:
        raise RuntimeError("this is not the emulated machine")
    _add_user()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    for path in (DIRECTORY, DIRECTORY / "slurmctld", DIRECTORY / "slurmd"):
        path.mkdir()
    text = _CONFIGURATION.format(directory=DIRECTORY, first_job=FIRST_JOBS[version])
    (DIRECTORY / "slurm.conf").write_text(text + more)
    (DIRECTORY / "cgroup.conf").write_text(_OF_CGROUPS[version])
    with ExitStack() as stack:
        if version == "v1":
            stack.enter_context(_first_version())
        else:
            _make_slice()
        try:
            for name in ("munged", "slurmctld", "slurmd"):
                stack.enter_context(_daemon(name))
            _wait(lambda: "idle" in _run("sinfo", "-h", "-o", "%T"), lambda: _run("sinfo"))
            yield EmulatedSlurm()
        except BaseException as error:
            raise RuntimeError(_logs()) from error


def _add_user() -> None:
    """Add alice, and the node's name and address: Slurm resolves none on loopback alone."""
    if "c1-1" in Path("/etc/hosts").read_text():
        return
    with open("/etc/passwd", "a") as file:
        file.write(f"alice:x:{ALICE}:{ALICE}::/tmp:/bin/sh\n")
    with open("/etc/group", "a") as file:
        file.write(f"alice:x:{ALICE}:\n")
    with open("/etc/hosts", "a") as file:
        file.write("10.98.0.1 c1-1\n")
    subprocess.run(["ip", "address", "add", "10.98.0.1/32", "dev", "lo"], check=True)


def _make_slice() -> None:
    """Make the control group that systemd would have made, with its controllers.

    One comes after memory: Slurm 22.05 overlooks the last of the list.
    """
    for path in (CGROUPS, f"{CGROUPS}/system.slice"):
        os.makedirs(path, exist_ok=True)
        Path(path, "cgroup.subtree_control").write_text("+cpuset +cpu +memory +pids")


@contextmanager
def _first_version() -> Generator[None]:
    """Have controllers of version 1 mounted instead of version 2."""
    subprocess.run(["umount", CGROUPS], check=True)
    with ExitStack() as stack:

        def mount(*arguments: str) -> None:
            subprocess.run(["mount", *arguments], check=True)
            stack.callback(subprocess.run, ["umount", arguments[-1]], check=False)

        mount("-t", "tmpfs", "cgroups", CGROUPS)
        for name in _OF_VERSION_1:
            os.mkdir(f"{CGROUPS}/{name}")
            mount("-t", "cgroup", "-o", name, name, f"{CGROUPS}/{name}")
        yield
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", CGROUPS], check=True)


@contextmanager
def _daemon(name: str) -> Generator[None]:
    """Run a daemon in the foreground."""
    command = [name, "-D"]
    if name == "munged":
        key = DIRECTORY / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        command = [
            "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={DIRECTORY}/munge.sock", f"--pid-file={DIRECTORY}/munged.pid",
            f"--log-file={DIRECTORY}/munged.log", f"--seed-file={DIRECTORY}/munge.seed",
        ]  # fmt: skip
    with (DIRECTORY / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            command, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        if name == "munged":
            _wait((DIRECTORY / "munge.sock").exists, lambda: "munged has no socket")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _run(*command: str) -> str:
    """Run a command of Slurm as alice; return its output."""
    done = subprocess.run(
        command, env=_ENVIRONMENT, user=ALICE, group=ALICE, extra_groups=[], cwd="/",
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def _job_groups() -> list[str]:
    top = Path(CGROUPS)
    return [str(path) for form in ("**/job_*", "**/s0*") for path in top.glob(form)]


def _pids_by_job() -> list[list[str]]:
    return [
        [pid for file in Path(group).rglob("cgroup.procs") for pid in file.read_text().split()]
        for group in _job_groups()
    ]


def _is_alices(pid: str) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == ALICE
    except FileNotFoundError:
        return False


def name_groups_by_sluid() -> None:
    """Have the control groups of later jobs named as since Slurm 26.05, while others run.

    The kernel renames no group of version 2. So the format of the name is replaced in the plugin,
    which each new slurmstepd loads: `s` and 13 digits of a number in base 16.
    """
    (path,) = Path("/usr/lib").glob("*/slurm-wlm/cgroup_v2.so")
    content = path.read_bytes()
    if content.count(_BY_NUMBER) != 1:
        raise RuntimeError(f"{path} has another format of names")
    path.unlink()
    path.write_bytes(content.replace(_BY_NUMBER, _BY_SLUID))


def _wait(reached: Callable[[], object], reason: Callable[[], str]) -> None:
    deadline = time.monotonic() + 600
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(reason())
        time.sleep(0.3)


def _logs() -> str:
    """Return the ends of all logs and of what jobs printed."""
    paths = [*DIRECTORY.glob("*.log"), *DIRECTORY.glob("*.out"), *Path("/tmp").glob("job-*")]
    return "\n".join(
        f"{path}: {path.read_text(errors='replace')[-2000:]}" for path in sorted(paths)
    )
