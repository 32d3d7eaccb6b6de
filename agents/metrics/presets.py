"""Unit presets: output names and units of metrics."""

from __future__ import annotations

from typing import Literal, NamedTuple

Preset = Literal["clustercockpit", "spec", "base", "cc-metric-collector"]

FACTORS = {
    ("B", "kB"): 1 / 1024, ("B", "KB"): 1e-3, ("B", "MB"): 1e-6, ("B", "GB"): 1e-9,
    ("B", "KiB"): 1 / 1024,
    ("B", "MiB"): 1 / 1024**2, ("B", "GiB"): 1 / 1024**3,
    ("B/s", "MB/s"): 1e-6, ("B/s", "GB/s"): 1e-9, ("B/s", "MByte/s"): 1e-6,
    ("Hz", "MHz"): 1e-6, ("Hz", "GHz"): 1e-9,
    ("Flops/s", "GFlops/s"): 1e-9, ("Flops/s", "MFlops/s"): 1e-6,
    ("B", "data units"): 1 / 512_000, ("s", "min"): 1 / 60, ("s", "h"): 1 / 3600,
    ("1/s", "packets/s"): 1.0, ("%", "percent"): 1.0, ("degC", "degC"): 1.0,
}  # fmt: skip
"""Factors that convert a value from the first unit to the second."""


class PresetOutput(NamedTuple):
    """Output name and unit of a metric, and the factor from the base unit."""

    name: str
    unit: str
    factor: float


