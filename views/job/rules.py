"""Rules for requests and measurements, the table of all rules, and the report with its verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ccagent.stores.metrics.page_settings import JobThresholds
from ccagent.views.amounts import (
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
from ccagent.views.job.figures import (
    Efficiency,
    FindingLevel,
    JobFigures,
    JobFinding,
    JudgedJob,
    Judgement,
    compute_efficiency,
)
from ccagent.views.job.use_rules import (
    judge_early_end,
    judge_few_sms,
    judge_gpu_share,
    judge_idle_gpus,
    judge_low_cpu,
    judge_low_gpus,
    judge_oversubscription,
    judge_serial,
    judge_unused_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.views.job.figures import NodeFigures


def judge_memory_limit(job: JudgedJob) -> Judgement | None:
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
            return "BAD", f"{text}. Ask for more with --mem."
        new = request_memory(limit * (1 + job.limits.mem_margin / 100))
        return "BAD", (
            f"{text}. It needed more than {memory(limit)}; how much is unknown. Try"
            f" --mem={new} (limit + {margin} %)."
        )
    if node is not None and node.memory_peak is not None and node.memory_limit:
        share = 100 * node.memory_peak / node.memory_limit
        if share >= job.limits.mem_limit_hint:
            new = request_memory(node.memory_peak * (1 + job.limits.mem_margin / 100))
            return "hint", (
                f"{percent(share)} % of {memory(node.memory_limit)} memory at the peak on"
                f" {node.name}; from {number(job.limits.mem_limit_hint)} % on, slightly more input"
                f" can end the job. Try --mem={new} (peak + {margin} %)."
            )
    pressure = [one for one in job.figures.nodes if one.memory_pressure is not None]
    worst = max(pressure, key=lambda one: one.memory_pressure or 0.0, default=None)
    if worst is None or (worst.memory_pressure or 0.0) < job.limits.mem_limit_pressure:
        return None
    base = worst.memory_limit or worst.memory_charged or GB
    new = request_memory(base * (1 + job.limits.mem_margin / 100))
    return "hint", (
        f"{percent(worst.memory_pressure or 0.0)} % of the time a task waited for memory on"
        f" {worst.name}; from {number(job.limits.mem_limit_pressure)} % on it slows the job. Try"
        f" --mem={new}."
    )


def _fullest(job: JudgedJob) -> NodeFigures | None:
    """Return the node with the highest share of its memory limit; None without limits."""
    limited = [node for node in job.figures.nodes if node.memory_limit]
    return max(
        limited, key=lambda one: (one.memory_peak or 0.0) / (one.memory_limit or 1.0), default=None
    )


def judge_memory_excess(job: JudgedJob) -> Judgement | None:
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
    return level, (
        f"{percent(used.percent)} % of memory used: {memory_of(used.used, used.total)},"
        f" page cache not counted; below {number(border)} %"
        f" others could use the rest. Try --mem={new} (peak + {number(limits.mem_margin)} %)."
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


def judge_time(job: JudgedJob) -> Judgement | None:
    """Find jobs that reached their time limit, and jobs that used little of it."""
    elapsed, limit, limits = job.figures.elapsed, job.figures.time_limit, job.limits
    if job.figures.state == "TIMEOUT":
        new = request_time((limit or elapsed) * (1 + limits.mem_margin / 100))
        return "BAD", (
            f"stopped at its time limit of {clock(limit or elapsed)} before it was done. Try"
            f" --time={new}, or write checkpoints and continue from them."
        )
    used = job.efficiency.time
    if used is None or job.figures.state != "COMPLETED":
        return None
    if elapsed <= limits.time_min_runtime.seconds or used.percent >= limits.time_hint:
        return None
    level: FindingLevel = "BAD" if used.percent < limits.time_bad else "hint"
    border = limits.time_bad if level == "BAD" else limits.time_hint
    return level, (
        f"{percent(used.percent)} % of its time limit: {clock(elapsed)} of {clock(used.total)};"
        f" below {number(border)} % it waits in the queue longer than needed. Try"
        f" --time={request_time(elapsed * 1.2)}."
    )


def judge_fragmentation(job: JudgedJob) -> Judgement | None:
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
    return "hint", (
        f"{number(cores)} cores on {len(nodes)} nodes: {percent(100 * share)} % of each, below"
        f" {number(100 * limits.fragmented_cores)} %, and at most {percent(100 * fullest)} % of the"
        f" memory (limit {number(100 * limits.fragmented_memory)} %). {plural(enough, 'node')}"
        f" would do: --nodes={enough}."
    )


def _fragmented_gpus(job: JudgedJob) -> Judgement | None:
    """Find GPUs that would fit on fewer nodes."""
    nodes = job.figures.nodes
    totals = [node.total_cards for node in nodes if node.total_cards]
    count = len(job.figures.cards)
    if len(totals) < len(nodes) or not count:
        return None
    enough = math.ceil(count / min(totals))
    if enough >= len(nodes):
        return None
    return "hint", (
        f"{count} GPUs on {len(nodes)} nodes, which have {min(totals)} each:"
        f" {plural(enough, 'node')} would do, and GPUs of one node exchange data faster. Ask for"
        f" --nodes={enough}."
    )


def judge_shortness(job: JudgedJob) -> Judgement | None:
    """Find jobs with too few samples, or with a too short run time."""
    samples, fewest = job.figures.samples, job.limits.fewest_samples
    if samples >= fewest:
        return _find_early(job)
    if not samples and job.is_long:
        return "unknown", (
            f"no samples of its {clock(job.figures.elapsed)}: they are older than the retention,"
            " or ccagent's agent metrics does not run there (ccagent doctor)."
        )
    if job.is_long:
        return "unknown", (
            f"{plural(samples, 'sample')} in {clock(job.figures.elapsed)}, {fewest} are needed:"
            " ccagent's agent metrics does not run there all the time (ccagent doctor)."
        )
    waits = " Ask again in a minute." if job.figures.is_running else ""
    return "short", (
        f"too short: {plural(samples, 'sample')} in {clock(job.figures.elapsed)},"
        f" {fewest} are needed.{waits}"
    )


def _find_early(job: JudgedJob) -> Judgement | None:
    """Return the finding that the job's run time is too short for rules about use."""
    if job.is_long:
        return None
    return "short", (
        f"too short to judge its use: {clock(job.figures.elapsed)}, more than"
        f" {job.limits.min_runtime} are needed."
    )


