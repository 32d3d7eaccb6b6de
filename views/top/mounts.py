"""Rates of jobs by mount, from the kernel programs that count I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.jobio.usage import (
    JobIoUsage,
    bytes_read,
    bytes_written,
    is_idle,
    metadata_operations,
    read_calls,
    write_calls,
)
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf import pins
from ccagent.views.top.snapshot import TopMount

if TYPE_CHECKING:
    from collections.abc import Collection

    from ccagent.agents.jobio.usage import MountUse
    from ccagent.machine.node import Node

NOT_LOADED = "I/O by mount is not counted here; as root: ccagent kernel load --io"
NOT_PERMITTED = (
    "I/O by mount: this user may not read it; as root: ccagent kernel load --io --group NAME"
)


class MountWatch:
    """A reader of the counters of mounts. Rates are since the previous reading."""

    def __init__(self, directory: str = pins.DIRECTORY) -> None:
        self._usage = JobIoUsage(directory)

    def read(self, node: Node, living: Collection[int]) -> tuple[tuple[TopMount, ...], str]:
        """Return the mounts of running jobs and of jobs with I/O, and a note if values are missing.

        living: ids of the jobs on this node.
        """
        try:
            use = self._usage.read(node)
        except CcagentError as error:
            return (), explain_mounts(error)
        if use.seconds <= 0:
            return (), ""
        found = tuple(
            _rates(one, use.seconds)
            for one in use.mounts
            if one.job in living or not is_idle(one.delta)
        )
        return found, f"{use.lost} calls are not counted" if use.lost else ""


def explain_mounts(error: CcagentError) -> str:
    """Return the reason for which mounts are unknown, and the fix."""
    match error:
        case NotHereError():
            return NOT_LOADED
        case NotPermittedError():
            return NOT_PERMITTED
        case _:
            return f"I/O by mount: {error}"


def _rates(use: MountUse, seconds: float) -> TopMount:
    delta = use.delta
    return TopMount(
        job=use.job,
        point=use.mount.point,
        type=use.mount.type,
        source=use.mount.source,
        read=bytes_read(delta) / seconds,
        written=bytes_written(delta) / seconds,
        reads=read_calls(delta) / seconds,
        writes=write_calls(delta) / seconds,
        metadata=metadata_operations(delta) / seconds,
    )
