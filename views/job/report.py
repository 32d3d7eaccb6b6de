"""The report of a job: its figures, efficiency and verdict."""

from __future__ import annotations

import msgspec

from ccagent.views.job.efficiency import Efficiency, compute_efficiency
from ccagent.views.job.figures import JobFigures
from ccagent.views.job.finding import FindingLevel, JobFinding, JudgedJob
from ccagent.views.job.rules import judge
from ccagent.views.job.thresholds import JobThresholds


class JobReport(msgspec.Struct, frozen=True):
    """A report. level: of the worst finding. hidden: rules of hints hidden by a BAD finding."""

    figures: JobFigures
    efficiency: Efficiency
    level: FindingLevel
    findings: tuple[JobFinding, ...]
    hidden: tuple[JobFinding, ...] = ()


def make_report(figures: JobFigures, thresholds: JobThresholds | None = None) -> JobReport:
    """Return the report of a job."""
    efficiency = compute_efficiency(figures)
    verdict = judge(JudgedJob(figures, efficiency, thresholds or JobThresholds()))
    return JobReport(figures, efficiency, verdict.level, verdict.findings, verdict.hidden)
