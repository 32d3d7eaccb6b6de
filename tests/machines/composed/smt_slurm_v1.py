"""smt-slurm-v1: two sockets, SMT, more NUMA nodes than sockets; Slurm 22.05 with cgroup v1."""

from __future__ import annotations

from tests.machines import hardware
from tests.machines.composed.base import Composed, description, kernel_threads
from tests.machines.composed.cgroup_v1 import cgroup, service, session, step_daemon, task
from tests.machines.processes import Io, Memory, Process

TIME = 1_769_860_800.5
UPTIME = 432_000.25
TICKS = int(UPTIME * 100)

USERS = {
    0: "root",
    996: "node_exporter",
    997: "munge",
    998: "chrony",
    1003: "turing",
    5001: "hopper",
    5002: "lovelace",
}
NAMELESS = 5099

SMALL = Memory(text=20, data=360, anonymous=112, file=1600)
DAEMON = Memory(text=800, data=20_480, anonymous=6_144, file=9_216, shared=64)


def system_processes() -> list[Process]:
    """What every node runs."""
    kernel = kernel_threads(
        {
            2: b"kthreadd",
            14: b"ksoftirqd/0",
            15: b"rcu_sched",
            300: b"kworker/u65:3-events_unbound",
        },
        cgroup(),
    )

    def daemon(pid: int, comm: bytes, uid: int = 0, threads: int = 1) -> Process:
        return Process(
            pid=pid,
            parent=1,
            comm=comm,
            cgroup=service(comm.decode()),
            uid=uid,
            started=2_000 + pid,
            threads=threads,
            user_time=9_000 + pid,
            system_time=4_000 + pid,
            memory=DAEMON,
            io=Io(read=50_000_000, written=2_000_001, from_disk=40_960, to_disk=81_920),
        )

    init = Process(
        pid=1,
        parent=0,
        comm=b"systemd",
        cgroup=cgroup(systemd="/init.scope"),
        started=9,
        user_time=2_412,
        system_time=3_120,
        children_user_time=120_000,
        children_system_time=44_000,
        memory=DAEMON,
        io=Io(read=900_000_000, written=400_000_000, from_disk=70_000_640, to_disk=12_288_000),
    )
    return [
        init,
        *kernel,
        daemon(801, b"chronyd", 998),
        daemon(850, b"munged", 997, 4),
        daemon(870, b"node_exporter", 996, 18),
        daemon(900, b"sshd"),
        daemon(950, b"slurmd", 0, 3),
    ]


def step(pid: int, session_id: int, cgroups: str, started: int) -> Process:
    """A slurmstepd, which belongs to root."""
    return Process(
        pid=pid,
        parent=1,
        comm=b"slurmstepd",
        cgroup=cgroups,
        started=started,
        group=session_id,
        session=session_id,
        threads=4,
        user_time=31,
        system_time=57,
        memory=Memory(text=280, data=35_000, anonymous=1_520, file=6_400),
        io=Io(read=700_123, written=4_321),
    )


def batch_job() -> list[Process]:
    """Job 13 of lovelace: a batch script that started a step; root's sleep holds it."""
    job = "/slurm_c1-1/uid_5002/job_13"
    start = TICKS - 360_000

    def of_user(pid: int, parent: int, comm: bytes, group: int, leader: int) -> Process:
        in_batch = leader == 4373
        return Process(
            pid=pid,
            parent=parent,
            comm=comm,
            cgroup=task(job, "step_batch" if in_batch else "step_0"),
            started=start + pid - 4360,
            uid=5002,
            group=group,
            session=leader,
            threads=5 if pid == 4380 else 1,
            user_time=pid - 4370,
            system_time=12,
            memory=SMALL,
            io=Io(read=65_537, written=1_024),
        )

    return [
        step(4365, 4363, step_daemon(job, "step_extern"), start),
        Process(
            pid=4372,
            parent=4365,
            comm=b"sleep",
            cgroup=cgroup(
                freezer=f"{job}/step_extern",
                devices=f"{job}/step_extern",
                memory=f"{job}/step_extern/task_0",
                cpuset=f"{job}/step_extern",
                cpuacct=f"{job}/step_extern/task_0",
            ),
            started=start + 10,
            session=4363,
            memory=SMALL,
        ),
        step(4375, 4373, step_daemon(job, "step_batch"), start + 12),
        of_user(4379, 4375, b"slurm_script", 4379, 4373),
        of_user(4380, 4379, b"srun", 4379, 4373),
        of_user(4383, 4380, b"srun", 4379, 4373),
        step(4390, 4389, step_daemon(job, "step_0"), start + 30),
        of_user(4395, 4390, b"sleep", 4395, 4389),
    ]


def parallel_job() -> list[Process]:
    """Job 51 of hopper, a component of a heterogeneous job: eight ranks that differ in nothing."""
    job = "/slurm_bigmem1/uid_5001/job_51"
    start = TICKS - 90_000
    ranks = [
        Process(
            pid=5105 + rank,
            parent=5100,
            comm=b"xhpl",
            cgroup=task(job, "step_0", f"/task_{rank}", f"/task_{rank + 1}"),
            started=start + 20,
            uid=5001,
            state="R",
            session=5098,
            threads=2,
            user_time=88_000 + rank,
            system_time=500,
            cpu=rank,
            memory=Memory(text=1_200, data=2_097_152, anonymous=1_048_576, file=12_288, shared=512),
            io=Io(read=1_048_577, written=2_049, to_disk=4_096, cancelled=1_025),
        )
        for rank in range(8)
    ]
    return [step(5100, 5098, step_daemon(job, "step_0"), start), *ranks]


