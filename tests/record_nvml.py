"""Record what NVML answers on this machine as a scenario: tests/gpu_libraries/scenario.h.

python -m tests.record_nvml >FILE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

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
)  # fmt: skip


def record() -> str:
    """Give the lines."""
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
