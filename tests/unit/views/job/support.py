"""Figures of jobs: one that is good in everything, and changes to it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ccagent.stores.metrics.page_settings import JobThresholds
from ccagent.views.amounts import GB
from ccagent.views.job.figures import CardFigures, CoreUse, JobFigures, NodeFigures
from ccagent.views.job.mounts import JobMounts
from ccagent.views.job.rules import JobReport, make_report

HOUR = 3600.0


def card(name: str = "0", **changes: Any) -> CardFigures:
    good = CardFigures(
        card=name, utilization=80.0, samples=240, memory_peak=60 * GB,
        memory_total=80 * GB,
    )  # fmt: skip
    return structs.replace(good, **changes)


def node(name: str = "n1", **changes: Any) -> NodeFigures:
    """Return 16 of 32 cores for 2 hours, 95 % used."""
    good = NodeFigures(
        name=name, cores=16, cpu_seconds=0.95 * 16 * 2 * HOUR, memory_limit=64 * GB,
        memory_peak=50 * GB, memory_charged=60 * GB, memory_pressure=0.0, oom_kills=0,
        load=16, samples=240,
        total_cores=32, total_memory=128 * GB,
    )  # fmt: skip
    return structs.replace(good, **changes)


def job(*nodes: NodeFigures, **changes: Any) -> JobFigures:
    """Return a job that has completed after 2 of 3 hours, with the same use at all times."""
    good = JobFigures(
        job="4711", cluster="fox", user="alice", account="phys", name="relax.sh",
        partition="normal", state="COMPLETED", exit_code=0, start=1_800_000_000,
        stop=1_800_007_200, elapsed=2 * HOUR, time_limit=3 * HOUR, gpus=0, period=30,
        expected_samples=240, nodes=nodes or (node(),),
    )  # fmt: skip
    found = structs.replace(good, **changes)
    used = [one.cpu_seconds for one in found.nodes if one.cpu_seconds is not None]
    if "use" in changes or not used or not found.elapsed:
        return found
    mean = sum(used) / found.elapsed
    return structs.replace(found, use=CoreUse(peak=mean, high=mean))


def report(figures: JobFigures, mounts: JobMounts | None = None, **limits: Any) -> JobReport:
    return make_report(figures, JobThresholds(**limits), mounts)


def levels(figures: JobFigures, mounts: JobMounts | None = None, **limits: Any) -> dict[str, str]:
    """Return the levels of all findings by rule."""
    return {one.rule: one.level for one in report(figures, mounts, **limits).findings}


def text(figures: JobFigures, rule: str, **limits: Any) -> str:
    """Return the text of the finding of a rule."""
    return next(one.text for one in report(figures, **limits).findings if one.rule == rule)
