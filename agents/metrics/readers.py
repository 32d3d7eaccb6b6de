"""The readers, by the names that `readers` knows; imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.agents.metrics.reading import Reader

READERS = {
    "cpu": "ccagent.agents.metrics.cpu:CpuReader",
    "memory": "ccagent.agents.metrics.memory:MemoryReader",
    "pressure": "ccagent.agents.metrics.pressure:PressureReader",
    "network": "ccagent.agents.metrics.network:NetworkReader",
    "infiniband": "ccagent.agents.metrics.infiniband:InfinibandReader",
    "nfs": "ccagent.agents.metrics.nfs:NfsReader",
    "disk": "ccagent.agents.metrics.disk:DiskReader",
    "filesystem": "ccagent.agents.metrics.filesystem:FilesystemReader",
    "power": "ccagent.agents.metrics.power:PowerReader",
    "temperature": "ccagent.agents.metrics.temperature:TemperatureReader",
    "cgroup-jobs": "ccagent.agents.metrics.cgroup_jobs:CgroupJobsReader",
    "perf": "ccagent.agents.metrics.perf:PerfReader",
}


def make_readers(names: Iterable[str]) -> list[Reader]:
    """Make the readers with these names, all if there are none."""
    found: list[Reader] = []
    for name in tuple(names) or READERS:
        module, _, attribute = READERS[name].partition(":")
        found.append(getattr(import_module(module), attribute)())
    return found
