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
        str, Meta(description="where `ccagent kernel load --io` has pinned its programs")
    ] = pins.DIRECTORY
    mounts: Annotated[
        tuple[str, ...],
        Meta(
            description="mount points that get values of their own, as patterns such as"
            " '/scratch*'; others are summed up as `other`; empty: all"
        ),
    ] = ()
    operations: Annotated[
        bool, Meta(description="also send each kind of metadata operation by itself")
    ] = False
    totals: Annotated[
        bool, Meta(description="also send the counters themselves, as metrics *_total")
    ] = False
    outside: Annotated[
        bool, Meta(description="also send what happens outside of jobs, as job 0")
    ] = False

    def __post_init__(self) -> None:
        if not self.directory.startswith("/"):
            raise ValueError("directory: an absolute path is needed")
        if self.every is not None and self.every.seconds > _KEPT:
            raise ValueError("every: 10m at most, for which ended jobs are kept")
