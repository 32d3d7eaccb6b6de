"""The readers, by the names that `readers` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.accelerators import AcceleratorsReader
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader
from ccagent.agents.metrics.readers.cpu import CpuReader
from ccagent.agents.metrics.readers.cpufreq import CpufreqReader
from ccagent.agents.metrics.readers.disk import DiskReader
from ccagent.agents.metrics.readers.filesystem import FilesystemReader
from ccagent.agents.metrics.readers.hwmon import HwmonReader
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.agents.metrics.readers.memory import MemoryReader
from ccagent.agents.metrics.readers.network import NetworkReader
from ccagent.agents.metrics.readers.nfs import NfsReader
from ccagent.agents.metrics.readers.numastat import NumastatReader
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.agents.metrics.readers.pressure import PressureReader
from ccagent.agents.metrics.readers.schedstat import SchedstatReader
from ccagent.agents.metrics.readers.temperature import TemperatureReader

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.base import Reader
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
