"""Reader of accelerators, through the vendor libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.accelerator_tables import DETAILS
from ccagent.agents.metrics.readers.base import (
    Count,
    Gauge,
    Metric,
    Reader,
    ReaderSettings,
    Scope,
    ScopeType,
)
from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError, NotHereError
from ccagent.machine.gpu.presence import is_any_present, vendor_directories
from ccagent.machine.gpu.settings import GpuSettings
from ccagent.machine.gpu.vendor import parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.gpu.vendor import Detail
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu


_COUNTED = frozenset({
    "acc_power_average", "acc_nvlink_tx", "acc_nvlink_rx", "acc_nvlink_link_tx",
    "acc_nvlink_link_rx", "acc_xgmi_tx", "acc_xgmi_rx",
})  # fmt: skip
"""Details that are counters, sent as rates. All other details are gauges."""


def select_details(wanted: frozenset[str] | None) -> frozenset[str]:
    """Return the details for these metrics; None means all."""
    metrics = [name for name in DETAILS if wanted is None or name in wanted]
    return frozenset(
        "energy" if name == "acc_power_average" else name.removeprefix("acc_") for name in metrics
    )


def detail_values(details: Iterable[Detail], scope: Scope) -> Iterator[Gauge | Count]:
    """Return the values of a card and of its links."""
    for detail in details:
        names = [f"acc_{detail.name}"]
        if detail.name == "energy":
            names.append("acc_power_average")
        where = scope._replace(stype="nvlink", stype_id=detail.part) if detail.part else scope
        for name in names:
            metric = DETAILS.get(name)
            if metric is None:
                continue
            if name in _COUNTED:
                yield Count(name, detail.value, where)
            else:
                yield Gauge(name, detail.value * metric.scale, where)


_KB = 1024
_MHZ = 1e6


class AcceleratorsSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.accelerators]."""

    renamed: ClassVar[dict[str, str]] = {"makers": "vendors"}

    vendors: Annotated[
        tuple[str, ...], Meta(description="vendors of the cards to read; empty: none")
    ] = ("nvidia", "amd")
    time_limit: Annotated[
        Duration,
        Meta(description="time after which a sample is sent without the values of a slow library"),
    ] = Duration("5s")

    def __post_init__(self) -> None:
        for vendor in self.vendors:
            try:
                vendor_directories(vendor)
            except ConfigurationError as error:
                raise ValueError(f"vendors: {error}") from error


