"""Figures of a job that runs on this node, from its control group and its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.views.job.figures import JobFigures


def measure_here(job: int) -> JobFigures:
    """Return the figures of a job that runs here. Raises ConfigurationError if it does not."""
    raise ConfigurationError(f"job {job}: does not run on this node; name a store with --store URL")
