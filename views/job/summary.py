"""The summary that reportseff and job_defense_shield read: `JS1:` in Slurm's AdminComment.

Source: jobstats, docs/setup/summaries.md: base64 of gzip of JSON without spaces, or `JS1:Short` and
`JS1:None` for a job that was too short, or has no data.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccagent.views.job.figures import JobFigures, NodeFigures
    from ccagent.views.job.report import JobReport


_FEWEST = 2
"""Samples of a summary, as for jobstats."""


def encode_summary(report: JobReport) -> str:
    """Return the summary of a report."""
    job = report.figures
    if job.samples < _FEWEST:
        is_early = any(one.level == "short" for one in report.findings)
        return "JS1:Short" if is_early else "JS1:None"
    text = json.dumps(summarize(job), separators=(",", ":")).encode()
    # Without the time in gzip's head, so that the same job has the same summary.
    return f"JS1:{base64.b64encode(gzip.compress(text, mtime=0)).decode('ascii')}"


def summarize(job: JobFigures) -> dict[str, Any]:
    """Return the summary as jobstats computes it: memory in bytes, times in seconds."""
    return {
        "nodes": {node.name: _summarize_node(node) for node in job.nodes if node.samples},
        "total_time": int(job.elapsed),
        "gpus": job.gpu_count or 0,
    }


def _summarize_node(node: NodeFigures) -> dict[str, Any]:
    """Return the summary of a node. Readers divide by totals: nothing stands without its total."""
    found: dict[str, Any] = {}
    if node.memory_limit and node.memory_peak is not None:
        found |= {"total_memory": int(node.memory_limit), "used_memory": int(node.memory_peak)}
    if node.cores and node.cpu_seconds is not None:
        found |= {"total_time": round(node.cpu_seconds, 1), "cpus": math.ceil(node.cores)}
    total: dict[str, int] = {}
    used: dict[str, int] = {}
    share: dict[str, float] = {}
    for card in node.cards:
        # A reader takes a missing utilization for 0.
        if card.memory_total and card.memory_peak is not None and card.utilization is not None:
            total[card.card] = int(card.memory_total)
            used[card.card] = int(card.memory_peak)
            share[card.card] = round(card.utilization, 1)
    if total:
        found |= {"gpu_total_memory": total, "gpu_used_memory": used, "gpu_utilization": share}
    return found
