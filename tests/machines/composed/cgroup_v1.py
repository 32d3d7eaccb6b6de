"""/proc/PID/cgroup of a node of Slurm 22.05 with cgroup v1."""

from __future__ import annotations


def cgroup(
    *,
    systemd: str = "/",
    freezer: str = "/",
    devices: str = "/",
    memory: str = "/",
    cpuset: str = "/",
    cpuacct: str = "/",
) -> str:
    """/proc/PID/cgroup, with the controllers that Slurm 22.05 uses."""
    return (
        f"9:name=systemd:{systemd}\n"
        "8:pids:/\n"
        "7:blkio:/\n"
        f"6:freezer:{freezer}\n"
        f"5:devices:{devices}\n"
        f"4:memory:{memory}\n"
        f"3:cpuset:{cpuset}\n"
        f"2:cpuacct:{cpuacct}\n"
        "1:cpu:/\n"
        "0::/\n"
    )


def step_daemon(job: str, step: str) -> str:
    """The cgroups of slurmstepd: the freezer's lacks the step."""
    path = f"{job}/{step}"
    return cgroup(freezer=job, devices=path, memory=path, cpuset=path)


def task(job: str, step: str, devices: str = "/task_0", accounting: str = "/task_0") -> str:
    """The cgroups of a step's task; devices counts tasks of the node, cpuacct those of the job."""
    path = f"{job}/{step}"
    return cgroup(
        freezer=path,
        devices=path + devices,
        memory=path + devices,
        cpuset=path,
        cpuacct=path + accounting,
    )


def session(number: int, uid: int) -> str:
    """The cgroups of somebody who logged in."""
    return cgroup(systemd=f"/user.slice/user-{uid}.slice/session-{number}.scope")


def service(name: str) -> str:
    """The cgroups of a daemon."""
    return cgroup(systemd=f"/system.slice/{name}.service")
