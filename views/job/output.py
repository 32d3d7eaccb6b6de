"""Reports of jobs as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ccagent.views.job.efficiency import UsedShare
    from ccagent.views.job.mounts import JobMounts
    from ccagent.views.job.report import JobReport


def describe_report(report: JobReport) -> dict[str, Any]:
    """Return a report as an object for JSON. Unknown figures are null."""
    efficiency = report.efficiency
    shares = {name: getattr(efficiency, name) for name in efficiency.__struct_fields__}
    figures = msgspec.to_builtins(report.figures)
    coverage = report.figures.coverage
    return {
        "verdict": report.level,
        "findings": msgspec.to_builtins(report.findings),
        "hidden": msgspec.to_builtins(report.hidden),
        "efficiency": {name: _describe_share(share) for name, share in shares.items()},
        "samples": report.figures.samples,
        "coverage": None if coverage is None else round(coverage, 3),
        "job": figures,
    }


def encode_report(report: JobReport, mounts: JobMounts | None = None) -> bytes:
    """Return a report as one line of JSON. mounts: of the job, if known."""
    found = describe_report(report)
    if mounts is not None:
        found |= {"mounts": msgspec.to_builtins(mounts)}
    return msgspec.json.encode(found) + b"\n"


def _describe_share(share: UsedShare | None) -> dict[str, Any] | None:
    if share is None:
        return None
    return {
        "percent": round(share.percent, 3),
        "used": share.used,
        "total": share.total,
        "parts": share.nodes,
    }
