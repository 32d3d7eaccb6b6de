"""Findings about a job, and the facts that rules judge."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ccagent.views.job.efficiency import Efficiency  # noqa: TC001 - of a structure
from ccagent.views.job.figures import JobFigures  # noqa: TC001 - of a structure
from ccagent.views.job.thresholds import JobThresholds  # noqa: TC001 - of a structure

FindingLevel = Literal["BAD", "hint", "unknown", "short", "ok"]

LEVELS: tuple[FindingLevel, ...] = ("BAD", "hint", "unknown", "short", "ok")
"""The worst first."""


class JobFinding(msgspec.Struct, frozen=True):
    """A finding: the rule's name, how bad it is, and a text with figure, threshold and option."""

    rule: str
    level: FindingLevel
    text: str


class JudgedJob(NamedTuple):
    """A job as rules see it."""

    figures: JobFigures
    efficiency: Efficiency
    limits: JobThresholds

    @property
    def is_long(self) -> bool:
        """Return whether the job ran long enough to be judged by its use."""
        return self.figures.elapsed > self.limits.min_runtime.seconds

    @property
    def is_interactive(self) -> bool:
        """Return whether the name is that of an interactive job."""
        return self.figures.name.startswith(tuple(self.limits.interactive_names))

    @property
    def has_gpus(self) -> bool:
        """Return whether the job has GPUs, as far as known."""
        return bool(self.figures.gpu_count)

    @property
    def cores(self) -> float | None:
        """Return the cores of all nodes; None if one is not known."""
        known = [node.cores for node in self.figures.nodes if node.cores]
        return sum(known) if known and len(known) == len(self.figures.nodes) else None

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether processes of the job were killed for want of memory."""
        return self.figures.state == "OUT_OF_MEMORY" or self.kills > 0

    @property
    def kills(self) -> int:
        """Return how many processes were killed for want of memory."""
        return sum(node.oom_kills or 0 for node in self.figures.nodes)
