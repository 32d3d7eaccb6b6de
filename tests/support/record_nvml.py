"""Record what NVML answers on this machine as a scenario: tests/support/gpu_libraries/scenario.h.

python -m tests.support.record_nvml >FILE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from ccagent.machine.gpu.nvidia_details import field_number

NVML: Any = pynvml


class Question(NamedTuple):
    """A function of the library, the binding's name for it, arguments, and how to write it."""

    function: str
    name: str = ""
    arguments: tuple[Any, ...] = ()
    key: str = ""
    write: Callable[[Any], str] = str


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _words(values: Any) -> str:
    return " ".join(map(str, values))


def _fields(*names: str) -> Callable[[Any], str]:
    return lambda value: " ".join(str(getattr(value, name)) for name in names)


def _processes(processes: Any) -> str:
    return " ".join(f"{each.pid}:{each.usedGpuMemory or ''}" for each in processes)


def _fields_told(fields: Any) -> str:
    """Write one field, which has an error of its own."""
    (field,) = fields
    if field.nvmlReturn != NVML.NVML_SUCCESS:
        return f"!{field.nvmlReturn}"
    return f"{field.valueType}:{field_number(field)}"


def _samples(samples: Any) -> str:
    return " ".join(f"{each.pid}:{each.timeStamp}:{each.smUtil}" for each in samples)


QUESTIONS = (
    *(
        Question(f"nvmlDeviceGet{name}", write=_text)
        for name in (
            "UUID", "Name", "Architecture", "VbiosVersion", "MinorNumber", "ComputeMode",
            "PerformanceState", "FanSpeed", "PowerUsage", "PowerManagementLimit",
        )
    ),
    *(
        Question(f"nvmlDeviceGet{name}", write=_words)
        for name in ("PowerManagementLimitConstraints", "MigMode")
    ),
    *(
        Question(f"nvmlDeviceGet{name}", arguments=(clock,), key=f" {clock}")
        for name in ("ClockInfo", "MaxClockInfo")
        for clock in (1, 2)
    ),
    *(
        Question(f"nvmlDeviceGet{kind}RunningProcesses_v{version}", write=_processes)
        for kind in ("Compute", "Graphics", "MPSCompute")
        for version in (2, 3)
    ),
    *(
        Question(f"nvmlDeviceGet{name}", arguments=(0,), key=" 0")
        for name in ("Temperature", "TemperatureV")
    ),
    Question("nvmlDeviceGetPciInfo_v3", write=_fields("busId")),
    Question("nvmlDeviceGetUtilizationRates", write=_fields("gpu", "memory")),
    Question("nvmlDeviceGetMemoryInfo", write=_fields("total", "free", "used")),
    Question(
        "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", (NVML.nvmlMemory_v2,),
        write=_fields("total", "reserved", "free", "used"),
    ),
    Question("nvmlDeviceGetProcessUtilization", arguments=(0,), write=_samples),
    *(
        Question(f"nvmlDeviceGet{name}")
        for name in (
            "CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "PcieReplayCounter",
            "TotalEnergyConsumption",
        )
    ),
    *(
        Question(f"nvmlDeviceGet{name}", write=_words)
        for name in (
            "EccMode", "EncoderUtilization", "DecoderUtilization", "JpgUtilization",
            "OfaUtilization", "RemappedRows",
        )
    ),
    *(
        Question(f"nvmlDeviceGet{name}", arguments=(clock,), key=f" {clock}")
        for name in ("ClockInfo", "MaxClockInfo")
        for clock in (0, 3)
    ),
    *(
        Question("nvmlDeviceGetPcieThroughput", arguments=(direction,), key=f" {direction}")
        for direction in (0, 1)
    ),
    *(
        Question("nvmlDeviceGetTotalEccErrors", arguments=pair, key=f" {pair[0]} {pair[1]}")
        for pair in ((0, 0), (0, 1), (1, 0), (1, 1))
    ),
    *(
        Question("nvmlDeviceGetNvLinkState", arguments=(link,), key=f" {link}")
        for link in range(NVML.NVML_NVLINK_MAX_LINKS)
    ),
    *(
        Question("nvmlDeviceGetNvLinkErrorCounter", arguments=(link, kind), key=f" {link} {kind}")
        for link in range(NVML.NVML_NVLINK_MAX_LINKS)
        for kind in range(NVML.NVML_NVLINK_ERROR_COUNT)
    ),
    *(
        Question(
            "nvmlDeviceGetFieldValues", arguments=([(field, scope)],), key=f" {field} {scope}",
            write=_fields_told,
        )
        for fields, scopes in (
            ((*range(29, 32), *range(74, 83)), (0,)),
            ((138, 139), (0xFFFFFFFF, *range(NVML.NVML_NVLINK_MAX_LINKS))),
        )
        for field in fields
        for scope in scopes
    ),
)  # fmt: skip


def record() -> str:
    """Return the lines."""
    NVML.nvmlInit()
    count = NVML.nvmlDeviceGetCount()
    lines = [
        f"nvmlSystemGetDriverVersion = {_text(NVML.nvmlSystemGetDriverVersion())}",
        f"nvmlDeviceGetCount_v2 = {count}",
    ]
    for index in range(count):
        handle = NVML.nvmlDeviceGetHandleByIndex(index)
        for question in QUESTIONS:
            try:
                function = getattr(NVML, question.name or question.function)
                answer = question.write(function(handle, *question.arguments))
            except NVML.NVMLError as error:
                answer = f"!{error.value}"
            lines.append(f"{question.function} {index}{question.key} = {answer}")
    NVML.nvmlShutdown()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(record(), end="")
