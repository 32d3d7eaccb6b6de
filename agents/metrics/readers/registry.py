"""The readers, by the names that `readers` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.accelerators import AcceleratorsReader
from ccagent.agents.metrics.readers.beegfs import BeegfsReader
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader
from ccagent.agents.metrics.readers.cpu import CpuReader
from ccagent.agents.metrics.readers.cpufreq import CpufreqReader
from ccagent.agents.metrics.readers.disk import DiskReader
from ccagent.agents.metrics.readers.filesystem import FilesystemReader
from ccagent.agents.metrics.readers.gpfs import GpfsReader
from ccagent.agents.metrics.readers.hwmon import HwmonReader
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.agents.metrics.readers.ipmi import IpmiReader
from ccagent.agents.metrics.readers.memory import MemoryReader
from ccagent.agents.metrics.readers.network import NetworkReader
from ccagent.agents.metrics.readers.nfs import NfsReader
from ccagent.agents.metrics.readers.nfs_mounts import NfsMountsReader
from ccagent.agents.metrics.readers.numastat import NumastatReader
from ccagent.agents.metrics.readers.nvme import NvmeReader
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.agents.metrics.readers.pressure import PressureReader
from ccagent.agents.metrics.readers.schedstat import SchedstatReader
from ccagent.agents.metrics.readers.temperature import TemperatureReader

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.base import Reader

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
    NfsMountsReader,
    DiskReader,
    NvmeReader,
    FilesystemReader,
    BeegfsReader,
    GpfsReader,
    PowerReader,
    TemperatureReader,
    HwmonReader,
    IpmiReader,
    CgroupJobsReader,
    PerfReader,
    OwnCountersReader,
    AcceleratorsReader,
)
READERS: dict[str, type[Reader[Any]]] = {reader.name: reader for reader in _READERS}
