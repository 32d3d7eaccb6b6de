"""The agent `jobio`: I/O by mount and network traffic of each job, from kernel programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from ccagent.agents.base import Agent, AgentSettings
from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.jobio.usage import JobIoUse
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format
    from ccagent.records.points import Point

_KEPT = 600.0
"""Seconds for which the kernel programs keep the counters of ended jobs."""

_FIRST_INTERVAL = 1.0


class JobIoSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.jobio]."""

    directory: Annotated[
        str, Meta(description="directory of the programs pinned by `ccagent kernel load --io`")
    ] = pins.DIRECTORY
    mounts: Annotated[
        tuple[str, ...],
        Meta(
            description="mount points with separate values, as patterns such as '/scratch*';"
            " other mounts are summed up as `other`; empty: all"
        ),
    ] = ()
    operations: Annotated[
        bool, Meta(description="also send each kind of metadata operation separately")
    ] = False
    totals: Annotated[bool, Meta(description="also send the counters, as metrics *_total")] = False
    outside: Annotated[bool, Meta(description="also send I/O outside of jobs, as job 0")] = False

    def __post_init__(self) -> None:
        if not self.directory.startswith("/"):
            raise ValueError("directory: an absolute path is needed")
        if self.every is not None and self.every.seconds > _KEPT:
            raise ValueError("every: at most 10m: ended jobs are kept for 10 minutes")


class JobIoAgent(Agent[JobIoSettings]):
    """The agent for I/O of jobs by file system, and for their network traffic."""

    name = "jobio"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = JobIoSettings

    def __init__(self, settings: JobIoSettings, wanted: frozenset[Format]) -> None:
        from ccagent.agents.jobio.points import ExclusivePorts
        from ccagent.agents.jobio.usage import JobIoUsage

        super().__init__(settings, wanted)
        self._usage = JobIoUsage(settings.directory, settings.mounts)
        self._ports = ExclusivePorts()
        self._last: JobIoUse | None = None

    def prepare(self, node: Node) -> float:
        """Read once: the first sample then has rates."""
        from ccagent.agents.jobio.points import living_jobs

        self._read(node)
        list(self._ports.points(node, living_jobs(node)))
        return _FIRST_INTERVAL

    def sample(self, node: Node) -> Iterator[Point]:
        """Read the counters once. Yield the points of all jobs."""
        from ccagent.agents.jobio.points import living_jobs, usage_points

        use = self._read(node)
        self.is_blind = use is None
        if use is None:
            return
        living = living_jobs(node)
        settings, now = self.settings, node.clock.time()
        yield from usage_points(
            node, use, living, now, operations=settings.operations, totals=settings.totals,
            outside=settings.outside,
        )  # fmt: skip
        yield from self._ports.points(node, living)

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the kernel programs."""
        from ccagent.agents.jobio.usage import require_io_programs

        yield require_io_programs(node, self.settings.directory)

    def describe(self) -> dict[str, Any]:
        """Return the numbers of lost and missed calls, and the values that can't be counted."""
        if self._last is None:
            return {}
        from ccagent.machine.bpf.io_records import missing_hooks

        missing = [hook.counts for hook in missing_hooks(self._last.features)]
        return {"lost": self._last.lost, "missed": self._last.missed, "not_counted": missing}

    def _read(self, node: Node) -> JobIoUse | None:
        try:
            self._last = self._usage.read(node)
        except CcagentError as error:
            from ccagent.agents.jobio.usage import remedy

            logger.warning("agent jobio: %s; %s", error, remedy(error))
            self._last = None
        return self._last