def judge_measurement(job: JudgedJob) -> Judgement | None:
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
    return (
        "unknown",
        f"{text}; below {number(job.limits.coverage)} % findings from samples are not BAD.",
    )


def _find_unknown_cpu(job: JudgedJob) -> Judgement | None:
    if job.efficiency.cpu is not None or job.figures.samples < job.limits.fewest_samples:
        return None
    why = "how many cores it has" if job.cores is None else "how much of its cores it used"
    return "unknown", (
        f"nothing reports {why}: the CPU use is unknown. Send jobs (agent jobs) and metrics"
        " (agent metrics, job_cpu_util) to the store."
    )


def judge_unknown_gpus(job: JudgedJob) -> Judgement | None:
    """Find cards whose utilization is unknown, as with MIG, or only partly known."""
    dumb = [card.card for _, card in job.figures.cards if card.utilization is None]
    if dumb:
        which = f"GPU {dumb[0]}" if len(dumb) == 1 else plural(len(dumb), "GPU")
        return "unknown", (
            f"the use of {which} is unknown: a card with MIG does not report it, or no sample has"
            " it. Unknown is not 0, so it is not judged."
        )
    thin = [card for _, card in job.figures.cards if not job.has_use_of(card)]
    if thin and job.is_long:
        which = f"GPU {thin[0].card}" if len(thin) == 1 else plural(len(thin), "GPU")
        least = min(card.coverage or 0.0 for card in thin)
        return "unknown", (
            f"the use of {which} is known of {percent(least)} % of the time; below"
            f" {number(job.limits.coverage)} % it is not judged."
        )
    if job.figures.gpus and not job.figures.cards and job.figures.samples:
        return "unknown", (
            f"the use of its {plural(job.figures.gpus, 'GPU')} is unknown: nothing reports its"
            " cards. Send events (agent jobs), or metrics of the agent sample."
        )
    return None


