"""Parser of /proc/PID/cgroup: the Slurm job of a process, and whether it is in a container."""

from __future__ import annotations

import re
from typing import NamedTuple


class CgroupMembership(NamedTuple):
    """The job and container of a process.

    job: Slurm's raw job id, 0 for none; step: `0`, `batch`, `extern`..., empty for none. container:
    True for a process in the cgroup of a container.
    """

    job: int
    step: str
    container: bool


NO_MEMBERSHIP = CgroupMembership(0, "", container=False)


# Both patterns match at the start of the path. Users can create cgroups (systemd delegates
# user@UID.service), but must not be able to put a process into another user's job.
#
#   v1  /slurm/uid_5002/job_13/step_batch, /slurm_NODE/... where one machine has several slurmd
#   v2  /system.slice/slurmstepd.scope/job_13/step_0/user/task_0, NODE_slurmstepd.scope likewise
# slurmstepd is in `.../job_13` (v1, without suffix) or `.../job_13/step_0/slurm` (v2). For a reader
# in a container, paths outside of its cgroup start with `/..`, once per level that they do not
# share: cgroup_namespaces(7). No directory has this name.
_JOB = re.compile(
    rb"(?:(?:/\.\.)*/slurm(?:_[^/]+)?/uid_[0-9]{1,10}"
    rb"|(?:/system\.slice|(?:/\.\.)+(?:/system\.slice)?)/(?:[^/]+_)?slurmstepd\.scope)"
    rb"/job_([0-9]{1,19})(?:/step_([0-9a-z+]{1,22})(?![^/])|/|$)"
)

# docker-ID.scope, libpod-ID.scope, crio-ID.scope, cri-containerd-ID.scope (systemd driver);
# libpod-payload-ID in the unit that has started podman (--cgroups=split);
# /docker/ID, /kubepods/.../ID (cgroupfs driver); lxc.payload.NAME
_CONTAINER = re.compile(
    rb"/(?:docker|libpod|libpod-payload|crio|cri-containerd)-[0-9a-f]{64}(?:\.scope)?(?:/|$)"
    rb"|/docker/[0-9a-f]{64}(?:/|$)"
    rb"|^(?:/\.\.)*/kubepods(?:\.slice)?/"
    rb"|^(?:/\.\.)*/lxc(?:\.payload\.|/)"
)


def parse_cgroup(content: bytes) -> CgroupMembership:
    """Parse /proc/PID/cgroup: lines `hierarchy:controllers:path`. Other lines are ignored.

    The first line with a job is used: later controllers have the same job, or are in `/`.
    """
    job, step, container = 0, "", False
    for line in content.splitlines():
        path = line.split(b":", 2)[-1]
        if not job:
            match = _JOB.match(path)
            if match is not None:
                job, step = int(match[1]), (match[2] or b"").decode("ascii")
        container = container or _CONTAINER.search(path) is not None
    return CgroupMembership(job, step, container)
