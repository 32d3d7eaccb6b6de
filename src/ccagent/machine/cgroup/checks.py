"""Checks of control groups: version, controllers, and Slurm's control groups of jobs.

Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from os.path import dirname
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.log import printable
from ccagent.machine.cgroup.jobs import ROOT, job_directories, parse_cgroup
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.machine.node import Node

_AREA = "control groups"
_PLACE = f"/{ROOT}"
_WANTED_V1 = ("memory", "cpuacct", "blkio")
_WANTED_V2 = ("memory", "cpu", "io")
_SHOWN_V1 = frozenset({*_WANTED_V1, "cpu", "cpuset", "devices", "freezer", "pids"})
_PARAMETERS = {
    "memory": "cgroup_enable=memory",
    "cpuacct": "the kernel's CONFIG_CGROUP_CPUACCT",
    "blkio": "the kernel's CONFIG_BLK_CGROUP",
    "cpu": "the kernel's CONFIG_CGROUP_SCHED",
    "io": "the kernel's CONFIG_BLK_CGROUP",
}


def check_cgroups(node: Node, impact: str = "") -> Iterator[Check]:
    """Yield the checks of an agent that reads the control groups of jobs."""
    yield Check(_AREA, "control groups", partial(find_cgroups, node), impact)
    yield Check(_AREA, "control groups of jobs", partial(find_job_groups, node), impact)


def find_cgroups(node: Node) -> CheckResult:
    """Return the version of control groups, and the missing controllers."""
    mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
    v2 = [mount.point for mount in mounts if mount.type == "cgroup2"]
    if _PLACE in v2:
        controllers = node.read_text(f"{ROOT}/cgroup.controllers").split()
        return _assess_controllers("version 2", controllers, _WANTED_V2)
    below = [m for m in mounts if m.type == "cgroup" and m.point.startswith(f"{_PLACE}/")]
    v1 = {option for mount in below for option in mount.options.split(",")}
    if v1 & _SHOWN_V1:
        has_both = any(point.startswith(f"{_PLACE}/") for point in v2)
        version = "version 1 (and 2 beside it, for systemd)" if has_both else "version 1"
        return _assess_controllers(version, sorted(v1 & _SHOWN_V1), _WANTED_V1)
    return CheckResult(
        "missing",
        f"none are mounted below {_PLACE}",
        "mount them there (systemd does); in a container hand on the host's",
    )


def find_job_groups(node: Node) -> CheckResult:
    """Return the number of Slurm jobs with control groups."""
    try:
        found = job_directories(node, _WANTED_V1)
    except NotHereError:
        if place := _find_other_place(node):
            return CheckResult(
                "problem",
                f"Slurm makes them in /{printable(place)}, where no known release has them:"
                " what is in them counts for no job",
                "if slurmd runs in a container, run ccagent in it, or start slurmd on the host",
            )
        return CheckResult(
            "missing",
            "Slurm has made none on this node",
            "on a compute node: ProctrackType=proctrack/cgroup, TaskPlugin=task/cgroup and "
            "JobAcctGatherType=jobacct_gather/cgroup in slurm.conf",
        )
    jobs = len({directory.job for directory in found})
    if unknown := sorted(node.unknown_groups):
        return CheckResult(
            "problem",
            f"Slurm makes them; {jobs} jobs have one now, and the job of {len(unknown)} is unknown,"
            f" such as {printable('/' + unknown[0])}: what is in them counts for no job",
            "show /proc to this user (hidepid); remove directories that Slurm has left; or set "
            "CgroupJobIdPaths=yes in cgroup.conf (Slurm 26.05.2)",
        )
    return CheckResult("good", f"Slurm makes them; {jobs} jobs have one now")


def _find_other_place(node: Node) -> str:
    """Return a directory of Slurm that a process is in, if its form is of no known release."""
    for name in node.list("proc"):
        with suppress(CcagentError):
            path = parse_cgroup(node.read(f"proc/{name}/cgroup")) if name.isdecimal() else None
            if path is not None and path.is_other:
                return dirname(path.directory)
    return ""


def _assess_controllers(version: str, there: Sequence[str], wanted: Sequence[str]) -> CheckResult:
    lacks = [name for name in wanted if name not in there]
    found = f"{version} with {', '.join(there) or 'no controllers'}"
    if not lacks:
        return CheckResult("good", found)
    ways = "; ".join(dict.fromkeys(f"{name}: {_PARAMETERS[name]}" for name in lacks))
    fix = f"turn them on when the kernel is started or built: {ways}"
    return CheckResult("problem", f"{found}, but not {', '.join(lacks)}", fix)
