"""Rules for the use of CPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.views.job import amounts
from ccagent.views.job.amounts import clock, number, percent, plural
from ccagent.views.job.finding import JobFinding

if TYPE_CHECKING:
    from ccagent.views.job.finding import FindingLevel, JudgedJob


def judge_unused_nodes(job: JudgedJob) -> JobFinding | None:
    """Find nodes with almost no CPU time."""
    if not job.is_long:
        return None
    limit, elapsed = job.limits.cpu_zero, job.figures.elapsed
    known = [
        node
        for node in job.figures.nodes
        if node.cpu_seconds is not None and (job.is_partial or job.has_samples_of(node))
    ]
    unused = [node for node in known if 100 * (node.cpu_seconds or 0.0) / elapsed <= limit]
    if not unused:
        return None
    most = max(node.cpu_seconds or 0.0 for node in unused)
    text = f"{number(most)} s of CPU time in {clock(elapsed)}"
    border = f"up to {number(limit)} % of one core counts as none"
    if len(unused) == len(job.figures.nodes):
        where = "The job" if len(unused) == 1 else f"None of the {len(unused)} nodes"
        does = "has used" if len(unused) == 1 else "has worked: at most"
        return JobFinding(
            "cpu-zero",
            "BAD",
            f"{where} {does} {text}; {border}. Look at its output for what it waits for, or end it"
            f" (scancel {job.figures.job}).",
        )
    names = ", ".join(node.name for node in unused[:4]) + (", ..." if len(unused) > 4 else "")
    left = len(job.figures.nodes) - len(unused)
    return JobFinding(
        "cpu-zero",
        "BAD",
        f"{plural(len(unused), 'node')} of {len(job.figures.nodes)} did nothing ({names}): at most"
        f" {text}; {border}. Ask for {plural(left, 'node')} (--nodes={left}), or start the program"
        " on all of them (srun, mpirun).",
    )


def judge_serial(job: JudgedJob) -> JobFinding | None:
    """Find jobs with the CPU time of one core on several cores."""
    used, limits, cores = job.efficiency.cpu, job.limits, job.cores
    if used is None or cores is None or not job.is_long or job.has_gpus:
        return None
    if len(job.figures.nodes) != 1 or (job.wanted_cores or cores) <= 1:
        return None
    work = used.percent * cores / 100
    if not limits.serial_from < work < limits.serial_to:
        return None
    unused = amounts.core_time(used.total - used.used)
    return JobFinding(
        "serial",
        "BAD",
        f"one core's work on {number(cores)}: {percent(used.percent)} % is {amounts.cores(work)}"
        f" (between {number(limits.serial_from)} and {number(limits.serial_to)} counts as one);"
        f" {unused} unused. Ask for --cpus-per-task=1, or start the program with"
        " threads.",
    )


def judge_low_cpu(job: JudgedJob) -> JobFinding | None:
    """Find a low CPU use of jobs without GPUs."""
    used, limits, cores = job.efficiency.cpu, job.limits, job.cores
    if used is None or not job.is_long or job.has_gpus:
        return None
    wanted = job.wanted_cores
    # The job can use at most the cores that it asked for.
    share = used.percent * cores / wanted if cores and wanted else used.percent
    level: FindingLevel
    if share < limits.cpu_low_bad:
        level, border = "BAD", f"below {number(limits.cpu_low_bad)} % is BAD"
    elif share <= limits.cpu_low_hint:
        level, border = "hint", f"up to {number(limits.cpu_low_hint)} % is low"
    else:
        return None
    of_wanted = f" of the {number(wanted)} cores asked for" if wanted and wanted != cores else ""
    target = number(limits.cpu_target)
    advice = "Find out what it waits for (files, network, other tasks)"
    if cores is not None and wanted is not None and cores > 1:
        enough = max(1, math.ceil(used.percent * cores / limits.cpu_target))
        if enough < wanted:
            advice = (
                f"Ask for {plural(enough, 'core')} (--ntasks or --cpus-per-task), or find out what"
                " it waits for"
            )
    return JobFinding(
        "cpu-low",
        level,
        f"{percent(share)} % CPU use{of_wanted}; {border}, the target is {target} %. {advice}.",
    )


def judge_oversubscription(job: JudgedJob) -> JobFinding | None:
    """Find more running threads than cores, or on exclusive nodes a load above the cores."""
    limits = job.limits
    if not job.is_long:
        return None
    for node in job.figures.nodes:
        if not node.cores:
            continue
        for value, limit, thing in (
            (node.running_threads, limits.threads_per_core, "running threads"),
            (node.load if job.figures.is_exclusive else None, limits.load_per_core, "load"),
        ):
            if value is not None and value > limit * node.cores:
                return JobFinding(
                    "oversubscribed",
                    "hint",
                    f"{number(value)} {thing} on {number(node.cores)} cores of {node.name}, above"
                    f" {number(limit)} a core: they take turns. Start"
                    f" {plural(int(node.cores), 'thread')} (OMP_NUM_THREADS), or ask for more"
                    " (--cpus-per-task).",
                )
    return None


def judge_early_end(job: JudgedJob) -> JobFinding | None:
    """Find jobs without GPUs whose CPU use stopped long before their end."""
    if not job.is_long or job.has_gpus:
        return None
    known = [
        (node.cores_first, node.cores_last)
        for node in job.figures.nodes
        if node.cores_first is not None and node.cores_last is not None
    ]
    first, last = sum(one for one, _ in known), sum(one for _, one in known)
    limit = job.limits.ended_early
    if not known or first <= 0 or 100 * last / first >= limit:
        return None
    return JobFinding(
        "ended-early",
        "hint",
        f"{amounts.cores(last)} in use in the last third of {clock(job.figures.elapsed)}, after"
        f" {number(first)} in the first (less than {number(limit)} %): the work ended before the"
        " job. End the script with it, or split the job (--dependency).",
    )
