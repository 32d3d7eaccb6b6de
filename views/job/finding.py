"""Findings about a job, and the input of rules."""

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
"""Levels from worst to best."""


_LARGEST_ROUNDING = 4
"""Maximum of threads per core."""


class JobFinding(msgspec.Struct, frozen=True):
    """A finding: the rule's name, the level, and a text with figure, threshold and option."""

    rule: str
    level: FindingLevel
    text: str


class JudgedJob(NamedTuple):
    """A job as input of the rules."""

    figures: JobFigures
    efficiency: Efficiency
    limits: JobThresholds

    @property
    def is_long(self) -> bool:
        """Return whether the job ran longer than `min-runtime`, the minimum for rules about use."""
        return self.figures.elapsed > self.limits.min_runtime.seconds

    @property
    def is_interactive(self) -> bool:
        """Return whether the job's name has a prefix of `interactive-names`."""
        return self.figures.name.startswith(tuple(self.limits.interactive_names))

    @property
    def has_gpus(self) -> bool:
        """Return whether the job is known to have GPUs or parts of GPUs."""
        return bool(self.figures.gpu_count) or self.figures.has_gpu_share

    @property
    def cores(self) -> float | None:
        """Return the sum of cores over the nodes; None if a node's number is unknown."""
        known = [node.cores for node in self.figures.nodes if node.cores]
        return sum(known) if known and len(known) == len(self.figures.nodes) else None

    @property
    def wanted_cores(self) -> float | None:
        """Return the requested cores if Slurm rounded the request up, else the allocated cores.

        Slurm allocates whole cores with all their threads, and more cores for more memory.
        """
        cores, asked = self.cores, self.figures.asked_cores
        if cores is None or not asked or self.figures.is_exclusive:
            return cores
        return float(asked) if asked < cores <= _LARGEST_ROUNDING * asked else cores

    def has_samples_of(self, node: NodeFigures) -> bool:
        """Return whether a node has enough samples for a verdict of BAD."""
        expected = self.figures.expected_samples
        return 100 * node.samples >= self.limits.coverage * expected

    def has_use_of(self, card: CardFigures) -> bool:
        """Return whether a GPU has enough samples for a verdict of BAD."""
        return card.coverage is None or card.coverage >= self.limits.coverage

    @property
    def is_partial(self) -> bool:
        """Return whether the job has too few samples for a verdict of BAD."""
        coverage = self.figures.coverage
        return coverage is not None and coverage < self.limits.coverage

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether the OOM killer ended processes of the job, by its state or counter."""
        return self.figures.state == "OUT_OF_MEMORY" or self.kills > 0

    @property
    def kills(self) -> int:
        """Return the number of processes that the OOM killer has ended."""
        return sum(node.oom_kills or 0 for node in self.figures.nodes)
