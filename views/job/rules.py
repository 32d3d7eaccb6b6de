"""Rules for requests and measurements, the table of all rules, and the report with its verdict."""

from __future__ import annotations

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
from ccagent.views.job import cpu_rules, gpu_rules
from ccagent.views.job.figures import Efficiency, JobFigures, NodeFigures, compute_efficiency
from ccagent.views.job.judged_job import (
    FindingLevel,
    JobFinding,
    JudgedJob,
    Judgement,
    Resource,
    grade,
)
from ccagent.views.job.mounts import JobMounts

if TYPE_CHECKING:
    from collections.abc import Callable


_RAN_TO_AN_END = frozenset({"COMPLETED", "TIMEOUT", "CANCELLED", ""})
"""States of jobs whose peak of memory says what they need."""


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
    return None


def judge_memory_pressure(job: JudgedJob) -> Judgement | None:
    """Find jobs that were slow because their tasks waited for memory."""
    worst = max(job.figures.nodes, key=lambda one: one.memory_pressure or 0.0, default=None)
    if worst is None or not job.lacks_memory or job.is_out_of_memory:
        return None
    waited, limit = percent(worst.memory_pressure or 0.0), worst.memory_limit
    peak = f", peak {memory(worst.memory_peak)}" if worst.memory_peak is not None else ""
    held = f" (limit {memory(limit)}{peak})" if limit else ""
    ask = "Ask for more with --mem"
    if limit:
        ask = f"Try --mem={request_memory(limit * (1 + job.limits.mem_margin / 100))}"
    return "hint", (
        f"{waited} % of the time a task waited for memory on {worst.name}{held}; from"
        f" {number(job.limits.mem_limit_pressure)} % on it slows the job. {ask}: it can save up to"
        f" {waited} % of the run time."
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
    if job.is_partial or job.figures.state not in _RAN_TO_AN_END:
        return None  # the peak may be in the missing samples, or was still to come
    if used.percent >= limits.mem_excess_hint or _needs_no_request(job, used.total):
        return None
    level, border = grade(used.percent, limits.mem_excess_bad, limits.mem_excess_hint)
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
        idle = [card.idle_at_end >= limits.gpu_idle_window.seconds for _, card in job.figures.cards]
        if all(idle) if idle else job.ends_quiet and not job.has_gpus:
            return None  # more time does not help
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
    level, border = grade(used.percent, limits.time_bad, limits.time_hint)
    return level, (
        f"{percent(used.percent)} % of its time limit: {clock(elapsed)} of {clock(used.total)};"
        f" below {number(border)} % it waits in the queue longer than needed. Try"
        f" --time={request_time(elapsed * 1.2)}."
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


class JobRule(NamedTuple):
    """A rule. The README has its condition. needs_samples: BAD requires enough samples.

    for_sessions: it judges interactive jobs.
    """

    name: str
    resource: Resource
    judge: Callable[[JudgedJob], Judgement | None]
    needs_samples: bool = True
    for_sessions: bool = False


RULES: tuple[JobRule, ...] = (
    JobRule("mem-pressure", "memory", judge_memory_pressure, for_sessions=True),
    JobRule("mem-limit", "memory", judge_memory_limit, needs_samples=False, for_sessions=True),
    JobRule("mem-excess", "memory", judge_memory_excess),
    JobRule("gpu-idle", "gpus", gpu_rules.judge_idle_gpus),
    JobRule("gpu-input", "gpus", gpu_rules.judge_gpu_input),
    JobRule("gpu-low", "gpus", gpu_rules.judge_low_gpus),
    JobRule("gpu-few-sms", "gpus", gpu_rules.judge_few_sms),
    JobRule("gpu-spread", "gpus", gpu_rules.judge_spread_gpus, needs_samples=False),
    JobRule("gpu-unknown", "gpus", gpu_rules.judge_unknown_gpus, needs_samples=False),
    JobRule("wait-mount", "cores", cpu_rules.judge_mount_wait),
    JobRule("wait-io", "cores", cpu_rules.judge_file_wait),
    JobRule("wait-metadata", "cores", cpu_rules.judge_metadata_wait),
    JobRule("wait-network", "cores", cpu_rules.judge_network_wait),
    JobRule("cpu-zero", "cores", cpu_rules.judge_unused),
    JobRule("idle-nodes", "cores", cpu_rules.judge_unused_nodes),
    JobRule("ended-early", "cores", cpu_rules.judge_early_end),
    JobRule("one-rank", "cores", cpu_rules.judge_one_rank),
    JobRule("serial-part", "cores", cpu_rules.judge_serial_part),
    JobRule("serial", "cores", cpu_rules.judge_serial),
    JobRule("cpu-low", "cores", cpu_rules.judge_low_cpu),
    JobRule("oversubscribed", "cores", cpu_rules.judge_oversubscription),
    JobRule("fragmented", "cores", cpu_rules.judge_fragmentation, needs_samples=False),
    JobRule("gpu-share", "cores", cpu_rules.judge_gpu_share, needs_samples=False),
    JobRule("session", "session", gpu_rules.judge_session, for_sessions=True),
    JobRule("time", "time", judge_time, needs_samples=False),
    JobRule("short", "data", judge_shortness, needs_samples=False, for_sessions=True),
    JobRule("unknown", "data", judge_measurement, needs_samples=False, for_sessions=True),
)
"""The rules in the display order of their findings. The first that applies decides a resource."""

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

    @property
    def wants_mounts(self) -> bool:
        """Return whether I/O and network of the job could be the cause of a finding."""
        return any(one.resource in {"cores", "gpus"} for one in (*self.findings, *self.hidden))


def make_report(
    figures: JobFigures, thresholds: JobThresholds | None = None, mounts: JobMounts | None = None
) -> JobReport:
    """Return the report of a job: apply all rules. A BAD finding hides hints.

    mounts: the job's I/O by mount and network, if known.
    """
    efficiency = compute_efficiency(figures)
    limits = thresholds or JobThresholds()
    found = _apply_rules(JudgedJob(figures, efficiency, limits, mounts or JobMounts()))
    notes = [one for one in found if one.level in {"unknown", "short"}]
    bad = [one for one in found if one.level == "BAD"]
    hints = [one for one in found if one.level == "hint"]
    if bad:
        return JobReport(figures, efficiency, (*bad, *notes), tuple(hints))
    fine = [one for one in found if one.level == "ok"]
    nothing = JobFinding("ok", "ok", "nothing to improve")
    return JobReport(figures, efficiency, (*hints, *notes) or (*fine, nothing)[:1])


def _apply_rules(job: JudgedJob) -> list[JobFinding]:
    """Return the findings, at most one for each resource."""
    is_short = judge_shortness(job) is not None
    found: dict[Resource, JobFinding] = {}
    for rule in RULES:
        if rule.resource in found or rule.name in job.limits.off:
            continue
        if (is_short and rule.needs_samples) or (
            rule.for_sessions < job.is_interactive
            or (rule.resource == "session") > job.is_interactive
        ):
            continue
        judgement = rule.judge(job)
        if judgement is not None:
            level, text = judgement
            is_doubtful = level == "BAD" and job.is_partial and rule.needs_samples
            level = "hint" if is_doubtful else level
            found[rule.resource] = JobFinding(rule.name, level, text, rule.resource)
    return list(found.values())
