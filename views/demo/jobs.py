"""Simulated jobs: good jobs, and per verdict a job that gets it and a job just below it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import structs

from ccagent.views.demo.mounts import HOME, LOCAL, SCRATCH, DemoMount

Shape = Literal["steady", "starts-only", "stops", "fades", "waves", "grows"]

FIRST_JOB = 4711001


class DemoJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the simulated cluster. All amounts are of one node.

    began: hours before now. hours: run time, None: still running. limit: hours. memory: requested
    GB (1024^3). cpu: share of the cores in use; a tuple: by node. rss, cache: shares of the memory
    used by programs and by the page cache. gpu: percent by card, None: not reported. kept: share
    of the samples that arrived. shows: the verdict that the job demonstrates. mounts: its file
    systems, if agents report them.
    """

    name: str
    user: str
    account: str
    shows: str = ""
    partition: str = "normal"
    nodes: int = 1
    cores: int = 8
    memory: float = 32.0
    began: float
    hours: float | None = None
    limit: float = 12.0
    state: str = "COMPLETED"
    exit_code: int = 0
    cpu: float | tuple[float, ...] = 0.95
    shape: Shape = "steady"
    rss: float = 0.78
    cache: float = 0.05
    pressure: float = 0.3
    oom_kills: int = 0
    threads: float = 1.0
    gpu: tuple[float | None, ...] = ()
    gpu_memory: float = 0.5
    kept: float = 1.0
    is_exclusive: bool = False
    mounts: tuple[DemoMount, ...] = ()


def demo_jobs() -> list[DemoJob]:
    """Return the jobs of a day. Jobs that demonstrate a verdict come first."""
    return [*_shown(), *_good()]


