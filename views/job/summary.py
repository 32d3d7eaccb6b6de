"""The summary for reportseff and job_defense_shield: `JS1:` in Slurm's AdminComment.

Source: jobstats, docs/setup/summaries.md: base64 of gzip of JSON without spaces. `JS1:Short` stands
for a too short job, `JS1:None` for a job without data.
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
"""Minimum of samples for a summary, as in jobstats."""


def encode_summary(report: JobReport) -> str:
    """Return the summary of a report."""
    job = report.figures
    if job.samples < _FEWEST:
        is_early = any(one.level == "short" for one in report.findings)
        return "JS1:Short" if is_early else "JS1:None"
    text = json.dumps(summarize(job), separators=(",", ":")).encode()
    # No time in gzip's header: the same job must have the same summary.
    return f"JS1:{base64.b64encode(gzip.compress(text, mtime=0)).decode('ascii')}"


def summarize(job: JobFigures) -> dict[str, Any]:
    """Return the summary in the format of jobstats: memory in bytes, times in seconds."""
    return {
        "nodes": {node.name: _summarize_node(node) for node in job.nodes if node.samples},
        "total_time": int(job.elapsed),
        "gpus": job.gpu_count or 0,
    }


def _summarize_node(node: NodeFigures) -> dict[str, Any]:
    """Return the summary of a node. Values without total are omitted: readers divide by totals."""
    found: dict[str, Any] = {}
    if node.memory_limit and node.memory_peak is not None:
        found |= {"total_memory": int(node.memory_limit), "used_memory": int(node.memory_peak)}
    if node.cores and node.cpu_seconds is not None:
        found |= {"total_time": round(node.cpu_seconds, 1), "cpus": math.ceil(node.cores)}
    total: dict[str, int] = {}
    used: dict[str, int] = {}
    share: dict[str, float] = {}
    for card in node.cards:
        # Readers treat a missing utilization as 0.
        if card.memory_total and card.memory_peak is not None and card.utilization is not None:
            total[card.card] = int(card.memory_total)
            used[card.card] = int(card.memory_peak)
            share[card.card] = round(card.utilization, 1)
    if total:
        found |= {"gpu_total_memory": total, "gpu_used_memory": used, "gpu_utilization": share}
    return found
