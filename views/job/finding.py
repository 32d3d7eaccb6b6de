"""Findings about a job, and the facts that rules judge."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ccagent.views.job.efficiency import Efficiency  # noqa: TC001 - of a structure
from ccagent.views.job.figures import (  # noqa: TC001 - of a structure
    CardFigures,
    JobFigures,
    NodeFigures,
)
from ccagent.views.job.thresholds import JobThresholds  # noqa: TC001 - of a structure

FindingLevel = Literal["BAD", "hint", "unknown", "short", "ok"]

LEVELS: tuple[FindingLevel, ...] = ("BAD", "hint", "unknown", "short", "ok")
"""The worst first."""


_LARGEST_ROUNDING = 4
"""Threads of a core at most."""


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
        """Return whether the job has GPUs or parts of them, as far as known."""
        return bool(self.figures.gpu_count) or self.figures.has_gpu_share

    @property
    def cores(self) -> float | None:
        """Return the cores of all nodes; None if one is not known."""
        known = [node.cores for node in self.figures.nodes if node.cores]
        return sum(known) if known and len(known) == len(self.figures.nodes) else None

    @property
    def wanted_cores(self) -> float | None:
        """Return the cores that the job asked for, as far as Slurm rounded them up.

        It gives whole cores with all their threads, and cores that go with the memory.
        """
        cores, asked = self.cores, self.figures.asked_cores
        if cores is None or not asked or self.figures.is_exclusive:
            return cores
        return float(asked) if asked < cores <= _LARGEST_ROUNDING * asked else cores

    def has_samples_of(self, node: NodeFigures) -> bool:
        """Return whether a node sent so many samples that BAD may rest on them."""
        expected = self.figures.expected_samples
        return 100 * node.samples >= self.limits.coverage * expected

    def has_use_of(self, card: CardFigures) -> bool:
        """Return whether so many samples of a GPU are there that BAD may rest on them."""
        return card.coverage is None or card.coverage >= self.limits.coverage

    @property
    def is_partial(self) -> bool:
        """Return whether so many samples are missing that no BAD may rest on them."""
        coverage = self.figures.coverage
        return coverage is not None and coverage < self.limits.coverage

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether processes of the job were killed for want of memory."""
        return self.figures.state == "OUT_OF_MEMORY" or self.kills > 0

    @property
    def kills(self) -> int:
        """Return how many processes were killed for want of memory."""
        return sum(node.oom_kills or 0 for node in self.figures.nodes)
