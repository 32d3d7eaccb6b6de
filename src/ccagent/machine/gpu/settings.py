"""The keys about GPUs that `[agents.sample]` and `[agents.sysinfo]` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.machine.gpu.presence import vendor_directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.needs import Need


class GpuSettings(AgentSettings, frozen=True, kw_only=True):
    """Which cards are looked for, and how long their library may take."""

    renamed: ClassVar[dict[str, str]] = {"gpu-makers": "gpu-vendors"}

    gpu_vendors: Annotated[
        tuple[str, ...], Meta(description="vendors whose cards are looked for; empty: none")
    ] = ("nvidia", "amd")
    gpu_time_limit: Annotated[
        Duration,
        Meta(description="after this long a sample goes without what a GPU library has not told"),
    ] = Duration("10s")

    def needs(self) -> Iterator[Need]:
        """Give what an agent with these settings needs of the cards."""
        from ccagent.agents.needs import Need

        for vendor in self.gpu_vendors:
            yield Need(f"{vendor} cards", f"GPUs of {vendor}")

    def __post_init__(self) -> None:
        for vendor in self.gpu_vendors:
            try:
                vendor_directories(vendor)
            except ConfigurationError as error:
                raise ValueError(f"gpu-vendors: {error}") from None
