"""aarch64: one socket of 80 Arm cores, pages of 64 KiB, and a kernel from before 4.1."""

from __future__ import annotations

from tests.machines import hardware
from tests.machines.composed.base import Composed, description, kernel_threads
from tests.machines.processes import Memory, Process

TIME = 1_769_860_800.0
UPTIME = 3_600.75
TICKS = int(UPTIME * 100)
PAGE_SIZE = 65_536

USERS = {0: "root", 81: "dbus", 1003: "turing", 5001: "hopper"}

DAEMON = Memory(text=1_024, data=20_480, anonymous=6_144, file=9_216, shared=64)
PROGRAM = Memory(text=2_816, data=409_600, anonymous=307_200, file=24_576, shared=128)


def cgroup(path: str = "/", *, accounting: str = "/", systemd: str = "/") -> str:
    """/proc/PID/cgroup with two controllers in one hierarchy and without cgroup v2.

    path: in the freezer, and what Slurm confines; accounting: in cpuacct.
    """
    return (
        "11:pids:/\n"
        f"10:freezer:{path}\n"
        "9:net_prio,net_cls:/\n"
        f"8:cpuset:{path}\n"
        "7:perf_event:/\n"
        "6:blkio:/\n"
        f"5:cpuacct,cpu:{accounting}\n"
        f"4:devices:{path}\n"
        f"3:memory:{path}\n"
        "2:hugetlb:/\n"
        f"1:name=systemd:{systemd}\n"
    )


def processes() -> list[Process]:
    """Daemons, a login and a job; another user may not read their /proc/PID/io."""

    def process(
        pid: int,
        parent: int,
        comm: bytes,
        cgroups: str,
        *,
        uid: int = 0,
        group: int = 0,
        threads: int = 1,
        memory: Memory = DAEMON,
    ) -> Process:
        return Process(
            pid=pid,
            parent=parent,
            comm=comm,
            cgroup=cgroups,
            uid=uid,
            group=group,
            threads=threads,
            state="R" if memory is PROGRAM else "S",
            started=20 * pid,
            user_time=30 * pid if memory is PROGRAM else pid,
            system_time=pid // 3,
            cpu=pid % 80,
            memory=memory,
            io=None,
        )

    def daemon(pid: int, comm: str, uid: int = 0) -> Process:
        cgroups = cgroup(systemd=f"/system.slice/{comm}.service")
        return process(pid, 1, comm.encode(), cgroups, uid=uid)

    login = cgroup(systemd="/user.slice/user-1003.slice/session-1.scope")
    job = "/slurm/uid_5001/job_900"
    task = cgroup(f"{job}/step_0/task_0", accounting=f"{job}/step_0/task_0")
    kernel = kernel_threads({2: b"kthreadd", 3: b"ksoftirqd/0", 9: b"rcu_sched"}, cgroup(), io=None)
    return [
        process(1, 0, b"systemd", cgroup(systemd="/")),
        *kernel,
        daemon(700, "dbus-daemon", 81),
        daemon(720, "sshd"),
        daemon(760, "slurmd"),
        process(1500, 720, b"sshd", login),
        process(1504, 1500, b"sshd", login, uid=1003, group=1500),
        process(1505, 1504, b"bash", login, uid=1003),
        process(2000, 1, b"slurmstepd", cgroup(f"{job}/step_0"), group=1999, threads=4),
        *[
            process(2010 + rank, 2000, b"lmp", task, uid=5001, threads=20, memory=PROGRAM)
            for rank in range(4)
        ],
    ]


def machine() -> Composed:
    """No disks; the package has a number that isn't 0."""
    cpus = [hardware.Cpu(number=number, package=36, core=number) for number in range(80)]
    ticks = {
        cpu.number: (200_000 + cpu.number, 0, 8_000, TICKS - 210_000, 40, 0, 17, 0, 0, 0)
        for cpu in cpus
    }
    everything = processes()
    files = {
        "proc/cpuinfo": hardware.cpuinfo(
            hardware.arm_cpu(cpu.number, implementer=0x41, part=0xD0C) for cpu in cpus
        ),
        "proc/stat": hardware.stat(ticks, boot=int(TIME - UPTIME), created=4_321, running=81),
        "proc/meminfo": hardware.meminfo(
            {
                "MemTotal": 267_649_152,
                "MemFree": 250_000_128,
                "Buffers": 1_024,
                "Cached": 8_388_608,
                "SwapCached": 0,
                "SwapTotal": 0,
                "SwapFree": 0,
                "Shmem": 65_536,
                "Slab": 1_572_864,
                "SReclaimable": 524_288,
            }
        ),
        "proc/loadavg": "80.02 78.11 40.09 81/1120 2013\n",
        "proc/sys/kernel/pid_max": "81920\n",
        **hardware.kernel_version("3.10.0-957.el7.aarch64", "aarch64"),
        **hardware.cpu_files(cpus, core_cpus=False),
        **hardware.node_files([[10]]),
    }
    return Composed(
        name="aarch64",
        machine=description(
            origin="a node with an Arm processor and an old kernel, read by another user than root",
            hostname="arm1",
            cluster="arm.example.org",
            time=TIME,
            uptime=UPTIME,
            users=USERS,
            processes=everything,
            page_size=PAGE_SIZE,
        ),
        files=files,
        processes=everything,
        old=True,
    )
