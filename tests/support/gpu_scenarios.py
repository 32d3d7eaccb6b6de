"""What cards answer: see tests/support/gpu_libraries/scenario.h for the form."""

from __future__ import annotations

DRIVER = """
nvmlSystemGetDriverVersion = 550.54.15
nvmlDeviceGetCount_v2 = 2
"""

H100 = """
nvmlDeviceGetUUID 0 = GPU-11111111-2222-3333-4444-555555555555
nvmlDeviceGetPciInfo_v3 0 = 00000000:0E:00.0
nvmlDeviceGetMinorNumber 0 = 0
nvmlDeviceGetName 0 = NVIDIA H100 80GB HBM3
nvmlDeviceGetArchitecture 0 = 9
nvmlDeviceGetVbiosVersion 0 = 96.00.61.00.01
nvmlDeviceGetMemoryInfo_v2 0 = 85899345920 524288000 64424509440 20950548480
nvmlDeviceGetPowerManagementLimit 0 = 700000
nvmlDeviceGetPowerManagementLimitConstraints 0 = 200000 710000
nvmlDeviceGetMaxClockInfo 0 1 = 1980
nvmlDeviceGetMaxClockInfo 0 2 = 2619
nvmlDeviceGetClockInfo 0 1 = 1755
nvmlDeviceGetClockInfo 0 2 = 2600
nvmlDeviceGetComputeMode 0 = 3
nvmlDeviceGetPerformanceState 0 = 0
nvmlDeviceGetUtilizationRates 0 = 87 40
nvmlDeviceGetTemperature 0 0 = 61
nvmlDeviceGetPowerUsage 0 = 512499
nvmlDeviceGetComputeRunningProcesses_v3 0 = 1000:10737418240 1001:5368709120
nvmlDeviceGetGraphicsRunningProcesses_v3 0 = 1001:5368709120 1002:104857600
nvmlDeviceGetMPSComputeRunningProcesses_v3 0 = 1003:1048576
nvmlDeviceGetProcessUtilization 0 = 1000:5000000:60 1001:5100000:20 0:5100000:12 1003:5000000:4000
"""
"""A card for data centres: it has no fan."""

A40 = """
nvmlDeviceGetUUID 1 = GPU-66666666-7777-8888-9999-aaaaaaaaaaaa
nvmlDeviceGetPciInfo_v3 1 = 00000000:C1:00.0
nvmlDeviceGetMinorNumber 1 = 3
nvmlDeviceGetName 1 = NVIDIA A40
nvmlDeviceGetArchitecture 1 = 7
nvmlDeviceGetMemoryInfo 1 = 48318382080 48000000000 318382080
nvmlDeviceGetFanSpeed 1 = 104
nvmlDeviceGetPerformanceState 1 = 32
nvmlDeviceGetTemperatureV 1 0 = -7
nvmlDeviceGetUtilizationRates 1 = 0 0
nvmlDeviceGetComputeRunningProcesses_v3 1 = !13
nvmlDeviceGetComputeRunningProcesses_v2 1 = 1000:
"""
"""A card in the cold, with an older driver's functions for memory and processes."""

NVIDIA = DRIVER + H100 + A40
NVIDIA_ADDRESSES = ["0000:0e:00.0", "0000:c1:00.0"]

MIG = """
nvmlDeviceGetMigMode 0 = 1 1
nvmlDeviceGetMaxMigDeviceCount 0 = 7
nvmlDeviceGetUtilizationRates 0 = !3
nvmlDeviceGetUUID 0/1 = MIG-aaaaaaaa-0000-0000-0000-000000000001
nvmlDeviceGetName 0/1 = NVIDIA H100 80GB HBM3 MIG 3g.40gb
nvmlDeviceGetMemoryInfo_v2 0/1 = 42949672960 0 32212254720 10737418240
nvmlDeviceGetComputeRunningProcesses_v3 0/1 = 1000:10737418240
nvmlDeviceGetUUID 0/4 = MIG-aaaaaaaa-0000-0000-0000-000000000004
nvmlDeviceGetName 0/4 = NVIDIA H100 80GB HBM3 MIG 1g.10gb
nvmlDeviceGetMemoryInfo_v2 0/4 = 10737418240 0 5368709120 5368709120
nvmlDeviceGetComputeRunningProcesses_v3 0/4 = 1001:5368709120
"""
"""To follow H100: two instances on it."""