# clustercockpit: the default cluster configuration of cc-backend (time step 60 s).
_UNITS: dict[str, dict[str, str]] = {
    "clustercockpit": {
        "B": "GB", "B/s": "MB/s", "Hz": "MHz", "Flops/s": "GFlops/s", "%": "percent",
    },
    "spec": {"B": "GB", "B/s": "MByte/s", "Hz": "MHz", "Flops/s": "Flops/s", "%": "percent"},
    "cc-metric-collector": {"Hz": "MHz", "%": "percent"},
}  # fmt: skip
_OWN_UNITS: dict[str, dict[str, str]] = {
    "clustercockpit": {"mem_bw": "GB/s", "ib_recv": "B/s", "ib_xmit": "B/s", "ib_rate": "B/s"},
    # kB has 1024 B, as in /proc/meminfo.
    "cc-metric-collector": {
        **dict.fromkeys(
            ("mem_used", "mem_free", "mem_available", "mem_buffers", "mem_cached", "mem_shared",
             "mem_slab", "swap_total"), "kB",
        ),
        "disk_total": "GB", "disk_free": "GB", "mem_bw": "MB/s", "flops_any": "MFlops/s",
        "flops_sp": "MFlops/s", "flops_dp": "MFlops/s", "acc_mem_used": "MiB",
        "nvme_bytes_read": "data units", "nvme_bytes_written": "data units",
        "nvme_warning_temp_time": "min", "nvme_critical_temp_time": "min",
    },
}  # fmt: skip
_NAMES: dict[str, dict[str, str]] = {
    "cc-metric-collector": {
        "cpu_load": "load_one", "cpu_load5": "load_five", "cpu_load15": "load_fifteen",
        "net_bytes_in": "net_bytes_in_bw", "net_bytes_out": "net_bytes_out_bw",
        "net_pkts_in": "net_pkts_in_bw", "net_pkts_out": "net_pkts_out_bw",
        "acc_utilization": "nv_util", "acc_mem_utilization": "nv_mem_util",
        "acc_mem_used": "nv_fb_mem_used", "acc_power": "nv_power_usage",
        "acc_power_limit": "nv_power_max_limit", "acc_power_average": "nv_average_power",
        "acc_energy": "nv_energy_abs", "acc_temperature": "nv_temp", "acc_fan": "nv_fan",
        "acc_clock": "nv_sm_clock", "acc_mem_clock": "nv_mem_clock",
        "acc_graphics_clock": "nv_graphics_clock", "acc_video_clock": "nv_video_clock",
        "acc_max_clock": "nv_max_sm_clock", "acc_max_mem_clock": "nv_max_mem_clock",
        "acc_max_graphics_clock": "nv_max_graphics_clock",
        "acc_max_video_clock": "nv_max_video_clock",
        "acc_ecc_corrected": "nv_ecc_corrected_error",
        "acc_ecc_uncorrected": "nv_ecc_uncorrected_error",
        "acc_encoder_utilization": "nv_encoder_util",
        "acc_decoder_utilization": "nv_decoder_util",
        **{
            f"acc_{name}": f"nv_{name}"
            for name in (
                "remapped_rows_corrected", "remapped_rows_uncorrected", "remapped_rows_pending",
                "remapped_rows_failure", "violation_power", "violation_thermal",
                "violation_sync_boost", "violation_board_limit", "violation_low_util",
                "violation_reliability", "violation_below_app_clock",
                "violation_below_base_clock",
            )
        },
        **{
            f"acc_nvlink_{part}{kind}_errors": f"nv_nvlink_{kind}_errors{suffix}"
            for kind in ("crc_flit", "crc", "ecc", "replay", "recovery")
            for part, suffix in (("", "_sum"), ("link_", ""))
        },
        "nfs_mount_app_read": "nfsio_nread_bw", "nfs_mount_app_write": "nfsio_nwrite_bw",
        "nfs_mount_direct_read": "nfsio_dread_bw", "nfs_mount_direct_write": "nfsio_dwrite_bw",
        "nfs_mount_read": "nfsio_nfsread_bw", "nfs_mount_write": "nfsio_nfswrite_bw",
        "nfs_mount_pages_read": "nfsio_pageread_bw",
        "nfs_mount_pages_written": "nfsio_pagewrite_bw",
        "nvme_temp": "smartmon_temp", "nvme_percentage_used": "smartmon_percent_used",
        "nvme_spare": "smartmon_avail_spare", "nvme_bytes_read": "smartmon_data_units_read",
        "nvme_bytes_written": "smartmon_data_units_write",
        "nvme_host_reads": "smartmon_host_reads", "nvme_host_writes": "smartmon_host_writes",
        "nvme_power_cycles": "smartmon_power_cycles", "nvme_power_on_time": "smartmon_power_on",
        "nvme_unsafe_shutdowns": "smartmon_unsafe_shutdowns",
        "nvme_media_errors": "smartmon_media_errors",
        "nvme_error_log_entries": "smartmon_errlog_entries",
        "nvme_warning_temp_time": "smartmon_warn_temp_time",
        "nvme_critical_temp_time": "smartmon_crit_comp_time",
        "gpfs_read": "gpfs_bw_read", "gpfs_write": "gpfs_bw_write",
        "gpfs_opens": "gpfs_opens_rate", "gpfs_closes": "gpfs_closes_rate",
        "gpfs_reads": "gpfs_reads_rate", "gpfs_writes": "gpfs_writes_rate",
        "gpfs_readdirs": "gpfs_readdirs_rate",
        "gpfs_inode_updates": "gpfs_inode_updates_rate",
    },
}  # fmt: skip
"""Output names that differ from the metric name."""


def apply_preset(preset: Preset, metric: str, base: str) -> PresetOutput:
    """Return output name and unit of a metric under a preset. base: the base unit."""
    unit = _OWN_UNITS.get(preset, {}).get(metric) or _UNITS.get(preset, {}).get(base, base)
    name = _NAMES.get(preset, {}).get(metric, metric)
    return PresetOutput(name, unit, find_factor(base, unit))


def find_factor(base: str, unit: str) -> float:
    """Return the factor from a base unit to another. Raise ValueError if none exists."""
    if base == unit:
        return 1.0
    known = FACTORS.get((base, unit))
    if known is None:
        units = sorted(other for first, other in FACTORS if first == base)
        raise ValueError(
            f"{base!r} cannot be sent as {unit!r}; there are {', '.join(units) or base}"
        )
    return known
