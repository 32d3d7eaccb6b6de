"""Reader of accelerators, through the vendor libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.accelerator_details import detail_values, select_details
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
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu

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
    Settings = AcceleratorsSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "acc_utilization": Metric(
            unit="%",
            type="accelerator",
            description="share of recent time in which the card was busy; not with MIG",
            source="NVML, nvmlDeviceGetUtilizationRates: gpu; AMD SMI, gfx_activity",
            aggregation="mean",
        ),
        "acc_mem_used": Metric(
            unit="B",
            type="accelerator",
            description="memory in use, without memory reserved by the driver",
            source="NVML, nvmlDeviceGetMemoryInfo: used; AMD SMI, VRAM",
        ),
        "acc_power": Metric(
            unit="W",
            type="accelerator",
            description="power of the card",
            source="NVML, nvmlDeviceGetPowerUsage; AMD SMI, socket_power",
        ),
        "acc_temperature": Metric(
            unit="degC",
            type="accelerator",
            description="temperature of the chip",
            source="NVML, nvmlDeviceGetTemperature; AMD SMI, edge, else hot spot",
            aggregation="max",
        ),
        "acc_clock": Metric(
            unit="Hz",
            type="accelerator",
            description="clock of the SMs or compute units",
            source="NVML, nvmlDeviceGetClockInfo: SM; AMD SMI, GFX",
            aggregation="mean",
            is_default=False,
        ),
        "acc_mem_clock": Metric(
            unit="Hz",
            type="accelerator",
            description="memory clock",
            source="NVML, nvmlDeviceGetClockInfo: MEM; AMD SMI, MEM",
            aggregation="mean",
            is_default=False,
        ),
        "acc_mem_share": Metric(
            unit="%",
            type="accelerator",
            description="memory in use, relative to the memory of the card; not with MIG",
            source="NVML, nvmlDeviceGetMemoryInfo; AMD SMI, VRAM",
            aggregation="mean",
            is_default=False,
        ),
        "acc_power_limit": Metric(
            unit="W",
            type="accelerator",
            description="power limit of the card",
            source="NVML, nvmlDeviceGetPowerManagementLimit; AMD SMI, power_cap",
            is_default=False,
        ),
        "acc_failing": Metric(
            unit="",
            type="accelerator",
            description="1 for a card that does not answer, else 0",
            source="NVML and AMD SMI: errors of a lost card",
            is_default=False,
        ),
        "acc_instance_mem_used": Metric(
            unit="B",
            type="accelerator",
            description="memory in use, by MIG instance of a card (stype mig)",
            source="NVML, nvmlDeviceGetMemoryInfo: used",
            is_default=False,
        ),
        **DETAILS,
    }

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
