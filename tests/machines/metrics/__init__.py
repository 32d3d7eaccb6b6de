"""Machines of which two readings are composed by hand, to see what the agent `metrics` sends.

What files can't hold stands in beside them: perf_event_open(2), statvfs(3), the clock, programs,
logs of drives. All machines are under CC0-1.0. The lines
that each must give are in tests/data/metrics; `python -m tests.machines.metrics` writes them anew,
after a change that is meant to change them.
"""

from __future__ import annotations

from pathlib import Path

from tests.machines.metrics import (
    amd_epyc,
    arm_grace,
    intel_icelake,
    many_sensors,
    plain_vm,
)
from tests.machines.metrics.machine import Machine
from tests.support.paths import DATA

MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        intel_icelake.MACHINE,
        amd_epyc.MACHINE,
        arm_grace.MACHINE,
        plain_vm.MACHINE,
        many_sensors.MACHINE,
    )
}

_DIRECTORY = DATA / "metrics"


def golden(name: str) -> Path:
    """Where the lines of a machine are kept."""
    return _DIRECTORY / f"{name}.lp"
