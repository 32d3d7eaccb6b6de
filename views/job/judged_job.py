"""A job as input of the rules, and the findings that they return."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.views.job.mounts import JobMounts

if TYPE_CHECKING:
    from ccagent.stores.metrics.page_settings import JobThresholds
    from ccagent.views.job.figures import CardFigures, Efficiency, JobFigures, NodeFigures

FindingLevel = Literal["BAD", "hint", "unknown", "short", "ok"]

LEVELS: tuple[FindingLevel, ...] = ("BAD", "hint", "unknown", "short", "ok")
"""Levels from worst to best."""

_LARGEST_ROUNDING = 4
"""Maximum of threads per core."""

_SHORTEST_QUIET = 0.2
"""Share of a job's time at its end from which little use is a finding."""

_ON_DEMAND = re.compile(r"(?:^|\W)sys\W(?:dashboard|myjobs)\W")
"""In the names of sessions of Open OnDemand: the path of its page, `ood-sys-dashboard-rstudio`
where a site forbids slashes. Source: ondemand, apps/dashboard, BatchConnect::Session."""

_SHELLS = frozenset({"bash", "sh", "zsh", "tcsh", "csh", "fish", "ksh"})
"""`srun --pty SHELL` gives a job the name of the shell."""

Judgement = tuple[FindingLevel, str]
"""The level of a finding, and a text with figure, threshold, option and expected effect."""

Resource = Literal["memory", "gpus", "cores", "time", "session", "data", "job"]
"""The subject of a finding. A report has at most one finding for each."""


def grade(share: float, bad: float, hint: float) -> tuple[FindingLevel, float]:
    """Return the level of a low share, and the threshold of this level."""
    return ("BAD", bad) if share < bad else ("hint", hint)


class JobFinding(msgspec.Struct, frozen=True):
    """A finding: rule, level, a text with figure, threshold and option, and its subject."""

    rule: str
    level: FindingLevel
    text: str
    resource: Resource = "job"


class JudgedJob(NamedTuple):
    """A job as input of the rules. mounts: its I/O and network, as far as known."""

    figures: JobFigures
    efficiency: Efficiency
    limits: JobThresholds
    mounts: JobMounts = JobMounts()

    @property
    def is_long(self) -> bool:
        """Return whether the job ran longer than `min-runtime`, the minimum for rules about use."""
        return self.figures.elapsed > self.limits.min_runtime.seconds

    @property
    def is_interactive(self) -> bool:
        """Return whether a person works in the job, by its terminal or its name."""
        name, terminal = self.figures.name, self.figures.has_terminal
        if _ON_DEMAND.search(name) or name.startswith(tuple(self.limits.interactive_names)):
            return True
        return name in _SHELLS if terminal is None else terminal

    @property
    def ends_quiet(self) -> bool:
        """Return whether almost nothing happened in a large last part of the job's time."""
        use = self.figures.use
        return use is not None and use.quiet >= _SHORTEST_QUIET * self.figures.elapsed

    @property
    def lacks_memory(self) -> bool:
        """Return whether the job waited for memory, at least in `mem-limit-pressure` % of time."""
        least = self.limits.mem_limit_pressure
        return any((node.memory_pressure or 0.0) >= least for node in self.figures.nodes)

    @property
    def used_cores(self) -> float | None:
        """Return the mean cores in use, of all nodes; None if unknown."""
        used, elapsed = self.efficiency.cpu, self.figures.elapsed
        return used.used / elapsed if used is not None and elapsed else None

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
