"""Which control groups there are, and whether Slurm makes any for its jobs.

Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.doctor.mounts import read_mounts
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.cgroup.jobs import ROOT, job_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.doctor.mounts import Mount
    from ccagent.machine.node import Node

AREA = "control groups"

_PLACE = f"/{ROOT}"
_WANTED_V1 = ("memory", "cpuacct", "blkio")
_WANTED_V2 = ("memory", "cpu", "io")
_PARAMETERS = {
    "memory": "cgroup_enable=memory",
    "cpuacct": "the kernel's CONFIG_CGROUP_CPUACCT",
    "blkio": "the kernel's CONFIG_BLK_CGROUP",
    "cpu": "the kernel's CONFIG_CGROUP_SCHED",
    "io": "the kernel's CONFIG_BLK_CGROUP",
}


def check_cgroups(site: Site) -> Iterator[Finding]:
    """Tell version, controllers, and whether there are groups of jobs."""
    node = site.node
    yield judge_cgroups(read_mounts(node), _controllers(node))
    yield _job_groups(node)


def judge_cgroups(mounts: Sequence[Mount], controllers: Sequence[str]) -> Finding:
    """Judge what is mounted; controllers: of version 2, if that is at /sys/fs/cgroup itself."""
    is_unified = any(mount.type == "cgroup2" and mount.point == _PLACE for mount in mounts)
    is_beside = any(
        mount.type == "cgroup2" and mount.point.startswith(f"{_PLACE}/") for mount in mounts
    )
    v1 = [
        option
        for mount in mounts
        if mount.type == "cgroup" and mount.point.startswith(f"{_PLACE}/")
        for option in mount.options
        if option in {*_WANTED_V1, "cpu", "cpuset", "devices", "freezer", "pids"}
    ]
    if is_unified:
        return _judge_controllers("version 2", controllers, _WANTED_V2)
    if v1:
        version = "version 1 (and 2 beside it, for systemd)" if is_beside else "version 1"
        return _judge_controllers(version, sorted(set(v1)), _WANTED_V1)
    return Finding(
        area=AREA,
        subject="control groups",
        state="missing",
        found=f"none are mounted below {_PLACE}",
        fix="mount them there (systemd does); in a container hand on the host's",
    )


def judge_job_groups(number: int | None) -> Finding:
    """Judge how many jobs have groups; None: Slurm has made none at all."""
    if number is None:
        return Finding(
            area=AREA,
            subject="control groups of jobs",
            state="missing",
            found="Slurm has made none on this node",
            fix="on a compute node: ProctrackType=proctrack/cgroup, TaskPlugin=task/cgroup and "
            "JobAcctGatherType=jobacct_gather/cgroup in slurm.conf",
        )
    return Finding(
        area=AREA,
        subject="control groups of jobs",
        state="good",
        found=f"Slurm makes them; {number} jobs have one now",
    )


def _job_groups(node: Node) -> Finding:
    try:
        found = job_directories(node, _WANTED_V1)
    except NotHereError:
        return judge_job_groups(None)
    return judge_job_groups(len({directory.job for directory in found}))


def _judge_controllers(version: str, there: Sequence[str], wanted: Sequence[str]) -> Finding:
    lacks = [name for name in wanted if name not in there]
    found = f"{version} with {', '.join(there) or 'no controllers'}"
    if not lacks:
        return Finding(area=AREA, subject="control groups", state="good", found=found)
    ways = "; ".join(dict.fromkeys(f"{name}: {_PARAMETERS[name]}" for name in lacks))
    return Finding(
        area=AREA,
        subject="control groups",
        state="problem",
        found=f"{found}, but not {', '.join(lacks)}",
        fix=f"turn them on when the kernel is started or built: {ways}",
    )


def _controllers(node: Node) -> list[str]:
    try:
        return node.read(f"{ROOT}/cgroup.controllers").decode("ascii", "replace").split()
    except CcagentError:
        return []