def _shown() -> list[DemoJob]:
    gpu = DemoJob(name="", user="", account="", partition="gpu", cores=16, memory=120.0, began=1)
    return [
        DemoJob(name="relax.sh", user="alice", account="phys", shows="ok", nodes=2, cores=32,
                memory=120, began=3.4, hours=3.21, limit=4, mounts=(SCRATCH, HOME)),
        structs.replace(gpu, name="train.py", user="bob", account="ml", shows="gpu-idle", cpu=0.4,
                began=2.08, limit=24, gpu=(42, 0), mounts=(SCRATCH, LOCAL, HOME)),
        structs.replace(gpu, name="train-2.py", user="bob", account="ml", shows="just not gpu-idle",
                cpu=0.5, began=5, hours=4.3, limit=6, gpu=(61, 30)),
        structs.replace(gpu, name="stalled.py", user="kim", account="ml", shows="gpu-idle", cpu=0.3,
                began=6.2, limit=24, shape="starts-only", gpu=(83,)),
        structs.replace(gpu, name="infer", user="kim", account="ml", shows="gpu-low", cpu=0.6,
                began=7,
                hours=5.1, limit=8, gpu=(11,), gpu_memory=0.2),
        structs.replace(gpu, name="tune", user="kim", account="ml", shows="gpu-low hint", cpu=0.7,
                began=9, hours=6.4, limit=8, gpu=(21,)),
        structs.replace(gpu, name="tune-large", user="kim", account="ml", shows="just not gpu-low",
                cpu=0.7, began=9, hours=6.2, limit=8, gpu=(27,), gpu_memory=0.7),
        DemoJob(name="mpi-split", user="dave", account="chem", shows="cpu-zero", nodes=2, cores=32,
                memory=96, cpu=(0.96, 0.0), began=4, hours=3.4, limit=4),
        DemoJob(name="mpi-pair", user="dave", account="chem", shows="just not cpu-zero", nodes=2,
                cores=32, memory=96, cpu=(0.97, 0.92), began=8, hours=3.2, limit=4),
        DemoJob(name="pipeline", user="carol", account="bio", shows="cpu-low", cores=16, cpu=0.38,
                began=10, hours=5.5, limit=8),
        DemoJob(name="mapper", user="carol", account="bio", shows="cpu-low hint", cores=16,
                cpu=0.73, began=12, hours=6, limit=8),
        DemoJob(name="mapper-2", user="carol", account="bio", shows="just not cpu-low", cores=16,
                cpu=0.83, began=14, hours=6, limit=8),
        DemoJob(name="fit", user="dave", account="stat", shows="serial", cores=16, cpu=0.0618,
                rss=0.81, began=9, hours=5, limit=6),
        DemoJob(name="fit-threads", user="dave", account="stat", shows="just not serial", cores=16,
                cpu=0.09, rss=0.81, began=15, hours=5, limit=6),
        DemoJob(name="assemble", user="carol", account="bio", shows="mem-limit", cores=16,
                cpu=0.71, shape="grows", rss=0.994, cache=0.006, oom_kills=3, pressure=4,
                began=1.5, hours=0.685, limit=8, state="OUT_OF_MEMORY", exit_code=125),
        DemoJob(name="matrix", user="erin", account="phys", shows="mem-limit hint", memory=64,
                rss=0.93, began=6, hours=4, limit=6),
        DemoJob(name="reclaim", user="erin", account="phys", shows="mem-limit hint", memory=16,
                rss=0.86, cache=0.13, pressure=24, began=11, hours=4, limit=6),
        DemoJob(name="matrix-2", user="erin", account="phys", shows="just not mem-limit",
                memory=64, rss=0.86, cache=0.02, began=16, hours=4, limit=6),
        DemoJob(name="convert", user="frank", account="geo", shows="mem-excess", memory=180,
                rss=0.04, cache=0.7, began=5, hours=3, limit=4),
        DemoJob(name="gridder", user="frank", account="geo", shows="mem-excess hint", memory=100,
                rss=0.45, cache=0.3, began=9, hours=3, limit=4),
        DemoJob(name="gridder-2", user="frank", account="geo", shows="just not mem-excess",
                memory=100, rss=0.74, cache=0.2, began=13, hours=3, limit=4),
        DemoJob(name="solver", user="grace", account="chem", shows="time", cores=32, memory=96,
                began=12.5, hours=6, limit=6, state="TIMEOUT", exit_code=0),
        DemoJob(name="quick", user="grace", account="chem", shows="time", cores=32, memory=96,
                began=3, hours=1.2, limit=24),
        DemoJob(name="guess", user="grace", account="chem", shows="time hint", cores=32, memory=96,
                began=18, hours=5, limit=12),
        DemoJob(name="planned", user="grace", account="chem", shows="just not time", cores=32,
                memory=96, began=22, hours=5, limit=7.5),
        DemoJob(name="omp-too-many", user="heidi", account="geo", shows="oversubscribed", cores=64,
                memory=200, threads=2.6, began=4, limit=12, is_exclusive=True),
        DemoJob(name="omp-right", user="heidi", account="geo", shows="just not oversubscribed",
                cores=64, memory=200, threads=1.1, began=4, limit=12,
                is_exclusive=True),
        DemoJob(name="scatter", user="ivan", account="stat", shows="fragmented", nodes=4, cores=4,
                memory=16, began=7, hours=4, limit=6),
        DemoJob(name="whole", user="ivan", account="stat", shows="just not fragmented", nodes=2,
                cores=40, memory=120, began=7, hours=4, limit=6),
        DemoJob(name="loader", user="judy", account="ml", shows="gpu-share", partition="gpu",
                cores=32, memory=120, cpu=0.85, began=8, hours=4, limit=6, gpu=(74,)),
        DemoJob(name="loader-2", user="judy", account="ml", shows="just not gpu-share",
                partition="gpu", cores=20, memory=100, cpu=0.85, began=13, hours=4, limit=6,
                gpu=(77,)),
        DemoJob(name="ensemble", user="mallory", account="geo", shows="ended-early", cores=32,
                memory=96, shape="stops", cpu=0.99, began=8, hours=6, limit=8),
        DemoJob(name="ensemble-2", user="mallory", account="geo", shows="just not ended-early",
                cores=32, memory=96, shape="fades", cpu=0.99, began=15, hours=6, limit=8),
        DemoJob(name="test.sh", user="alice", account="phys", shows="short", cores=2, memory=4,
                began=0.9, hours=0.011, limit=1, state="FAILED", exit_code=1),
        DemoJob(name="lossy", user="alice", account="phys", shows="unknown", cores=16, cpu=0.3,
                began=10, hours=4, limit=6, kept=0.7),
        DemoJob(name="mig", user="judy", account="ml", shows="unknown", partition="gpu", cores=8,
                memory=48, began=3, limit=12, gpu=(None,)),
    ]  # fmt: skip


def _good() -> list[DemoJob]:
    """Return jobs without findings that fill the cluster."""
    found: list[DemoJob] = []
    people = (
        ("alice", "phys"), ("erin", "phys"), ("grace", "chem"), ("carol", "bio"), ("frank", "geo"),
    )  # fmt: skip
    for number in range(80):
        user, account = people[number % len(people)]
        hours = 2.5 + number * 7 % 11 / 2
        began = 23.5 - number * 13 % 23
        is_running = began < hours + 0.5
        found.append(
            DemoJob(
                name=("md", "cfd", "qm", "align", "climate")[number % 5] + f"-{number:02}",
                user=user, account=account, nodes=(1, 1, 2, 1, 3)[number % 5],
                cores=(16, 32, 64, 24, 64)[number % 5], memory=(48, 96, 200, 64, 220)[number % 5],
                began=began, hours=None if is_running else hours, limit=round(hours * 1.2, 1),
                cpu=0.9 + number % 7 / 100, rss=0.72 + number % 9 / 80,
                shape=("steady", "waves")[number % 2],
            )
        )  # fmt: skip
    for number in range(24):
        hours, began = 4.0 + number % 4, 22.0 - 2.5 * number % 21
        is_running = began < hours + 0.5
        found.append(
            DemoJob(
                name=f"llm-{number}", user=("judy", "bob")[number % 2], account="ml",
                partition="gpu", cores=32, memory=200, began=began,
                hours=None if is_running else hours, limit=hours * 1.2, cpu=0.86,
                gpu=(88.0, 91.0), gpu_memory=0.85, rss=0.74,
            )
        )  # fmt: skip
    return found
