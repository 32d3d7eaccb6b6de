"""GPU keys shared by `[agents.sample]` and `[agents.sysinfo]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.config.duration import Duration
from ccagent.machine.gpu.vendor import check_vendor_names

if TYPE_CHECKING:
    from ccagent.machine.gpu.gpus import Gpus
    from ccagent.machine.node import Node


class GpuSettings(AgentSettings, frozen=True, kw_only=True):
    """GPU vendors and the time limit of their libraries."""

    renamed: ClassVar[dict[str, str]] = {"gpu-makers": "gpu-vendors"}

    gpu_vendors: Annotated[
        tuple[str, ...], Meta(description="vendors whose cards are read; empty: none")
    ] = ("nvidia", "amd")
    gpu_time_limit: Annotated[
        Duration,
        Meta(description="after this long a sample is sent without the values of a GPU library"),
    ] = Duration("10s")

    def __post_init__(self) -> None:
        check_vendor_names("gpu-vendors", self.gpu_vendors)

    def make_gpus(self, node: Node) -> Gpus:
        """Return the libraries of these vendors. The import is needed only where cards are."""
        from ccagent.machine.gpu.gpus import Gpus

        limit = self.gpu_time_limit.seconds
        return Gpus(node, self.gpu_vendors, limit, self.time_limit.seconds)
