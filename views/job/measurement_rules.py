"""Rules for missing measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.job.amounts import clock, number, percent, plural
from ccagent.views.job.finding import JobFinding

if TYPE_CHECKING:
    from ccagent.views.job.finding import JudgedJob


def judge_shortness(job: JudgedJob) -> JobFinding | None:
    """Find jobs with too few samples, or with a too short run time."""
    samples, fewest = job.figures.samples, job.limits.fewest_samples
    if samples >= fewest:
        return _find_early(job)
    if not samples and job.is_long:
        return JobFinding(
            "short",
            "unknown",
            f"no samples of its {clock(job.figures.elapsed)}: they are older than the retention,"
            " or ccagent's agent metrics does not run there (ccagent doctor).",
        )
    if job.is_long:
        return JobFinding(
            "short",
            "unknown",
            f"{plural(samples, 'sample')} in {clock(job.figures.elapsed)}, {fewest} are needed:"
            " ccagent's agent metrics does not run there all the time (ccagent doctor).",
        )
    waits = " Ask again in a minute." if job.figures.is_running else ""
    return JobFinding(
        "short",
        "short",
        f"too short: {plural(samples, 'sample')} in {clock(job.figures.elapsed)},"
        f" {fewest} are needed.{waits}",
    )


def _find_early(job: JudgedJob) -> JobFinding | None:
    """Return the finding that the job's run time is too short for rules about use."""
    if job.is_long:
        return None
    return JobFinding(
        "short",
        "short",
        f"too short to judge its use: {clock(job.figures.elapsed)}, more than"
        f" {job.limits.min_runtime} are needed.",
    )


def judge_measurement(job: JudgedJob) -> JobFinding | None:
    """Find gaps in the samples, and nodes without samples."""
    coverage = job.figures.coverage
    if coverage is None or coverage >= job.limits.coverage:
        return _find_unknown_cpu(job)
    nodes = job.figures.nodes
    silent = [node.name for node in nodes if not node.samples]
    text = f"{percent(coverage)} % of the samples are there"
    if silent:
        names = ", ".join(silent[:4]) + (", ..." if len(silent) > 4 else "")
        text += (
            f", {len(nodes) - len(silent)} of {plural(len(nodes), 'node')} reported (not {names})"
        )
    return JobFinding(
        "unknown",
        "unknown",
        f"{text}; below {number(job.limits.coverage)} % findings from samples are not BAD.",
    )


def _find_unknown_cpu(job: JudgedJob) -> JobFinding | None:
    if job.efficiency.cpu is not None or job.figures.samples < job.limits.fewest_samples:
        return None
    why = "how many cores it has" if job.cores is None else "how much of its cores it used"
    return JobFinding(
        "unknown",
        "unknown",
        f"nothing reports {why}: the CPU use is unknown. Send jobs (agent jobs) and metrics"
        " (agent metrics, job_cpu_util) to the store.",
    )


def judge_unknown_gpus(job: JudgedJob) -> JobFinding | None:
    """Find cards whose utilization is unknown, as with MIG, or only partly known."""
    dumb = [card.card for _, card in job.figures.cards if card.utilization is None]
    if dumb:
        which = f"GPU {dumb[0]}" if len(dumb) == 1 else plural(len(dumb), "GPU")
        return JobFinding(
            "gpu-unknown",
            "unknown",
            f"the use of {which} is unknown: a card with MIG does not report it, or no sample has"
            " it. Unknown is not 0, so it is not judged.",
        )
    thin = [card for _, card in job.figures.cards if not job.has_use_of(card)]
    if thin and job.is_long:
        which = f"GPU {thin[0].card}" if len(thin) == 1 else plural(len(thin), "GPU")
        least = min(card.coverage or 0.0 for card in thin)
        return JobFinding(
            "gpu-unknown",
            "unknown",
            f"the use of {which} is known of {percent(least)} % of the time; below"
            f" {number(job.limits.coverage)} % it is not judged.",
        )
    if job.figures.gpus and not job.figures.cards and job.figures.samples:
        return JobFinding(
            "gpu-unknown",
            "unknown",
            f"the use of its {plural(job.figures.gpus, 'GPU')} is unknown: nothing reports its"
            " cards. Send events (agent jobs), or metrics of the agent sample.",
        )
    return None
