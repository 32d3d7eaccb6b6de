"""Reader of accelerators, through the vendor libraries; some metrics need calls on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

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
from ccagent.errors import NotHereError
from ccagent.machine.gpu.vendor import Detail, check_vendor_names, is_any_present, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu


def _metric(
    unit: str,
    description: str,
    source: str,
    aggregation: Literal["sum", "mean", "max"] = "sum",
    scale: float = 1.0,
) -> Metric:
    return Metric(
        unit=unit,
        type="accelerator",
        description=description,
        source=source,
        aggregation=aggregation,
        scale=scale,
        is_default=False,
    )


def _share(description: str, source: str) -> Metric:
    return _metric("%", f"share of time in which {description}", source, "mean")


def _clock(description: str, source: str) -> Metric:
    return _metric("Hz", description, source, "mean", 1e6)


def _reason(description: str, source: str) -> Metric:
    return _metric("", f"1 while clocks are throttled {description}, else 0", source, "max")


def _violation(description: str, field: str) -> Metric:
    return _metric(
        "s",
        f"total time below the requested clocks {description}",
        f"NVML, field NVML_FI_DEV_PERF_POLICY_{field}",
        scale=1e-9,
    )


_ECC = "NVML, nvmlDeviceGetTotalEccErrors"
_AMD_ECC = "AMD SMI, gpu_total_ecc_count"
_ROWS = "NVML, nvmlDeviceGetRemappedRows"
_EVENTS = "NVML, nvmlDeviceGetCurrentClocksEventReasons"
_VIOLATION = "AMD SMI, violation_status"

_ERRORS = {
    "acc_xid_errors": _metric("", "Xid errors since ccagent started to watch",
        "NVML, nvmlEventSetWait: Xid events"),
    "acc_xid": _metric("", "number of the last Xid error since ccagent started to watch; 0: none",
        "NVML, nvmlEventSetWait: Xid events", "max"),
    "acc_ecc_enabled": _metric("", "1 if ECC is on, else 0", "NVML, nvmlDeviceGetEccMode: current",
        "max"),
    "acc_ecc_corrected": _metric("", "errors corrected by ECC, over the life of the card",
        f"{_ECC}: corrected, aggregate"),
    "acc_ecc_uncorrected": _metric("", "errors not corrected by ECC, over the life of the card",
        f"{_ECC}: uncorrected, aggregate"),
    "acc_ecc_corrected_volatile": _metric("", "errors corrected by ECC since the driver was loaded",
        f"{_ECC}: corrected, volatile; {_AMD_ECC}: correctable_count"),
    "acc_ecc_uncorrected_volatile": _metric("",
        "errors not corrected by ECC since the driver was loaded",
        f"{_ECC}: uncorrected, volatile; {_AMD_ECC}: uncorrectable_count"),
    "acc_retired_pages": _metric("", "retired memory pages",
        "NVML, fields NVML_FI_DEV_RETIRED_SBE + _DBE; AMD SMI, gpu_bad_page_info: reserved"),
    "acc_retired_pages_single_bit": _metric("", "pages retired after several single-bit errors",
        "NVML, field NVML_FI_DEV_RETIRED_SBE"),
    "acc_retired_pages_double_bit": _metric("", "pages retired after a double-bit error",
        "NVML, field NVML_FI_DEV_RETIRED_DBE"),
    "acc_retired_pages_pending": _metric("",
        "1 if pages are pending retirement at the next reset, else 0",
        "NVML, field NVML_FI_DEV_RETIRED_PENDING; AMD SMI, gpu_bad_page_info: pending", "max"),
    "acc_remapped_rows_corrected": _metric("", "memory rows remapped after correctable errors",
        f"{_ROWS}: corrRows"),
    "acc_remapped_rows_uncorrected": _metric("", "memory rows remapped after uncorrectable errors",
        f"{_ROWS}: uncRows"),
    "acc_remapped_rows_pending": _metric("",
        "1 if rows are pending remapping at the next reset, else 0", f"{_ROWS}: isPending", "max"),
    "acc_remapped_rows_failure": _metric("", "1 if remapping of a row ever failed, else 0",
        f"{_ROWS}: failureOccurred", "max"),
    "acc_pcie_replays": _metric("", "total PCIe packet replays",
        "NVML, nvmlDeviceGetPcieReplayCounter; AMD SMI, pcie_info: pcie_replay_count"),
}  # fmt: skip

_THROTTLING = {
    "acc_throttle_idle": _reason("because the card is idle", f"{_EVENTS}: GpuIdle"),
    "acc_throttle_clock_setting": _reason("by the setting of application clocks",
        f"{_EVENTS}: ApplicationsClocksSetting"),
    "acc_throttle_power_cap": _reason("by the power limit",
        f"{_EVENTS}: SwPowerCap; {_VIOLATION}: active_ppt_pwr"),
    "acc_throttle_hw_slowdown": _reason("by the hardware, to half or less",
        f"{_EVENTS}: HwSlowdown"),
    "acc_throttle_sync_boost": _reason("to the clocks of a sync boost group",
        f"{_EVENTS}: SyncBoost"),
    "acc_throttle_sw_thermal": _reason("by the driver because of temperature",
        f"{_EVENTS}: SwThermalSlowdown"),
    "acc_throttle_hw_thermal": _reason("by the hardware because of temperature",
        f"{_EVENTS}: HwThermalSlowdown; {_VIOLATION}: active_socket_thrm"),
    "acc_throttle_power_brake": _reason("by a power brake signal of the power supply",
        f"{_EVENTS}: HwPowerBrakeSlowdown"),
    "acc_throttle_display": _reason("by a display setting", f"{_EVENTS}: DisplayClockSetting"),
    "acc_throttle_prochot": _reason("by PROCHOT", f"{_VIOLATION}: active_prochot_thrm"),
    "acc_throttle_vr_thermal": _reason("because of the temperature of voltage regulators",
        f"{_VIOLATION}: active_vr_thrm"),
    "acc_throttle_mem_thermal": _reason("because of the temperature of the memory",
        f"{_VIOLATION}: active_hbm_thrm"),
    "acc_violation_power": _violation("by the power limit", "POWER"),
    "acc_violation_thermal": _violation("by temperature", "THERMAL"),
    "acc_violation_sync_boost": _violation("by a sync boost group", "SYNC_BOOST"),
    "acc_violation_board_limit": _violation("by a limit of the board", "BOARD_LIMIT"),
    "acc_violation_low_util": _violation("because of low utilisation", "LOW_UTILIZATION"),
    "acc_violation_reliability": _violation("because of reliability voltage", "RELIABILITY"),
    "acc_violation_below_app_clock": _violation("(application clocks)", "TOTAL_APP_CLOCKS"),
    "acc_violation_below_base_clock": _violation("(base clocks)", "TOTAL_BASE_CLOCKS"),
}  # fmt: skip

_ENGINES = {
    "acc_mem_utilization": _share("memory was read or written",
        "NVML, nvmlDeviceGetUtilizationRates: memory; AMD SMI, umc_activity"),
    "acc_encoder_utilization": _share("the encoder was busy",
        "NVML, nvmlDeviceGetEncoderUtilization"),
    "acc_decoder_utilization": _share("the decoder was busy",
        "NVML, nvmlDeviceGetDecoderUtilization"),
    "acc_jpeg_utilization": _share("the JPEG engine was busy", "NVML, nvmlDeviceGetJpgUtilization"),
    "acc_ofa_utilization": _share("the optical flow accelerator was busy",
        "NVML, nvmlDeviceGetOfaUtilization"),
    "acc_media_utilization": _share("encoder or decoder was busy", "AMD SMI, mm_activity"),
    "acc_mem_temperature": _metric("degC", "temperature of the memory",
        "NVML, field NVML_FI_DEV_MEMORY_TEMP", "max"),
    "acc_fan": _metric("%", "fan speed, relative to its maximum",
        "NVML, nvmlDeviceGetFanSpeed; AMD SMI, fan_speed", "max"),
    "acc_performance_state": _metric("", "performance state, 0 (P0, fastest) to 15",
        "NVML, nvmlDeviceGetPerformanceState", "max"),
    "acc_graphics_clock": _clock("graphics clock", "NVML, nvmlDeviceGetClockInfo: GRAPHICS"),
    "acc_video_clock": _clock("video engine clock",
        "NVML, nvmlDeviceGetClockInfo: VIDEO; AMD SMI, VCLK0"),
    "acc_max_clock": _clock("maximum clock of the SMs or compute units",
        "NVML, nvmlDeviceGetMaxClockInfo: SM; AMD SMI, GFX"),
    "acc_max_mem_clock": _clock("maximum memory clock",
        "NVML, nvmlDeviceGetMaxClockInfo: MEM; AMD SMI, MEM"),
    "acc_max_graphics_clock": _clock("maximum graphics clock",
        "NVML, nvmlDeviceGetMaxClockInfo: GRAPHICS"),
    "acc_max_video_clock": _clock("maximum video engine clock",
        "NVML, nvmlDeviceGetMaxClockInfo: VIDEO; AMD SMI, VCLK0"),
    "acc_energy": _metric("J", "energy since the driver was loaded",
        "NVML, nvmlDeviceGetTotalEnergyConsumption; AMD SMI, energy_count", scale=1e-3),
    "acc_power_average": _metric("W", "mean power since the previous sample",
        "NVML, nvmlDeviceGetTotalEnergyConsumption; AMD SMI, energy_count", scale=1e-3),
}  # fmt: skip

_TRAFFIC = "NVML, field NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_"
_KIB = 1024.0

_LINKS = {
    "acc_pcie_tx": _metric("B/s", "bytes sent over PCIe, measured over 20 ms",
        "NVML, nvmlDeviceGetPcieThroughput: TX_BYTES, KB of 1024 B", scale=_KIB),
    "acc_pcie_rx": _metric("B/s", "bytes received over PCIe, measured over 20 ms",
        "NVML, nvmlDeviceGetPcieThroughput: RX_BYTES, KB of 1024 B", scale=_KIB),
    "acc_nvlink_active": _metric("", "active NVLink links", "NVML, nvmlDeviceGetNvLinkState"),
    "acc_nvlink_link_active": _metric("", "1 for an active link, else 0, by link (stype nvlink)",
        "NVML, nvmlDeviceGetNvLinkState"),
    "acc_nvlink_tx": _metric("B/s", "data sent over NVLink, all links", f"{_TRAFFIC}TX",
        scale=_KIB),
    "acc_nvlink_rx": _metric("B/s", "data received over NVLink, all links", f"{_TRAFFIC}RX",
        scale=_KIB),
    "acc_nvlink_link_tx": _metric("B/s", "data sent, by link (stype nvlink)", f"{_TRAFFIC}TX",
        scale=_KIB),
    "acc_nvlink_link_rx": _metric("B/s", "data received, by link (stype nvlink)", f"{_TRAFFIC}RX",
        scale=_KIB),
    "acc_xgmi_tx": _metric("B/s", "data sent over XGMI, all links", "AMD SMI, link_metrics: write",
        scale=_KIB),
    "acc_xgmi_rx": _metric("B/s", "data received over XGMI, all links",
        "AMD SMI, link_metrics: read", scale=_KIB),
}  # fmt: skip


_ACTIVITY = {
    "graphics_active": (
        "in which a kernel or a graphics program ran, of all time",
        "GRAPHICS_UTIL",
    ),
    "sm_active": ("of the SMs that were busy", "SM_UTIL"),
    "sm_occupancy": ("of the warps that were active, of the maximum", "SM_OCCUPANCY"),
    "tensor_active": ("of tensor operations of any kind", "ANY_TENSOR_UTIL"),
    "dram_active": ("of the memory's bandwidth, of the maximum", "DRAM_BW_UTIL"),
    "fp64_active": ("of FP64 operations without tensor cores", "FP64_UTIL"),
    "fp32_active": ("of FP32 operations without tensor cores", "FP32_UTIL"),
    "fp16_active": ("of FP16 operations without tensor cores", "FP16_UTIL"),
}
_RATES = {
    "gpm_pcie_tx": ("sent over PCIe", "PCIE_TX_PER_SEC"),
    "gpm_pcie_rx": ("received over PCIe", "PCIE_RX_PER_SEC"),
    "gpm_nvlink_tx": ("sent over NVLink, all links", "NVLINK_TOTAL_TX_PER_SEC"),
    "gpm_nvlink_rx": ("received over NVLink, all links", "NVLINK_TOTAL_RX_PER_SEC"),
}
_OF_INSTANCE = "acc_instance_"
_GPM = "NVML, nvmlGpmMetricsGet: "


def _of_gpm() -> dict[str, Metric]:
    """Return the metrics of NVML's GPM: means since the previous sample, Hopper and later."""
    found: dict[str, Metric] = {}
    for name, (text, source) in _ACTIVITY.items():
        found[f"acc_{name}"] = _metric("%", f"share {text}", f"{_GPM}{source}", "mean", 1e-3)
    for name, (text, source) in _RATES.items():
        found[f"acc_{name}"] = _metric("B/s", f"mean rate of bytes {text}", f"{_GPM}{source}")
    for name, (text, source) in _ACTIVITY.items():
        found[f"{_OF_INSTANCE}{name}"] = _metric(
            "%", f"share {text}, by MIG instance (stype mig)", f"{_GPM}{source}", "mean", 1e-3
        )
    return found