GPM = """
nvmlSystemGetDriverVersion = 580.65.06
nvmlGpmQueryDeviceSupport 0 = 1
nvmlGpmQueryDeviceSupport 1 = 0
nvmlGpmMetricsGet 0 1 = 97.5
nvmlGpmMetricsGet 0 2 = 41.25
nvmlGpmMetricsGet 0 3 = 12.5
nvmlGpmMetricsGet 0 5 = 30
nvmlGpmMetricsGet 0 10 = 22.75
nvmlGpmMetricsGet 0 20 = 100
nvmlGpmMetricsGet 0 60 = 2.5
"""
"""To follow H100: seven metrics of the first card; the second is too old."""

GPM_INSTANCES = """
nvmlDeviceGetGpuInstanceId 0/1 = 1
nvmlDeviceGetGpuInstanceId 0/4 = 9
nvmlGpmMetricsGet 0.1 1 = 80
nvmlGpmMetricsGet 0.1 2 = 60.5
nvmlGpmMetricsGet 0.1 3 = 20
nvmlGpmMetricsGet 0.1 5 = 10
nvmlGpmMetricsGet 0.1 10 = 15
nvmlGpmMetricsGet 0.1 11 = 0
nvmlGpmMetricsGet 0.1 12 = 33
nvmlGpmMetricsGet 0.9 1 = 0
nvmlGpmMetricsGet 0.9 2 = 0
"""
"""To follow MIG and GPM: two slices."""

MIG_SHARES = """
nvmlDeviceGetAttributes_v2 0/1 = 60
nvmlDeviceGetAttributes_v2 0/4 = 16
nvmlDeviceGetGpuInstanceProfileInfoV 0 4 = 132
"""
"""To follow MIG: multiprocessors of the instances, and of the largest one. Source: NVIDIA's MIG
User Guide, profiles of H100.
"""

AMD = """
amdsmi_get_processor_handles = 2
amdsmi_get_gpu_device_bdf 0 = 0000:c5:00.0
amdsmi_get_gpu_device_uuid 0 = 73ff740f-0000-1000-80c0-2e1be2a6b0c1
amdsmi_get_gpu_enumeration_info 0 = 128 0
amdsmi_get_gpu_asic_info 0 = 90a AMD Instinct MI250X
amdsmi_get_gpu_vbios_info 0 = 113-D65201-064
amdsmi_get_gpu_driver_info 0 = 6.10.5
amdsmi_get_power_cap_info 0 = 500000000 500000000 0 0 560000000
amdsmi_get_power_info 0 = 0 312
amdsmi_get_gpu_memory_total 0 = 68702699520
amdsmi_get_gpu_memory_usage 0 = 17175674880
amdsmi_get_clock_info 0 0 = 1650 1700
amdsmi_get_clock_info 0 4 = 1600 1600
amdsmi_get_temp_metric 0 1 = 55
amdsmi_get_gpu_fan_speed 0 = 51
amdsmi_get_gpu_fan_speed_max 0 = 255
amdsmi_get_gpu_perf_level 0 = 3
amdsmi_get_gpu_activity 0 = 90 33
amdsmi_get_gpu_compute_partition 0 = SPX
amdsmi_get_gpu_process_list 0 = 1000:8589934592 2000:4294967296 2001:1024
amdsmi_get_gpu_device_bdf 1 = 0000:c9:00.0
amdsmi_get_gpu_board_info 1 = Radeon Pro W6800
amdsmi_get_gpu_memory_total 1 = 34359738368
amdsmi_get_gpu_memory_usage 1 = 1073741824
amdsmi_get_power_cap_info 1 = 250 250 0 100 270
amdsmi_get_temp_metric 1 0 = -3
amdsmi_get_gpu_perf_level 1 = 256
amdsmi_get_gpu_activity 1 = 10 1
amdsmi_get_gpu_process_list 1 = 1000:0 2000:0
"""
"""A card with all, and one without uuid, whose processes' memory isn't told."""

