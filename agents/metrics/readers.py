"""The readers, by the names that `readers` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.agents.metrics.accelerators import AcceleratorsReader
from ccagent.agents.metrics.cgroup_jobs import CgroupJobsReader
from ccagent.agents.metrics.cpu import CpuReader
from ccagent.agents.metrics.cpufreq import CpufreqReader
from ccagent.agents.metrics.disk import DiskReader
from ccagent.agents.metrics.filesystem import FilesystemReader
from ccagent.agents.metrics.hwmon import HwmonReader
from ccagent.agents.metrics.infiniband import InfinibandReader
from ccagent.agents.metrics.memory import MemoryReader
from ccagent.agents.metrics.network import NetworkReader
from ccagent.agents.metrics.nfs import NfsReader
from ccagent.agents.metrics.numastat import NumastatReader
from ccagent.agents.metrics.own_counters import OwnCountersReader
from ccagent.agents.metrics.perf import PerfReader
from ccagent.agents.metrics.power import PowerReader
from ccagent.agents.metrics.pressure import PressureReader
from ccagent.agents.metrics.schedstat import SchedstatReader
from ccagent.agents.metrics.temperature import TemperatureReader

if TYPE_CHECKING:
    from ccagent.agents.metrics.reading import Reader
    from ccagent.agents.metrics.settings import MetricsSettings

_READERS: tuple[type[Reader[Any]], ...] = (
    CpuReader,
    CpufreqReader,
    SchedstatReader,
    MemoryReader,
    NumastatReader,
    PressureReader,
    NetworkReader,
    InfinibandReader,
    NfsReader,
    DiskReader,
    FilesystemReader,
    PowerReader,
    TemperatureReader,
    HwmonReader,
    CgroupJobsReader,
    PerfReader,
    OwnCountersReader,
    AcceleratorsReader,
)
_OF_COLLECTOR = {"cpu": {"of_node": "sum"}, "memory": {"used": "cc-metric-collector"}}
"""Settings of readers with which values mean what cc-metric-collector sends."""

READERS: dict[str, type[Reader[Any]]] = {reader.name: reader for reader in _READERS}


def make_readers(settings: MetricsSettings) -> list[Reader[Any]]:
    """Make the readers that the settings name, all if they name none, each with its table."""
    own = {name: getattr(settings, name.replace("-", "_")) for name in settings.readers or READERS}
    if settings.preset == "cc-metric-collector":
        for name, changed in _OF_COLLECTOR.items():
            if name in own:
                own[name] = structs.replace(own[name], **changed)
    return [READERS[name](each) for name, each in own.items()]
