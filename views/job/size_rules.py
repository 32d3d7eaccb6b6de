"""Rules for requested memory, time and nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.views.job.amounts import (
    GB,
    clock,
    memory,
    memory_of,
    number,
    percent,
    plural,
    request_memory,
    request_time,
)
from ccagent.views.job.finding import JobFinding

if TYPE_CHECKING:
    from ccagent.views.job.figures import NodeFigures
    from ccagent.views.job.finding import FindingLevel, JudgedJob


def judge_memory_limit(job: JudgedJob) -> JobFinding | None:
    """Find jobs that reached or almost reached their memory limit."""
    margin = number(job.limits.mem_margin)
    node = _fullest(job)
    if job.is_out_of_memory:
        is_stopped = not job.figures.is_running and job.figures.state != "COMPLETED"
        text = "stopped: out of memory" if is_stopped else "short of memory"
        if job.kills:
            text += f", {job.kills} process{'es' if job.kills != 1 else ''} killed"
        limit = node.memory_limit if node is not None else None
        if limit is None:
            return JobFinding("mem-limit", "BAD", f"{text}. Ask for more with --mem.")
        new = request_memory(limit * (1 + job.limits.mem_margin / 100))
        return JobFinding(
            "mem-limit",
            "BAD",
            f"{text}. It needed more than {memory(limit)}; how much is unknown. Try"
            f" --mem={new} (limit + {margin} %).",
        )
    if node is not None and node.memory_peak is not None and node.memory_limit:
        share = 100 * node.memory_peak / node.memory_limit
        if share >= job.limits.mem_limit_hint:
            new = request_memory(node.memory_peak * (1 + job.limits.mem_margin / 100))
            return JobFinding(
                "mem-limit",
                "hint",
                f"{percent(share)} % of {memory(node.memory_limit)} memory at the peak on"
                f" {node.name}; from {number(job.limits.mem_limit_hint)} % on, slightly more input"
                f" can end the job. Try --mem={new} (peak + {margin} %).",
            )
    pressure = [one for one in job.figures.nodes if one.memory_pressure is not None]
    worst = max(pressure, key=lambda one: one.memory_pressure or 0.0, default=None)
    if worst is None or (worst.memory_pressure or 0.0) < job.limits.mem_limit_pressure:
        return None
    base = worst.memory_limit or worst.memory_charged or GB
    new = request_memory(base * (1 + job.limits.mem_margin / 100))
    return JobFinding(
        "mem-limit",
        "hint",
        f"{percent(worst.memory_pressure or 0.0)} % of the time a task waited for memory on"
        f" {worst.name}; from {number(job.limits.mem_limit_pressure)} % on it slows the job. Try"
        f" --mem={new}.",
    )


def _fullest(job: JudgedJob) -> NodeFigures | None:
    """Return the node with the highest share of its memory limit; None without limits."""
    limited = [node for node in job.figures.nodes if node.memory_limit]
    return max(
        limited, key=lambda one: (one.memory_peak or 0.0) / (one.memory_limit or 1.0), default=None
    )


def judge_memory_excess(job: JudgedJob) -> JobFinding | None:
    """Find ended jobs whose programs used much less memory than allocated."""
    used, limits = job.efficiency.memory, job.limits
    if used is None or job.figures.is_running or not job.is_long or job.is_out_of_memory:
        return None
    if job.is_partial:
        return None  # the peak may be in the missing samples
    if used.percent >= limits.mem_excess_hint or _needs_no_request(job, used.total):
        return None
    level: FindingLevel = "BAD" if used.percent < limits.mem_excess_bad else "hint"
    border = limits.mem_excess_bad if level == "BAD" else limits.mem_excess_hint
    node = _fullest(job)
    peak = (node.memory_peak if node is not None else None) or 0.0
    new = request_memory(peak * (1 + limits.mem_margin / 100))
    return JobFinding(
        "mem-excess",
        level,
        f"{percent(used.percent)} % of memory used: {memory_of(used.used, used.total)},"
        f" page cache not counted; below {number(border)} %"
        f" others could use the rest. Try --mem={new} (peak + {number(limits.mem_margin)} %).",
    )


def _needs_no_request(job: JudgedJob, total: float) -> bool:
    """Return whether the memory comes with the cores, GPUs or nodes, without a request."""
    limits, cores = job.limits, job.cores
    if job.figures.is_exclusive:
        return True
    default = limits.default_memory_per_core * GB
    if default and cores is not None and total <= default * cores:
        return True
    gpus = job.figures.gpu_count
    if gpus and total <= limits.mem_excess_per_gpu * GB * gpus:
        return True
    known = [node for node in job.figures.nodes if node.cores and node.total_cores]
    return bool(known) and all(
        100 * (node.cores or 0.0) / (node.total_cores or 1.0) >= limits.mem_excess_node
        for node in known
    )


def judge_time(job: JudgedJob) -> JobFinding | None:
    """Find jobs that reached their time limit, and jobs that used little of it."""
    elapsed, limit, limits = job.figures.elapsed, job.figures.time_limit, job.limits
    if job.figures.state == "TIMEOUT":
        new = request_time((limit or elapsed) * (1 + limits.mem_margin / 100))
        return JobFinding(
            "time",
            "BAD",
            f"stopped at its time limit of {clock(limit or elapsed)} before it was done. Try"
            f" --time={new}, or write checkpoints and continue from them.",
        )
    used = job.efficiency.time
    if used is None or job.figures.state != "COMPLETED":
        return None
    if elapsed <= limits.time_min_runtime.seconds or used.percent >= limits.time_hint:
        return None
    level: FindingLevel = "BAD" if used.percent < limits.time_bad else "hint"
    border = limits.time_bad if level == "BAD" else limits.time_hint
    return JobFinding(
        "time",
        level,
        f"{percent(used.percent)} % of its time limit: {clock(elapsed)} of {clock(used.total)};"
        f" below {number(border)} % it waits in the queue longer than needed. Try"
        f" --time={request_time(elapsed * 1.2)}.",
    )


def judge_fragmentation(job: JudgedJob) -> JobFinding | None:
    """Find jobs with more nodes than needed."""
    nodes = job.figures.nodes
    if len(nodes) < 2:
        return None
    if job.has_gpus:
        return _fragmented_gpus(job)
    limits = job.limits
    known = [node for node in nodes if node.cores and node.total_cores]
    if len(known) < len(nodes):
        return None
    cores = sum(node.cores or 0.0 for node in known)
    largest = min(node.total_cores or 0.0 for node in known)
    share = cores / sum(node.total_cores or 0.0 for node in known)
    sized = [node for node in nodes if node.memory_peak is not None and node.total_memory]
    fullest = max(
        ((node.memory_peak or 0.0) / (node.total_memory or 1.0) for node in sized), default=None
    )
    enough = math.ceil(cores / largest)
    if sized:
        most = min(node.total_memory or 0.0 for node in sized)
        needed = sum(node.memory_peak or 0.0 for node in sized)
        enough = max(enough, math.ceil(needed / (limits.fragmented_memory * most)))
    if share >= limits.fragmented_cores or enough >= len(nodes):
        return None
    if fullest is None or fullest >= limits.fragmented_memory:
        return None
    return JobFinding(
        "fragmented",
        "hint",
        f"{number(cores)} cores on {len(nodes)} nodes: {percent(100 * share)} % of each, below"
        f" {number(100 * limits.fragmented_cores)} %, and at most {percent(100 * fullest)} % of the"
        f" memory (limit {number(100 * limits.fragmented_memory)} %). {plural(enough, 'node')}"
        f" would do: --nodes={enough}.",
    )


def _fragmented_gpus(job: JudgedJob) -> JobFinding | None:
    """Find GPUs that would fit on fewer nodes."""
    nodes = job.figures.nodes
    totals = [node.total_cards for node in nodes if node.total_cards]
    count = len(job.figures.cards)
    if len(totals) < len(nodes) or not count:
        return None
    enough = math.ceil(count / min(totals))
    if enough >= len(nodes):
        return None
    return JobFinding(
        "fragmented",
        "hint",
        f"{count} GPUs on {len(nodes)} nodes, which have {min(totals)} each:"
        f" {plural(enough, 'node')} would do, and GPUs of one node exchange data faster. Ask for"
        f" --nodes={enough}.",
    )
