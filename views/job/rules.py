"""The table of rules, and the verdict from their findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ccagent.views.job.cpu_rules import (
    judge_early_end,
    judge_low_cpu,
    judge_oversubscription,
    judge_serial,
    judge_unused_nodes,
)
from ccagent.views.job.finding import FindingLevel, JobFinding, JudgedJob
from ccagent.views.job.gpu_rules import judge_gpu_share, judge_idle_gpus, judge_low_gpus
from ccagent.views.job.measurement_rules import (
    judge_measurement,
    judge_shortness,
    judge_unknown_gpus,
)
from ccagent.views.job.size_rules import (
    judge_fragmentation,
    judge_memory_excess,
    judge_memory_limit,
    judge_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class JobRule(NamedTuple):
    """A rule. needs_samples: BAD requires enough samples.

    replaces: more general rules, whose findings are dropped. condition: a description for people.
    """

    name: str
    judge: Callable[[JudgedJob], JobFinding | None]
    condition: str
    needs_samples: bool = True
    replaces: tuple[str, ...] = ()


RULES: tuple[JobRule, ...] = (
    JobRule("mem-limit", judge_memory_limit,
            "BAD: state OUT_OF_MEMORY, or processes killed by the OOM killer. Hint: a peak of"
            " mem-limit-hint % of the limit, or mem-limit-pressure % of time waiting for memory",
            needs_samples=False),
    JobRule("gpu-idle", judge_idle_gpus,
            "BAD: longer than min-runtime and a GPU always at 0 %, or at 0 % in the last"
            " gpu-idle-window", replaces=("gpu-low", "gpu-share")),
    JobRule("cpu-zero", judge_unused_nodes,
            "BAD: longer than min-runtime and a node with up to cpu-zero % of one core",
            replaces=("serial", "cpu-low", "ended-early")),
    JobRule("serial", judge_serial,
            "BAD: one node, several cores, no GPU, and between serial-from and serial-to cores'"
            " work", replaces=("cpu-low",)),
    JobRule("gpu-low", judge_low_gpus,
            "mean of the GPUs: BAD up to gpu-low-bad %, a hint below gpu-low-hint %; interactive"
            " jobs after gpu-low-interactive"),
    JobRule("cpu-low", judge_low_cpu,
            "without GPU: BAD below cpu-low-bad %, a hint up to cpu-low-hint %"),
    JobRule("mem-excess", judge_memory_excess,
            "ended: BAD below mem-excess-bad % of the memory, a hint below mem-excess-hint %"),
    JobRule("time", judge_time,
            "BAD: state TIMEOUT, or completed below time-bad % of the limit. Hint: below"
            " time-hint %. Only above time-min-runtime", needs_samples=False),
    JobRule("oversubscribed", judge_oversubscription,
            "hint: more than threads-per-core running threads a core; on nodes of its own, more"
            " than load-per-core"),
    JobRule("fragmented", judge_fragmentation,
            "hint: several nodes, below fragmented-cores of the cores and fragmented-memory of the"
            " memory of each, or GPUs that fewer nodes have", needs_samples=False),
    JobRule("gpu-share", judge_gpu_share,
            "hint: cores or memory a GPU above gpu-share-cores, gpu-share-memory times the node's"
            " share", needs_samples=False),
    JobRule("ended-early", judge_early_end,
            "hint: cores in use in the last third below ended-early % of the first third"),
    JobRule("unknown", judge_measurement,
            "less than coverage % of the samples, or nodes without samples",
            needs_samples=False),
    JobRule("gpu-unknown", judge_unknown_gpus, "GPUs whose utilization is unknown",
            needs_samples=False),
    JobRule("short", judge_shortness,
            "fewer than fewest-samples samples, or no longer than min-runtime",
            needs_samples=False),
)  # fmt: skip
"""The rules, in the display order of their findings."""

RULE_NAMES = tuple(rule.name for rule in RULES)


class JobVerdict(NamedTuple):
    """The verdict on a job. hidden: rules of hints hidden by a BAD finding."""

    level: FindingLevel
    findings: tuple[JobFinding, ...]
    hidden: tuple[JobFinding, ...] = ()


def judge(job: JudgedJob) -> JobVerdict:
    """Apply all rules to a job. A BAD finding hides hints."""
    found = _apply(job)
    notes = [one for one in found if one.level in {"unknown", "short"}]
    bad = [one for one in found if one.level == "BAD"]
    hints = [one for one in found if one.level == "hint"]
    if bad:
        return JobVerdict("BAD", (*bad, *notes), tuple(hints))
    if hints:
        return JobVerdict("hint", (*hints, *notes))
    if notes:
        return JobVerdict(notes[0].level, tuple(notes))
    return JobVerdict("ok", (JobFinding("ok", "ok", "nothing to improve"),))


def _apply(job: JudgedJob) -> list[JobFinding]:
    is_short = judge_shortness(job) is not None
    found: list[JobFinding] = []
    for rule in RULES:
        if rule.name in job.limits.off or (is_short and rule.needs_samples):
            continue
        if is_short and rule.name == "unknown":
            continue
        one = rule.judge(job)
        if one is not None and one.level == "BAD" and job.is_partial and rule.needs_samples:
            one = JobFinding(one.rule, "hint", one.text)
        if one is not None:
            found.append(one)
    replaced = {
        name for rule in RULES for one in found if one.rule == rule.name for name in rule.replaces
    }
    return [one for one in found if one.rule not in replaced]