class AcceleratorsReader(Reader[AcceleratorsSettings]):
    """State of cards, by PCI address.

    A card with MIG is one card, as in the topology of the cluster and in the store. Its memory
    includes the instances; its utilisation is unknown. Instances have a separate metric, with
    stype.
    """

    name = "accelerators"
    is_exposed = False
    Settings = AcceleratorsSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "acc_utilization": Metric("%", "accelerator",
            "share of recent time in which the card was busy; not with MIG",
            "NVML, nvmlDeviceGetUtilizationRates: gpu; AMD SMI, gfx_activity", aggregation="mean"),
        "acc_mem_used": Metric("B", "accelerator",
            "memory in use, without memory reserved by the driver",
            "NVML, nvmlDeviceGetMemoryInfo: used; AMD SMI, VRAM"),
        "acc_power": Metric("W", "accelerator", "power of the card",
            "NVML, nvmlDeviceGetPowerUsage; AMD SMI, socket_power"),
        "acc_temperature": Metric("degC", "accelerator", "temperature of the chip",
            "NVML, nvmlDeviceGetTemperature; AMD SMI, edge, else hot spot", aggregation="max"),
        "acc_clock": Metric("Hz", "accelerator", "clock of the SMs or compute units",
            "NVML, nvmlDeviceGetClockInfo: SM; AMD SMI, GFX", aggregation="mean", is_default=False),
        "acc_mem_clock": Metric("Hz", "accelerator", "memory clock",
            "NVML, nvmlDeviceGetClockInfo: MEM; AMD SMI, MEM", aggregation="mean",
            is_default=False),
        "acc_mem_share": Metric("%", "accelerator",
            "memory in use, relative to the memory of the card; not with MIG",
            "NVML, nvmlDeviceGetMemoryInfo; AMD SMI, VRAM", aggregation="mean", is_default=False),
        "acc_power_limit": Metric("W", "accelerator", "power limit of the card",
            "NVML, nvmlDeviceGetPowerManagementLimit; AMD SMI, power_cap", is_default=False),
        "acc_failing": Metric("", "accelerator", "1 for a card that does not answer, else 0",
            "NVML and AMD SMI: errors of a lost card", is_default=False),
        "acc_instance_mem_used": Metric("B", "accelerator",
            "memory in use, by MIG instance of a card (stype mig)",
            "NVML, nvmlDeviceGetMemoryInfo: used", is_default=False),
        **DETAILS,
    }  # fmt: skip

    def __init__(self, settings: AcceleratorsSettings | None = None) -> None:
        super().__init__(settings)
        self._gpus: Gpus | None = None
        self._is_asked = False
        self._of_parts: set[str] = set()

    def begin(self, node: Node) -> None:
        """Start the calls of the libraries. They run while other readers read."""
        if self._gpus is None and is_any_present(node, self.settings.vendors):
            from ccagent.machine.gpu.gpus import Gpus

            settings = GpuSettings(
                gpu_vendors=self.settings.vendors, gpu_time_limit=self.settings.time_limit
            )
            self._gpus = Gpus(node, settings)
        if self._gpus is not None:
            self._gpus.ask("read", select_details(self.wanted))
            self._is_asked = True

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Return the values; wait up to `time_limit`. Raise NotHereError without cards."""
        self.errors = []
        if not self._is_asked:
            self.begin(node)
        if self._gpus is None:
            raise NotHereError("no driver has an accelerator")
        self._is_asked = False
        values = [*card_values(self._gpus.reading(self.errors))]
        self._of_parts |= {value.metric for value in values if value.scope.stype}
        return values

    def list_pending(self, node: Node) -> dict[str, ScopeType]:  # noqa: ARG002 - from readings
        """Return the metrics of links and instances; they have no value per card."""
        return dict.fromkeys(sorted(self._of_parts), "accelerator")

    def close(self) -> None:
        """Close the libraries."""
        if self._gpus is not None:
            self._gpus.close()


def card_values(reading: GpuReading) -> Iterator[Gauge | Count]:
    """Yield the values of all cards. Failing cards without address are skipped."""
    memory: dict[str, int] = {}
    for card in reading.cards:
        address = reading.addresses.get(card.index, "")
        memory[address] = memory.get(address, 0) + card.memory * _KB
    for card in reading.cards:
        address = parse_address(reading.addresses.get(card.index, ""))
        if not address:
            continue
        if card.index in reading.instances:
            if card.index not in reading.without_memory:
                instance = Scope("accelerator", address, "mig", card.uuid)
                yield Gauge("acc_instance_mem_used", card.memory * _KB, instance)
            continue
        scope = Scope("accelerator", address)
        yield Gauge("acc_failing", card.failing, scope)
        yield from detail_values(reading.details.get(card.index, ()), scope)
        if card.failing:
            continue
        is_divided = card.index in reading.partitioned
        if not is_divided and card.index not in reading.without_utilization:
            yield Gauge("acc_utilization", card.ce_util, scope)
        if card.index not in reading.without_memory:
            yield Gauge("acc_mem_used", memory[address], scope)
            if not is_divided:
                yield Gauge("acc_mem_share", card.memory_util, scope)
        yield from _state_values(card, scope)


def _state_values(card: SampleGpu, scope: Scope) -> Iterator[Gauge]:
    # 0 means unknown.
    for metric, value in (
        ("acc_power", card.power),
        ("acc_temperature", card.temperature),
        ("acc_clock", card.ce_clock * _MHZ),
        ("acc_mem_clock", card.memory_clock * _MHZ),
        ("acc_power_limit", card.power_limit),
    ):
        if value:
            yield Gauge(metric, value, scope)