H100_DETAILS = """
nvmlDeviceRegisterEvents 0 = 1
nvmlEventSetWait_v2 = 0:79 0:48
nvmlDeviceGetEccMode 0 = 1 1
nvmlDeviceGetTotalEccErrors 0 0 1 = 12
nvmlDeviceGetTotalEccErrors 0 1 1 = 3
nvmlDeviceGetTotalEccErrors 0 0 0 = 2
nvmlDeviceGetTotalEccErrors 0 1 0 = 0
nvmlDeviceGetFieldValues 0 29 0 = 3:4
nvmlDeviceGetFieldValues 0 30 0 = 3:1
nvmlDeviceGetFieldValues 0 31 0 = 1:1
nvmlDeviceGetFieldValues 0 74 0 = 3:5250000000
nvmlDeviceGetFieldValues 0 75 0 = 3:1024897024
nvmlDeviceGetFieldValues 0 82 0 = 1:64
nvmlDeviceGetFieldValues 0 138 4294967295 = 3:3145728
nvmlDeviceGetFieldValues 0 139 4294967295 = 3:2097152
nvmlDeviceGetFieldValues 0 138 0 = 3:1048576
nvmlDeviceGetFieldValues 0 138 1 = 3:2097152
nvmlDeviceGetFieldValues 0 139 0 = 3:2097152
nvmlDeviceGetRemappedRows 0 = 1 2 1 0
nvmlDeviceGetCurrentClocksEventReasons 0 = 0x44
nvmlDeviceGetPcieReplayCounter 0 = 6
nvmlDeviceGetPcieThroughput 0 0 = 1000
nvmlDeviceGetPcieThroughput 0 1 = 3000
nvmlDeviceGetClockInfo 0 0 = 1740
nvmlDeviceGetClockInfo 0 3 = 1545
nvmlDeviceGetMaxClockInfo 0 0 = 1980
nvmlDeviceGetMaxClockInfo 0 3 = 1545
nvmlDeviceGetEncoderUtilization 0 = 7 167000
nvmlDeviceGetDecoderUtilization 0 = 0 167000
nvmlDeviceGetJpgUtilization 0 = 3 167000
nvmlDeviceGetOfaUtilization 0 = 4 167000
nvmlDeviceGetTotalEnergyConsumption 0 = 123456789
nvmlDeviceGetNvLinkState 0 0 = 1
nvmlDeviceGetNvLinkState 0 1 = 1
nvmlDeviceGetNvLinkState 0 2 = 0
nvmlDeviceGetNvLinkErrorCounter 0 0 0 = 5
nvmlDeviceGetNvLinkErrorCounter 0 1 0 = 6
nvmlDeviceGetNvLinkErrorCounter 0 0 1 = 1
nvmlDeviceGetNvLinkErrorCounter 0 0 2 = 21
nvmlDeviceGetNvLinkErrorCounter 0 0 3 = 31
nvmlDeviceGetNvLinkErrorCounter 0 0 4 = 41
"""
"""To follow H100: what it tells on demand."""

AMD_DETAILS = """
amdsmi_get_gpu_total_ecc_count 0 = 8 1
amdsmi_get_violation_status 0 = 0 1 1 0 255
amdsmi_get_gpu_bad_page_info 0 = 0 0 2 1
amdsmi_get_energy_count 0 = 2000000 15.3
amdsmi_get_pcie_info 0 = 9
amdsmi_get_link_metrics 0 = 100:200 1:2
amdsmi_get_gpu_activity 0 = 90 33 65535
amdsmi_get_clock_info 0 6 = 700 1100
"""
"""To follow AMD: what the first card tells on demand."""

MI250X = """
amdsmi_get_processor_handles = 4
amdsmi_get_gpu_device_bdf 0 = 0000:c1:00.0
amdsmi_get_gpu_device_bdf 1 = 0000:c6:00.0
amdsmi_get_gpu_device_bdf 2 = 0000:c9:00.0
amdsmi_get_gpu_device_bdf 3 = 0000:ce:00.0
""" + "".join(
    f"""
amdsmi_get_gpu_device_uuid {die} = 73ff7408-0000-1000-80c0-00000000000{die}
amdsmi_get_gpu_asic_info {die} = 90a AMD Instinct MI250X
device_id {die} = 7408
amdsmi_get_gpu_board_info {die} = MI250X OAM
amdsmi_get_gpu_memory_total {die} = 68702699520
amdsmi_get_gpu_activity {die} = 0 0
amdsmi_get_power_info {die} = 0 {0 if die % 2 else 90}
amdsmi_get_energy_count {die} = {0 if die % 2 else 1000000} 15.3
"""
    for die in range(4)
)
"""Two modules of two dies, of which the first reports power. Source: addresses of LUMI-G's nodes;
issue 160 of ROCm/rocm_smi_lib; aldebaran_ppt.c of Linux.
"""

MI250X_ADDRESSES = [f"0000:{bus}:00.0" for bus in ("c1", "c6", "c9", "ce")]

AMD_ADDRESSES = ["0000:c5:00.0", "0000:c9:00.0"]
