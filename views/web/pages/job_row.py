"""Rows of lists of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from markupsafe import Markup

from ccagent.views.web.amounts import format_duration, format_share
from ccagent.views.web.links import job_link
from ccagent.views.web.svg.lines import draw_sparkline
from ccagent.views.web.svg.meters import draw_meter
from ccagent.views.web.words import STATES, shown_text

if TYPE_CHECKING:
    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.views.job.efficiency import UsedShare
    from ccagent.views.web.data.measured import JobSummary


class ShownShare(msgspec.Struct, frozen=True):
    """A share as a bar and a text."""

    meter: Markup
    text: str


class ShownVerdict(msgspec.Struct, frozen=True):
    """A verdict: level, shape and word, with rule and text of its first finding."""

    level: str
    shape: str
    word: str
    rule: str
    text: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a list of jobs."""

    link: str
    number: str
    user: str
    account: str
    name: str
    partition: str
    state: str
    size: str
    ran: str
    cpu: ShownShare
    memory: ShownShare
    gpu: ShownShare | None
    verdict: ShownVerdict
    spark: Markup


def make_row(job: StoredJob, summary: JobSummary) -> JobRow:
    """Return the row of a job."""
    report = summary.report
    figures, shares, details = report.figures, report.efficiency, job.details
    limit = f" of {format_duration(details.time_limit)}" if details.time_limit else ""
    gpus = figures.gpu_count
    has_line = bool((~np.isnan(summary.spark)).any())
    level = report.level
    return JobRow(
        link=job_link(job.cluster, job.job),
        number=shown_text(job.job),
        user=shown_text(job.user) or "unknown",
        account=shown_text(details.account),
        name=shown_text(details.name),
        partition=shown_text(details.partition),
        state=shown_text(figures.state) or "unknown",
        size=describe_size(job, gpus),
        ran=format_duration(figures.elapsed) + limit,
        cpu=show_share(shares.cpu, "bad" if level == "BAD" and _is_about(summary, "cpu") else "ok"),
        memory=show_share(shares.memory, "ok"),
        gpu=show_share(shares.gpu, "bad" if _is_about(summary, "gpu") else "ok") if gpus else None,
        verdict=show_verdict(summary),
        spark=draw_sparkline(summary.spark, 100.0, "CPU use over time") if has_line else Markup(),
    )


def show_share(share: UsedShare | None, state: str) -> ShownShare:
    """Return a share of a report as bar and text; also for an unknown share."""
    if share is None:
        return ShownShare(draw_meter(None), "unknown")
    return ShownShare(
        draw_meter(share.used / share.total, state=state), format_share(share.used, share.total)
    )


def show_verdict(summary: JobSummary) -> ShownVerdict:
    """Return the verdict on a job."""
    report = summary.report
    shape, word = STATES[report.level]
    first = report.findings[0] if report.findings else None
    return ShownVerdict(
        report.level,
        shape,
        word,
        first.rule if first else "",
        shown_text(first.text) if first else "",
    )


def describe_size(job: StoredJob, gpus: int | None) -> str:
    """Return a text with nodes, cores and GPUs of a job."""
    parts = [f"{len(job.nodes)} nodes"] if len(job.nodes) != 1 else []
    if job.details.cores:
        parts.append(f"{job.details.cores} core" + ("s" if job.details.cores != 1 else ""))
    if gpus:
        parts.append(f"{gpus} GPU" + ("s" if gpus != 1 else ""))
    return ", ".join(parts) or "1 node"


def _is_about(summary: JobSummary, subject: str) -> bool:
    return any(
        one.level == "BAD"
        and (one.rule.startswith(subject) or (subject == "cpu" and one.rule == "serial"))
        for one in summary.report.findings
    )
