"""linuxproc: Slurm 22.05 with proctrack/linuxproc, whose jobs leave no trace in cgroups."""

from __future__ import annotations

from tests.machines import hardware
from tests.machines.composed.base import Composed, description, kernel_threads
from tests.machines.composed.cgroup_v1 import cgroup, service, session
from tests.machines.processes import Io, Memory, Process

TIME = 1_769_860_800.25
UPTIME = 86_400.5
TICKS = int(UPTIME * 100)

USERS = {0: "root", 1004: "meitner", 5001: "hopper", 5002: "lovelace"}
MEITNER, HOPPER, LOVELACE = 1004, 5001, 5002

SMALL = Memory(text=20, data=360, anonymous=112, file=1600)
DAEMON = Memory(text=800, data=20_480, anonymous=6_144, file=9_216, shared=64)
STARTED = TICKS - 2_500


def title(step: str) -> bytes:
    """/proc/PID/cmdline of slurmstepd: blank where there was the line that it began with."""
    return b"slurmstepd: [%s]" % step.encode() + b"\0" * 3


def process(
    pid: int,
    parent: int,
    comm: bytes,
    uid: int,
    leader: int,
    *,
    group: int = 0,
    cmdline: bytes = b"",
    real_uid: int | None = None,
    cgroups: str | None = None,
) -> Process:
    """A process of a session whose `leader` may have ended."""
    return Process(
        pid=pid,
        parent=parent,
        comm=comm,
        cgroup=cgroup() if cgroups is None else cgroups,
        started=STARTED + pid - 29_700,
        uid=uid,
        real_uid=real_uid,
        cmdline=cmdline,
        group=group or leader,
        session=leader,
        user_time=pid - 29_690,
        system_time=3,
        memory=SMALL,
        io=Io(read=65_537, written=1_024),
    )


def step(pid: int, leader: int, name: str) -> Process:
    """A slurmstepd, which belongs to root."""
    return process(pid, 1, b"slurmstepd", 0, leader, cmdline=title(name))


def jobs() -> list[Process]:
    """Job 89 of hopper, a script with a step of two tasks; job 90 of lovelace, a script."""
    return [
        step(29732, 29729, "89.extern"),
        step(29734, 29733, "90.extern"),
        process(29736, 29732, b"sleep", 0, 29729, group=29736),
        process(29738, 29734, b"sleep", 0, 29733, group=29738),
        step(29741, 29740, "90.batch"),
        step(29750, 29749, "89.batch"),
        process(29757, 29741, b"slurm_script", LOVELACE, 29740, group=29757),
        process(29758, 29757, b"sleep", LOVELACE, 29740, group=29757),
        process(29759, 29757, b"python3", LOVELACE, 29740, group=29757),
        process(29760, 29750, b"slurm_script", HOPPER, 29749, group=29760),
        process(29761, 29760, b"srun", HOPPER, 29749, group=29760),
        process(29764, 29761, b"srun", HOPPER, 29749, group=29760),
        step(29771, 29770, "89.0"),
        process(29777, 29771, b"sleep", HOPPER, 29770, group=29777),
        process(29778, 29771, b"sleep", HOPPER, 29770, group=29778),
        # A program of job 90 that calls itself the daemon of job 89.
        process(29780, 29759, b"slurmstepd", LOVELACE, 29740, group=29757, cmdline=title("89.0")),
        process(29781, 29780, b"solver", LOVELACE, 29740, group=29757),
    ]


def impostors() -> list[Process]:
    """meitner, who has no job, and starts programs that look like those of job 89."""
    cgroups = session(4, MEITNER)

    def of_meitner(pid: int, parent: int, comm: bytes, group: int, uid: int = MEITNER) -> Process:
        return process(
            pid,
            parent,
            comm,
            uid,
            29_790,
            group=group,
            real_uid=MEITNER,
            cmdline=title("89.0") if comm == b"slurmstepd" else b"",
            cgroups=cgroups,
        )

    return [
        of_meitner(29790, 1, b"bash", 29790),
        of_meitner(29791, 29790, b"slurmstepd", 29791),
        of_meitner(29792, 29791, b"solver", 29791),
        # newgrp(1), started under another name, waits as root for the shell that it started.
        of_meitner(29795, 1, b"slurmstepd", 29795, uid=0),
        of_meitner(29796, 29795, b"solver", 29795),
    ]


def system_processes() -> list[Process]:
    """What every node runs, and a slurmd for each of two nodes of Slurm on this machine."""
    daemons = [(1, 0, b"systemd"), (900, 1, b"sshd"), (950, 1, b"slurmd"), (951, 1, b"slurmd")]
    return [
        *kernel_threads({2: b"kthreadd", 14: b"ksoftirqd/0"}, cgroup()),
        *(
            Process(
                pid=pid,
                parent=parent,
                comm=comm,
                cgroup=service(comm.decode()),
                started=9 + pid,
                user_time=2_000 + pid,
                system_time=1_000,
                memory=DAEMON,
                io=Io(read=50_000_000, written=2_000_001),
            )
            for pid, parent, comm in daemons
        ),
    ]


def machine() -> Composed:
    """One socket of four cores."""
    processes = [*system_processes(), *jobs(), *impostors()]
    cpus = [hardware.Cpu(number=number, package=0, core=number) for number in range(4)]
    ticks = {
        cpu.number: (90_000 - cpu.number, 100, 8_000, TICKS - 100_000, 90, 0, 32, 0, 0, 0)
        for cpu in cpus
    }
    files = {
        "proc/cpuinfo": hardware.cpuinfo(
            hardware.x86_cpu(
                cpu,
                model=85,
                model_name="Intel(R) Xeon(R) Bronze 3204 CPU @ 1.90GHz",
                cores=4,
                siblings=4,
                megahertz=1900.0,
            )
            for cpu in cpus
        ),
        "proc/stat": hardware.stat(ticks, boot=int(TIME - UPTIME), created=29_796, running=1),
        "proc/meminfo": hardware.meminfo(
            {
                "MemTotal": 16_318_460,
                "MemFree": 9_000_000,
                "MemAvailable": 13_000_000,
                "Buffers": 4_096,
                "Cached": 4_000_000,
            }
        ),
        "proc/loadavg": "0.31 0.12 0.04 1/160 29796\n",
        "proc/diskstats": hardware.diskstats(
            [(8, 0, "sda", "90123 12 7209872 401 220 9 1908 320 0 299 721 0 0 0 0")]
        ),
        "proc/sys/kernel/pid_max": "32768\n",
        **hardware.kernel_version("5.14.0-427.el9.x86_64"),
        **hardware.cpu_files(cpus),
        **hardware.node_files([[10]]),
    }
    return Composed(
        name="linuxproc",
        machine=description(
            origin="a compute node of Slurm 22.05; the processes of jobs 89 and 90 were seen on a "
            "real one, root's sleep and the impostors were not",
            hostname="c1-1",
            cluster="linuxproc.example.org",
            time=TIME,
            uptime=UPTIME,
            users=USERS,
            processes=processes,
        ),
        files=files,
        processes=processes,
    )