def job_without_node_name() -> list[Process]:
    """Job 77 of lovelace, with the paths of a Slurm that was not built for several daemons."""
    job = "/slurm/uid_5002/job_77"
    start = TICKS - 1_000
    return [
        step(6001, 6000, step_daemon(job, "step_batch"), start),
        Process(
            pid=6002,
            parent=6001,
            comm=b"python3",
            cgroup=task(job, "step_batch"),
            started=start + 15,
            uid=5002,
            session=6000,
            state="R",
            threads=16,
            user_time=14_000,
            system_time=333,
            children_user_time=250,
            children_system_time=49,
            nice=5,
            cpu=9,
            memory=Memory(text=2_816, data=409_600, anonymous=307_200, file=24_576, shared=128),
            io=Io(read=5_000_000_001, written=1_000, from_disk=4_999_999_488),
        ),
    ]


def logins() -> list[Process]:
    """turing over ssh, with a pipeline in one process group, and a user whom nobody knows."""
    start = TICKS - 720_000

    def login(
        pid: int, parent: int, comm: bytes, uid: int, group: int, state: str = "S"
    ) -> Process:
        alive = state != "Z"
        return Process(
            pid=pid,
            parent=parent,
            comm=comm,
            cgroup=session(7 if pid < 7100 else 9, 1003 if pid < 7100 else NAMELESS),
            started=start + (pid - 7000) * 40,
            uid=uid,
            state=state,
            group=group,
            session=7003 if 7003 <= pid < 7100 else group,
            terminal=34816 if 7003 <= pid < 7100 else 0,
            user_time=7 * (pid - 6990),
            system_time=pid - 6990,
            memory=SMALL if alive else Memory(),
            io=Io(read=12_289, written=4_097) if alive else Io(),
        )

    return [
        login(7001, 900, b"sshd", 0, 7001),
        login(7002, 7001, b"sshd", 1003, 7001),
        login(7003, 7002, b"bash", 1003, 7003),
        login(7004, 7003, b"awk", 1003, 7004, "R"),
        login(7005, 7003, b"sort", 1003, 7004),
        login(7006, 7003, b") R 1 (\n\xff\xfe x", 1003, 7006),
        login(7101, 1, b"crunch", NAMELESS, 7101, "R"),
        login(7102, 7101, b"crunch", NAMELESS, 7101, "Z"),
    ]


def machine() -> Composed:
    """Two sockets of eight cores, hyper-threading, two NUMA nodes a socket."""
    processes = [
        *system_processes(),
        *batch_job(),
        *parallel_job(),
        *job_without_node_name(),
        *logins(),
    ]
    cpus = [
        hardware.Cpu(number=number, package=number // 8 % 2, core=number % 8)
        for number in range(32)
    ]
    ticks = {
        cpu.number: (900_000 - cpu.number, 1_000, 80_000, TICKS - 1_000_000, 900, 0, 321, 0, 0, 0)
        for cpu in cpus
    }
    near, far, self = 12, 21, 10
    files = {
        "proc/cpuinfo": hardware.cpuinfo(
            hardware.x86_cpu(
                cpu,
                model=143,
                model_name="Intel(R) Xeon(R) Gold 6434",
                cores=8,
                siblings=16,
                megahertz=3700.0,
            )
            for cpu in cpus
        ),
        "proc/stat": hardware.stat(ticks, boot=int(TIME - UPTIME), created=812_345, running=11),
        "proc/meminfo": hardware.meminfo(
            {
                "MemTotal": 263_850_140,
                "MemFree": 201_326_592,
                "MemAvailable": 244_318_208,
                "Buffers": 5_120,
                "Cached": 44_040_192,
                "SwapCached": 0,
                "Active": 12_582_912,
                "Inactive": 33_554_432,
                "SwapTotal": 4_194_300,
                "SwapFree": 4_194_300,
                "Dirty": 512,
                "Shmem": 1_048_576,
                "Slab": 2_097_152,
                "SReclaimable": 1_048_576,
            }
        ),
        "proc/loadavg": "9.81 8.02 4.50 11/842 7102\n",
        "proc/diskstats": hardware.diskstats(
            [
                (7, 0, "loop0", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
                (8, 0, "sda", "901234 120 72098720 4001 2201 99 19087 3200 2 2999 7201 0 0 0 0"),
                (8, 1, "sda1", "312 0 19968 88 2 0 2 1 0 90 89 0 0 0 0"),
                (253, 0, "dm-0", "900002 0 72000120 4200 3100 0 19080 9000 0 3000 13200 0 0 0 0"),
            ]
        ),
        "proc/sys/kernel/pid_max": "4194304\n",
        **hardware.kernel_version("4.18.0-553.el8_10.x86_64"),
        **hardware.cpu_files(cpus),
        **hardware.node_files(
            [
                [self, near, far, far],
                [near, self, far, far],
                [far, far, self, near],
                [far, far, near, self],
            ]
        ),
    }
    return Composed(
        name="smt-slurm-v1",
        machine=description(
            origin="a compute node of Slurm 22.05; the cgroup lines of jobs 13 and 51 were seen "
            "on a real one",
            hostname="c1-1",
            cluster="smt.example.org",
            time=TIME,
            uptime=UPTIME,
            users=USERS,
            processes=processes,
        ),
        files=files,
        processes=processes,
    )
