"""Recording what NVML answers, from the scripted library."""

from __future__ import annotations

import subprocess
import sys

from tests.support.gpu_libraries import Libraries
from tests.support.gpu_scenarios import DRIVER, H100, H100_DETAILS
from tests.support.paths import ROOT

NOT_RECORDED = ("nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlDeviceGetMemoryInfo ")
"""Events, and a function of older drivers that has no line."""


def answers(scenario: str) -> dict[str, str]:
    return {
        key: answer
        for line in scenario.splitlines()
        for key, equals, answer in [line.partition(" = ")]
        if equals and not key.startswith(NOT_RECORDED) and not answer.startswith("!")
    }


def test_a_recording_is_a_scenario_with_the_same_answers(libraries: Libraries) -> None:
    script = "\n".join([DRIVER.replace("= 2", "= 1"), H100, H100_DETAILS]).replace("0x44", "68")
    libraries.play(script)
    command = [sys.executable, "-m", "tests.support.record_nvml"]
    recorded = subprocess.run(
        command, capture_output=True, check=True, cwd=ROOT, timeout=60, text=True
    )
    assert answers(recorded.stdout) == answers(script)
