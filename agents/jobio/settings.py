"""The keys of [agents.jobio]."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.machine.bpf import pins

_KEPT = 600.0


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
