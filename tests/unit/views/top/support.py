"""A node with jobs of several kinds, as `ccagent top` shows it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ccagent.views.top.screen import draw
from ccagent.views.top.snapshot import TopCard, TopJob, TopProcess, TopSnapshot, find_notes
from ccagent.views.top.state import ViewState

G = 1024.0**3


def top_job(number: int, **more: Any) -> TopJob:
    found = TopJob(
        job=number, user="alice", name="relax.sh", partition="normal", cpus=32, cores=31.3,
        cpu=97.8, processes=33, threads=41, memory=101 * G, memory_limit=120 * G, peak=110 * G,
        charged=112 * G, cache=1.2 * G, pressure=(3.0, 0.0, 0.2), read=12e6, written=1.1e6,
        elapsed=11560.0, time_limit=86400.0, history=(97.8,) * 20, watched=60.0,
    )  # fmt: skip
    return structs.replace(found, **more)


def noted(job: TopJob, *cards: TopCard) -> TopJob:
    return structs.replace(job, notes=find_notes(job, cards))


CARDS = (
    TopCard(index=0, utilization=91.0, memory=int(31 * G), memory_percent=39.0, power=300, job=1),
    TopCard(index=1, utilization=42.0, memory=int(8 * G), power=120, job=4711007, user="bob"),
    TopCard(index=2, utilization=0.0, power=60, job=4711007, idle=600.0, temperature=31),
    TopCard(index=3, utilization=None, is_failing=True),
)
JOBS = (
    noted(top_job(4711001)),
    noted(top_job(4711012, user="carol", cpus=16, cores=11.4, cpu=71.0, memory=31.8 * G,
                  memory_limit=32 * G, elapsed=2467.0, name="assemble")),
    noted(top_job(4711007, user="bob", name="train.py", cpus=8, cores=1.0, cpu=12.0,
                  memory=4.4 * G, memory_limit=64 * G, gpus=(1, 2), gpu=21.0, gpu_memory=int(8 * G),
                  power=180, read=0.0, written=0.0, history=(10.0, 20.0) * 10), *CARDS),
    TopJob(job=0, cores=0.6, cpu=1.0, processes=200, threads=300, memory=9.1 * G, read=40e3,
           written=210e3),
)  # fmt: skip
PROCESSES = (
    TopProcess(pid=1, ppid=0, user="root", job=0, command="systemd", cpu=0.1, memory=12 << 20,
               threads=1, cpu_time=60, read=0.0, written=0.0),
    TopProcess(pid=900, ppid=1, user="bob", job=4711007, command="bash", cpu=0.0, memory=1 << 20,
               threads=1, cpu_time=0, read=None, written=None),
    TopProcess(pid=901, ppid=900, user="bob", job=4711007, command="train.py", cpu=96.0,
               memory=4 << 30, threads=41, cpu_time=7000, read=None, written=None, gpus=(1,),
               gpu=42.0, gpu_memory=8 << 30),
)  # fmt: skip


def snapshot(**more: Any) -> TopSnapshot:
    found = TopSnapshot(
        node="n042", cluster="fox", time=1_800_000_000.0, uptime=12.0 * 86400, load=46.1,
        cpus=(70.0,) * 64, memory_used=147 * G, memory_total=256 * G, jobs=JOBS,
        processes=PROCESSES, cards=CARDS,
    )  # fmt: skip
    return structs.replace(found, **more)


def screen(
    state: ViewState | None = None, width: int = 80, height: int = 12, **more: Any
) -> list[str]:
    """Return the lines of a screen, without the spaces at their ends."""
    found = draw(snapshot(**more), state or ViewState(), width, height)
    return [line.text.rstrip() for line in found.lines]
