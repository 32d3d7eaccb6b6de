"""Addresses of pages. They are stable: they only contain names of clusters, nodes and jobs."""

from __future__ import annotations

from urllib.parse import urlencode

from ccagent.views.web.segments import encode_segment


def cluster_link(cluster: str) -> str:
    """Return the address of a cluster."""
    return f"/cluster/{encode_segment(cluster)}"


def node_link(cluster: str, node: str) -> str:
    """Return the address of a node."""
    return f"{cluster_link(cluster)}/node/{encode_segment(node)}"


def jobs_link(cluster: str, **query: str | int) -> str:
    """Return the address of a list of jobs. query: parameters."""
    chosen = {name: value for name, value in query.items() if value not in ("", 0)}
    return f"{cluster_link(cluster)}/jobs" + (f"?{urlencode(chosen)}" if chosen else "")


def job_link(cluster: str, job: str, start: int = 0) -> str:
    """Return the address of a job; with `start` of one of its runs."""
    link = f"{cluster_link(cluster)}/job/{encode_segment(job)}"
    return f"{link}/{start}" if start else link