class JobRule(NamedTuple):
    """A rule. The README has its condition. needs_samples: BAD requires enough samples.

    replaces: more general rules, whose findings are dropped.
    """

    name: str
    judge: Callable[[JudgedJob], Judgement | None]
    needs_samples: bool = True
    replaces: tuple[str, ...] = ()


RULES: tuple[JobRule, ...] = (
    JobRule("mem-limit", judge_memory_limit, needs_samples=False),
    JobRule("gpu-idle", judge_idle_gpus, replaces=("gpu-low", "gpu-share")),
    JobRule("cpu-zero", judge_unused_nodes, replaces=("serial", "cpu-low", "ended-early")),
    JobRule("serial", judge_serial, replaces=("cpu-low",)),
    JobRule("gpu-low", judge_low_gpus),
    JobRule("gpu-few-sms", judge_few_sms),
    JobRule("cpu-low", judge_low_cpu),
    JobRule("mem-excess", judge_memory_excess),
    JobRule("time", judge_time, needs_samples=False),
    JobRule("oversubscribed", judge_oversubscription),
    JobRule("fragmented", judge_fragmentation, needs_samples=False),
    JobRule("gpu-share", judge_gpu_share, needs_samples=False),
    JobRule("ended-early", judge_early_end),
    JobRule("unknown", judge_measurement, needs_samples=False),
    JobRule("gpu-unknown", judge_unknown_gpus, needs_samples=False),
    JobRule("short", judge_shortness, needs_samples=False),
)
"""The rules, in the display order of their findings."""

RULE_NAMES = tuple(rule.name for rule in RULES)


class JobReport(NamedTuple):
    """A report. hidden: findings of hints hidden by a BAD finding."""

    figures: JobFigures
    efficiency: Efficiency
    findings: tuple[JobFinding, ...]
    hidden: tuple[JobFinding, ...] = ()

    @property
    def level(self) -> FindingLevel:
        """Return the level of the worst finding, which is the first."""
        return self.findings[0].level


def make_report(figures: JobFigures, thresholds: JobThresholds | None = None) -> JobReport:
    """Return the report of a job: apply all rules. A BAD finding hides hints."""
    efficiency = compute_efficiency(figures)
    found = _apply_rules(JudgedJob(figures, efficiency, thresholds or JobThresholds()))
    notes = [one for one in found if one.level in {"unknown", "short"}]
    bad = [one for one in found if one.level == "BAD"]
    hints = [one for one in found if one.level == "hint"]
    if bad:
        return JobReport(figures, efficiency, (*bad, *notes), tuple(hints))
    fine = JobFinding("ok", "ok", "nothing to improve")
    return JobReport(figures, efficiency, (*hints, *notes) or (fine,))


def _apply_rules(job: JudgedJob) -> list[JobFinding]:
    is_short = judge_shortness(job) is not None
    found: dict[str, JobFinding] = {}
    for rule in RULES:
        if rule.name in job.limits.off or (is_short and rule.needs_samples):
            continue
        judgement = None if is_short and rule.name == "unknown" else rule.judge(job)
        if judgement is not None:
            level, text = judgement
            is_doubtful = level == "BAD" and job.is_partial and rule.needs_samples
            found[rule.name] = JobFinding(rule.name, "hint" if is_doubtful else level, text)
    replaced = {name for rule in RULES if rule.name in found for name in rule.replaces}
    return [one for name, one in found.items() if name not in replaced]
