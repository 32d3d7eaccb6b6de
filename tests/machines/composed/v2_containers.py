"""v2-containers: cgroup v2 with Slurm, docker, podman and apptainer; hybrid cores, one offline."""

from __future__ import annotations

import hashlib

from tests.machines import hardware
from tests.machines.composed.base import Composed, description, kernel_threads
from tests.machines.processes import Io, Memory, Process

TIME = 1_769_860_800.0
UPTIME = 90_061.5
TICKS = int(UPTIME * 100)

USERS = {0: "root", 101: "systemd-resolve", 1004: "meitner", 5001: "hopper", 64030: "slurm"}
SUBORDINATE = 231_071
"""A user id inside a rootless container, from /etc/subuid: nobody's name."""

STEPS = "/system.slice/v2vm_slurmstepd.scope"

HOST_MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw
"""
SERVICE_MOUNTS = """\
310 140 259:2 / / ro,relatime - ext4 /dev/nvme0n1p2 rw
311 310 0:44 / /tmp rw,relatime - tmpfs tmpfs rw
"""
"""Of a service with ProtectSystem= and PrivateTmp=."""
IMAGE_MOUNTS = """\
402 388 0:61 / / ro,nosuid,nodev,relatime - overlay overlay ro,lowerdir=/image
403 402 0:21 / /proc rw,relatime - proc proc rw
"""

SMALL = Memory(text=20, data=360, anonymous=112, file=1_600)
DAEMON = Memory(text=24_000, data=98_304, anonymous=30_720, file=40_960)
PROGRAM = Memory(text=2_816, data=409_600, anonymous=262_144, file=24_576, shared=8_192)


def container_id(name: str) -> str:
    """64 hexadecimal digits, always the same for a name."""
    return hashlib.sha256(name.encode()).hexdigest()


def process(
    pid: int,
    parent: int,
    comm: bytes,
    path: str,
    *,
    uid: int = 0,
    group: int = 0,
    threads: int = 1,
    state: str = "S",
    memory: Memory = SMALL,
    nested: int = 0,
    mounts: str = "",
) -> Process:
    """One process in the cgroup `path`; those with higher ids started later."""
    return Process(
        pid=pid,
        parent=parent,
        comm=comm,
        cgroup=f"0::{path}\n",
        uid=uid,
        group=group,
        threads=threads,
        state=state,
        started=pid * 1_000,
        user_time=pid * 11 if state == "R" else pid // 7,
        system_time=pid // 5,
        cpu=pid % 3,
        memory=memory,
        nested=nested,
        mounts=mounts,
        io=Io(read=pid * 4_099, written=pid * 257, from_disk=pid * 4_096),
    )


def system_processes() -> list[Process]:
    """Kernel threads, init, and the daemons of Slurm and of containers."""
    kernel = kernel_threads(
        {2: b"kthreadd", 15: b"rcu_preempt", 58: b"kworker/0:1H-kblockd"}, "0::/\n"
    )
    return [
        process(1, 0, b"systemd", "/init.scope", mounts=HOST_MOUNTS),
        *kernel,
        process(
            430,
            1,
            b"systemd-resolve",
            "/system.slice/systemd-resolved.service",
            uid=101,
            mounts=SERVICE_MOUNTS,
        ),
        process(440, 1, b"containerd", "/system.slice/containerd.service", threads=12),
        process(445, 1, b"dockerd", "/system.slice/docker.service", threads=14, memory=DAEMON),
        process(472, 1, b"slurmctld", "/system.slice/slurmctld.service", uid=64030, threads=9),
        process(519, 1, b"slurmd", "/system.slice/slurmd.service", threads=3),
        process(528, 1, b"slurmstepd", f"{STEPS}/system"),
    ]


def batch_job() -> list[Process]:
    """Job 2 of hopper: a batch script with a step of two tasks; root's sleep holds it."""
    job = f"{STEPS}/job_2"
    batch, step = f"{job}/step_batch", f"{job}/step_0"
    return [
        process(610, 1, b"slurmstepd", f"{job}/step_extern/slurm", group=607),
        process(618, 610, b"sleep", f"{job}/step_extern/user/task_0"),
        process(622, 1, b"slurmstepd", f"{batch}/slurm", group=620),
        process(628, 622, b"slurm_script", f"{batch}/user/task_0", uid=5001),
        process(629, 628, b"srun", f"{batch}/user/task_0", uid=5001, group=628, threads=5),
        process(633, 629, b"srun", f"{batch}/user/task_0", uid=5001, group=628),
        process(640, 1, b"slurmstepd", f"{step}/slurm", group=638),
        process(645, 640, b"solve", f"{step}/user/task_0", uid=5001, state="R", memory=PROGRAM),
        process(646, 640, b"solve", f"{step}/user/task_1", uid=5001, state="R", memory=PROGRAM),
    ]