def _link_errors(kind: str, what: str, counter: str) -> dict[str, Metric]:
    source = f"NVML, nvmlDeviceGetNvLinkErrorCounter: {counter}"
    return {
        f"acc_nvlink_{kind}_errors": _metric("", f"total {what} of NVLink, all links", source),
        f"acc_nvlink_link_{kind}_errors": _metric(
            "", f"total {what}, by link (stype nvlink)", source
        ),
    }


DETAILS: dict[str, Metric] = {
    **_ERRORS,
    **_THROTTLING,
    **_ENGINES,
    **_LINKS,
    **_link_errors("crc_flit", "flit CRC errors", "DL_CRC_FLIT"),
    **_link_errors("crc", "data CRC errors", "DL_CRC_DATA"),
    **_link_errors("ecc", "data ECC errors", "DL_ECC_DATA"),
    **_link_errors("replay", "replays", "DL_REPLAY"),
    **_link_errors("recovery", "recoveries", "DL_RECOVERY"),
    **_of_gpm(),
}
"""Metrics by name: `acc_` plus the name of the detail."""

_COUNTED = frozenset({
    "acc_power_average", "acc_nvlink_tx", "acc_nvlink_rx", "acc_nvlink_link_tx",
    "acc_nvlink_link_rx", "acc_xgmi_tx", "acc_xgmi_rx",
})  # fmt: skip
"""Details that are counters, sent as rates. All other details are gauges."""


