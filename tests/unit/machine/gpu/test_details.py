"""Numbers that are asked of NVML, compared with the maker's own binding."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from ccagent.machine.gpu import nvidia_details, nvml
from ccagent.machine.gpu.nvidia_details import field_number

NVML: Any = pynvml


def test_field_numbers_are_those_of_nvml() -> None:
    retired = {
        f"retired_pages_{key}": name
        for key, name in {"single_bit": "SBE", "double_bit": "DBE", "pending": "PENDING"}.items()
    }
    policies = {
        "power": "POWER",
        "thermal": "THERMAL",
        "sync_boost": "SYNC_BOOST",
        "board_limit": "BOARD_LIMIT",
        "low_util": "LOW_UTILIZATION",
        "reliability": "RELIABILITY",
        "below_app_clock": "TOTAL_APP_CLOCKS",
        "below_base_clock": "TOTAL_BASE_CLOCKS",
    }
    assert {
        **{key: getattr(NVML, f"NVML_FI_DEV_RETIRED_{name}") for key, name in retired.items()},
        **{
            f"violation_{key}": getattr(NVML, f"NVML_FI_DEV_PERF_POLICY_{name}")
            for key, name in policies.items()
        },
        "mem_temperature": NVML.NVML_FI_DEV_MEMORY_TEMP,
    } == nvidia_details._FIELDS
    assert {
        direction: getattr(NVML, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{direction.upper()}")
        for direction in ("tx", "rx")
    } == nvidia_details._TRAFFIC


def test_numbers_of_gpm_are_those_of_nvml() -> None:
    names = {
        "graphics_active": "GRAPHICS_UTIL",
        "sm_active": "SM_UTIL",
        "sm_occupancy": "SM_OCCUPANCY",
        "tensor_active": "ANY_TENSOR_UTIL",
        "dram_active": "DRAM_BW_UTIL",
        "fp64_active": "FP64_UTIL",
        "fp32_active": "FP32_UTIL",
        "fp16_active": "FP16_UTIL",
        "gpm_pcie_tx": "PCIE_TX_PER_SEC",
        "gpm_pcie_rx": "PCIE_RX_PER_SEC",
        "gpm_nvlink_rx": "NVLINK_TOTAL_RX_PER_SEC",
        "gpm_nvlink_tx": "NVLINK_TOTAL_TX_PER_SEC",
    }
    assert {name: getattr(NVML, f"NVML_GPM_METRIC_{key}") for name, key in names.items()} == (
        nvml.ACTIVITY | nvml.TRAFFIC
    )


def test_reasons_are_bits_of_nvml() -> None:
    names = {
        "idle": "GpuIdle",
        "clock_setting": "ApplicationsClocksSetting",
        "power_cap": "SwPowerCap",
        "hw_slowdown": "HwSlowdown",
        "sync_boost": "SyncBoost",
        "sw_thermal": "SwThermalSlowdown",
        "hw_thermal": "HwThermalSlowdown",
        "power_brake": "HwPowerBrakeSlowdown",
        "display": "DisplayClockSetting",
    }
    assert {
        f"throttle_{key}": getattr(NVML, f"nvmlClocksEventReason{name}")
        for key, name in names.items()
    } == nvidia_details._REASONS
    assert sum(nvidia_details._REASONS.values()) == NVML.nvmlClocksEventReasonAll


def test_arguments_are_constants_of_nvml() -> None:
    corrected, uncorrected = (
        NVML.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        NVML.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    volatile, aggregate = NVML.NVML_VOLATILE_ECC, NVML.NVML_AGGREGATE_ECC
    arguments = {name: given for name, (_, given) in nvidia_details._NUMBERS.items() if given}
    assert arguments == {
        "pcie_tx": (NVML.NVML_PCIE_UTIL_TX_BYTES,),
        "pcie_rx": (NVML.NVML_PCIE_UTIL_RX_BYTES,),
        "graphics_clock": (NVML.NVML_CLOCK_GRAPHICS,),
        "video_clock": (NVML.NVML_CLOCK_VIDEO,),
        "max_graphics_clock": (NVML.NVML_CLOCK_GRAPHICS,),
        "max_clock": (NVML.NVML_CLOCK_SM,),
        "max_mem_clock": (NVML.NVML_CLOCK_MEM,),
        "max_video_clock": (NVML.NVML_CLOCK_VIDEO,),
        "ecc_corrected": (corrected, aggregate),
        "ecc_uncorrected": (uncorrected, aggregate),
        "ecc_corrected_volatile": (corrected, volatile),
        "ecc_uncorrected_volatile": (uncorrected, volatile),
    }
    assert nvidia_details._ERRORS == {
        "replay": NVML.NVML_NVLINK_ERROR_DL_REPLAY,
        "recovery": NVML.NVML_NVLINK_ERROR_DL_RECOVERY,
        "crc_flit": NVML.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        "crc": NVML.NVML_NVLINK_ERROR_DL_CRC_DATA,
        "ecc": NVML.NVML_NVLINK_ERROR_DL_ECC_DATA,
    }
    assert nvidia_details._LINKS >= NVML.NVML_NVLINK_MAX_LINKS


def test_functions_are_in_the_binding() -> None:
    functions = {
        *(function for function, _ in nvidia_details._NUMBERS.values()),
        *nvidia_details._FIRST_OF_PAIR.values(),
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkErrorCounter",
        "nvmlEventSetCreate",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait_v2",
        "nvmlEventSetFree",
    }
    assert [name for name in sorted(functions) if not hasattr(NVML, name)] == []


@pytest.mark.parametrize(
    ("kind", "member", "value", "number"),
    [
        (NVML.NVML_VALUE_TYPE_DOUBLE, "dVal", 3.0, 3),
        (NVML.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", 4294967295, 4294967295),
        (NVML.NVML_VALUE_TYPE_UNSIGNED_LONG, "ulVal", 1 << 40, 1 << 40),
        (NVML.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 1 << 63, 1 << 63),
        (NVML.NVML_VALUE_TYPE_SIGNED_LONG_LONG, "sllVal", -7, -7),
        (NVML.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -7, -7),
        (NVML.NVML_VALUE_TYPE_UNSIGNED_SHORT, "usVal", 65535, 65535),
    ],
)
def test_a_field_has_the_type_that_it_names(
    kind: int, member: str, value: float, number: int
) -> None:
    field = NVML.c_nvmlFieldValue_t()
    ctypes.memset(ctypes.byref(field.value), 0xFF, ctypes.sizeof(field.value))
    field.valueType = kind
    setattr(field.value, member, value)
    assert field_number(field) == number


def test_a_field_that_is_not_told_is_unknown() -> None:
    field = NVML.c_nvmlFieldValue_t()
    field.valueType, field.value.ullVal = NVML.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 5
    field.nvmlReturn = NVML.NVML_ERROR_NOT_SUPPORTED
    assert field_number(field) is None
    field.nvmlReturn, field.valueType = NVML.NVML_SUCCESS, NVML.NVML_VALUE_TYPE_COUNT
    assert field_number(field) is None


def test_a_double_that_is_no_number_is_unknown() -> None:
    field = NVML.c_nvmlFieldValue_t()
    field.valueType, field.value.dVal = NVML.NVML_VALUE_TYPE_DOUBLE, float("nan")
    assert field_number(field) is None


def test_license_of_a_vgpu() -> None:
    features = NVML.c_nvmlGridLicensableFeatures_v4_t()
    assert nvidia_details._is_vgpu_licensed(features) == 0  # a card without vGPU
    features.licensableFeaturesCount = 1
    features.gridLicensableFeatures[0].featureCode = NVML.NVML_GRID_LICENSE_FEATURE_CODE_VGPU
    assert nvidia_details._is_vgpu_licensed(features) == 0
    features.gridLicensableFeatures[0].featureState = 1
    assert nvidia_details._is_vgpu_licensed(features) == 1
    assert nvidia_details._is_vgpu_licensed(None) is None
    assert NVML.nvmlMemory_v2 == nvidia_details._MEMORY_VERSION