def apptainer_job() -> list[Process]:
    """Job 3 of hopper: its task runs inside apptainer, which stays in the job's cgroup."""
    step = f"{STEPS}/job_3/step_0"
    return [
        process(700, 1, b"slurmstepd", f"{step}/slurm", group=698),
        process(705, 700, b"starter", f"{step}/user/task_0", uid=5001, threads=8),
        process(
            721,
            705,
            b"python3",
            f"{step}/user/task_0",
            uid=5001,
            group=705,
            threads=4,
            state="R",
            memory=PROGRAM,
            mounts=IMAGE_MOUNTS,
        ),
        process(722, 721, b"sh", f"{step}/user/task_0", uid=5001, group=705, mounts=IMAGE_MOUNTS),
    ]


def containers() -> list[Process]:
    """A container of docker, one of root's podman, one of a user's."""
    docker = f"/system.slice/docker-{container_id('docker')}.scope"
    podman = container_id("podman")
    rootless = container_id("rootless")
    of_user = "/user.slice/user-1004.slice/user@1004.service"
    return [
        process(1200, 1, b"containerd-shim", "/system.slice/containerd.service", threads=11),
        process(1220, 1200, b"nginx", docker, nested=1, mounts=IMAGE_MOUNTS),
        process(1245, 1220, b"nginx", docker, uid=101, group=1220, nested=29, mounts=IMAGE_MOUNTS),
        process(1260, 1200, b"sh", docker, nested=40, mounts=IMAGE_MOUNTS),
        process(1300, 1, b"conmon", f"/machine.slice/libpod-conmon-{podman}.scope"),
        process(
            1302,
            1300,
            b"redis-server",
            f"/machine.slice/libpod-{podman}.scope/container",
            nested=1,
            mounts=IMAGE_MOUNTS,
        ),
        process(1400, 1, b"systemd", f"{of_user}/init.scope", uid=1004),
        process(
            1410, 1400, b"conmon", f"{of_user}/user.slice/libpod-conmon-{rootless}.scope", uid=1004
        ),
        process(
            1412,
            1410,
            b"postgres",
            f"{of_user}/user.slice/libpod-{rootless}.scope/container",
            uid=SUBORDINATE,
            memory=PROGRAM,
            nested=1,
            mounts=IMAGE_MOUNTS,
        ),
    ]


def pretender() -> list[Process]:
    """A user who imitates the cgroup of a job, and names a shell like Apptainer's starter."""
    spoofed = (
        "/user.slice/user-1004.slice/user@1004.service/app.slice/slurmstepd.scope/job_13/step_0"
    )
    session = "/user.slice/user-1004.slice/session-3.scope"
    return [
        process(1500, 1, b"sshd", session),
        process(1504, 1500, b"sshd", session, uid=1004, group=1500),
        process(1505, 1504, b"bash", session, uid=1004),
        process(1550, 1505, b"pretend", spoofed, uid=1004, state="R"),
        process(1560, 1505, b"starter-suid", session, uid=1004, mounts=HOST_MOUNTS),
        process(1561, 1560, b"bash", session, uid=1004, mounts=HOST_MOUNTS),
    ]


def machine() -> Composed:
    """Two cores of two threads, four of one; cpu3 is offline."""
    processes = [
        *system_processes(),
        *batch_job(),
        *apptainer_job(),
        *containers(),
        *pretender(),
    ]
    offline = 3
    cpus = [
        hardware.Cpu(number=number, package=0, core=number // 2 * 4 if number < 4 else number + 4)
        for number in range(8)
        if number != offline
    ]
    ticks = {
        cpu.number: (70_000 + cpu.number, 12, 9_000, TICKS - 80_000, 40, 3, 17, 0, 0, 0)
        for cpu in cpus
    }
    files = {
        "proc/cpuinfo": hardware.cpuinfo(
            hardware.x86_cpu(
                cpu,
                model=154,
                model_name="12th Gen Intel(R) Core(TM) i3-1215U",
                cores=6,
                siblings=7,
                megahertz=2496.0,
            )
            for cpu in cpus
        ),
        "proc/stat": hardware.stat(ticks, boot=int(TIME - UPTIME), created=20_345, running=5),
        "proc/meminfo": hardware.meminfo(
            {
                "MemTotal": 32_594_308,
                "MemFree": 20_971_520,
                "MemAvailable": 27_262_976,
                "Buffers": 204_800,
                "Cached": 6_291_456,
                "SwapTotal": 0,
                "SwapFree": 0,
                "Shmem": 262_144,
            }
        ),
        "proc/loadavg": "3.12 2.80 1.90 5/312 1550\n",
        "proc/diskstats": hardware.diskstats(
            [
                (7, 0, "loop0", "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"),
                (
                    259,
                    0,
                    "nvme0n1",
                    "3021 76 26074 614 631 181 4732 219 0 234 988 342 1 975 14 44 1",
                ),
            ]
        ),
        "proc/sys/kernel/pid_max": "4194304\n",
        **hardware.kernel_version("6.8.0-60-generic"),
        **hardware.cpu_files(cpus, offline=[offline]),
        **hardware.node_files([[10]]),
    }
    return Composed(
        name="v2-containers",
        machine=description(
            origin="a small node of Slurm with cgroup v2 that also runs containers; the cgroup "
            "lines of job 2 were seen on a real one",
            hostname="v2vm",
            cluster="v2.example.org",
            time=TIME,
            uptime=UPTIME,
            users=USERS,
            processes=processes,
        ),
        files=files,
        processes=processes,
    )