def select_details(wanted: frozenset[str] | None) -> frozenset[str]:
    """Return the details for these metrics; None means all."""
    metrics = [name for name in DETAILS if wanted is None or name in wanted]
    return frozenset(
        "energy"
        if name == "acc_power_average"
        else name.removeprefix(_OF_INSTANCE).removeprefix("acc_")
        for name in metrics
    )


def detail_values(
    details: Iterable[Detail], scope: Scope, prefix: str = "acc_"
) -> Iterator[Gauge | Count]:
    """Return the values of a card and of its links, or of an instance."""
    for detail in details:
        names = [f"{prefix}{detail.name}"]
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
        check_vendor_names("vendors", self.vendors)


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

            self._gpus = Gpus(node, self.settings.vendors, self.settings.time_limit.seconds)
        if self._gpus is not None:
            self._gpus.ask("read", select_details(self.wanted))
            self._is_asked = True

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Return the values; wait up to `time_limit`. Raise NotHereError without cards."""
        self.forget_errors()
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
    memory = reading.sum_memory({card.index: card.memory * _KB for card in reading.cards})
    for card in reading.cards:
        address = parse_address(reading.addresses.get(card.index, ""))
        if not address:
            continue
        if card.index in reading.instances:
            instance = Scope("accelerator", address, "mig", card.uuid)
            if card.index not in reading.without_memory:
                yield Gauge("acc_instance_mem_used", card.memory * _KB, instance)
            yield from detail_values(reading.details.get(card.index, ()), instance, _OF_INSTANCE)
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
            yield Gauge("acc_mem_used", memory[card.index], scope)
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
