"""Registry of the readers: classes and configuration tables by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.accelerators import AcceleratorsReader, AcceleratorsSettings
from ccagent.agents.metrics.readers.base import ReaderSettings
from ccagent.agents.metrics.readers.beegfs import BeegfsReader, BeegfsSettings
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader, CgroupJobsSettings
from ccagent.agents.metrics.readers.cpu import CpuReader, CpuSettings
from ccagent.agents.metrics.readers.cpufreq import CpufreqReader
from ccagent.agents.metrics.readers.disk import DiskReader, DiskSettings
from ccagent.agents.metrics.readers.filesystem import FilesystemReader, FilesystemSettings
from ccagent.agents.metrics.readers.gpfs import GpfsReader, GpfsSettings
from ccagent.agents.metrics.readers.hwmon import HwmonReader
from ccagent.agents.metrics.readers.infiniband import InfinibandReader
from ccagent.agents.metrics.readers.ipmi import IpmiReader, IpmiSettings
from ccagent.agents.metrics.readers.kernel import KernelReader
from ccagent.agents.metrics.readers.memory import MemoryReader, MemorySettings
from ccagent.agents.metrics.readers.network import NetworkReader, NetworkReaderSettings
from ccagent.agents.metrics.readers.nfs import NfsReader
from ccagent.agents.metrics.readers.nfs_mounts import NfsMountsReader, NfsMountsSettings
from ccagent.agents.metrics.readers.numastat import NumastatReader
from ccagent.agents.metrics.readers.nvme import NvmeReader, NvmeSettings
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.agents.metrics.readers.pressure import PressureReader
from ccagent.agents.metrics.readers.schedstat import SchedstatReader
from ccagent.agents.metrics.readers.temperature import TemperatureReader

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.base import Reader

READERS: dict[str, type[Reader[Any]]] = {
    reader.name: reader
    for reader in (
        CpuReader,
        CpufreqReader,
        SchedstatReader,
        MemoryReader,
        NumastatReader,
        PressureReader,
        KernelReader,
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
}


class ReaderTables(AgentSettings, frozen=True, kw_only=True):
    """Tables [agents.metrics.READER], one for each of READERS."""

    cpu: Annotated[CpuSettings, Meta(description="reader of CPU time and load")] = CpuSettings()
    cpufreq: Annotated[
        ReaderSettings, Meta(description="reader of the frequencies set by the kernel")
    ] = ReaderSettings()
    schedstat: Annotated[
        ReaderSettings, Meta(description="reader of run and wait times of hwthreads")
    ] = ReaderSettings()
    memory: Annotated[MemorySettings, Meta(description="reader of memory")] = MemorySettings()
    numastat: Annotated[
        ReaderSettings, Meta(description="reader of page allocations of NUMA nodes")
    ] = ReaderSettings()
    pressure: Annotated[
        ReaderSettings, Meta(description="reader of pressure stall information")
    ] = ReaderSettings()
    kernel: Annotated[
        ReaderSettings, Meta(description="reader of tasks, paging, open files, TCP and UDP")
    ] = ReaderSettings()
    network: Annotated[NetworkReaderSettings, Meta(description="reader of network interfaces")] = (
        NetworkReaderSettings()
    )
    infiniband: Annotated[
        ReaderSettings, Meta(description="reader of InfiniBand and Omni-Path ports")
    ] = ReaderSettings()
    nfs: Annotated[ReaderSettings, Meta(description="reader of NFS clients")] = ReaderSettings()
    nfs_mounts: Annotated[NfsMountsSettings, Meta(description="reader of each NFS mount")] = (
        NfsMountsSettings()
    )
    disk: Annotated[DiskSettings, Meta(description="reader of local disks")] = DiskSettings()
    nvme: Annotated[NvmeSettings, Meta(description="reader of SMART logs of NVMe drives")] = (
        NvmeSettings()
    )
    filesystem: Annotated[FilesystemSettings, Meta(description="reader of local file systems")] = (
        FilesystemSettings()
    )
    beegfs: Annotated[BeegfsSettings, Meta(description="reader of BeeGFS servers")] = (
        BeegfsSettings()
    )
    gpfs: Annotated[GpfsSettings, Meta(description="reader of GPFS file systems")] = GpfsSettings()
    power: Annotated[ReaderSettings, Meta(description="reader of power and energy")] = (
        ReaderSettings()
    )
    temperature: Annotated[ReaderSettings, Meta(description="reader of CPU temperatures")] = (
        ReaderSettings()
    )
    hwmon: Annotated[ReaderSettings, Meta(description="reader of all hardware sensors")] = (
        ReaderSettings()
    )
    ipmi: Annotated[
        IpmiSettings, Meta(description="reader of the sensors of the management controller")
    ] = IpmiSettings()
    cgroup_jobs: Annotated[
        CgroupJobsSettings, Meta(description="reader of control groups of jobs")
    ] = CgroupJobsSettings()
    perf: Annotated[ReaderSettings, Meta(description="reader of hardware counters")] = (
        ReaderSettings()
    )
    ccagent: Annotated[ReaderSettings, Meta(description="reader of ccagent's own counters")] = (
        ReaderSettings()
    )
    accelerators: Annotated[AcceleratorsSettings, Meta(description="reader of accelerators")] = (
        AcceleratorsSettings()
    )
