"""On-demand metrics of accelerators: each costs an additional call."""

from __future__ import annotations

from typing import Literal

from ccagent.agents.metrics.readers.base import Metric


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
}
"""Metrics by name: `acc_` plus the name of the detail."""
