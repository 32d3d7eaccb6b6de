"""The readers, and the keys of [agents.metrics] and its tables."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, structs

from ccagent.agents.base import AgentSettings
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.presets import Preset
from ccagent.agents.metrics.readers.accelerators import AcceleratorsReader, AcceleratorsSettings
from ccagent.agents.metrics.readers.base import Reader, ReaderSettings
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsReader, CgroupJobsSettings
from ccagent.agents.metrics.readers.cpu import (
    CpufreqReader,
    CpuReader,
    CpuSettings,
    SchedstatReader,
)
from ccagent.agents.metrics.readers.disk import (
    DiskReader,
    DiskSettings,
    FilesystemReader,
    FilesystemSettings,
)
from ccagent.agents.metrics.readers.hwmon import HwmonReader, TemperatureReader
from ccagent.agents.metrics.readers.infiniband import InfinibandReader, RdmaReader
from ccagent.agents.metrics.readers.ipmi import IpmiReader, IpmiSettings
from ccagent.agents.metrics.readers.kernel import KernelReader, PressureReader
from ccagent.agents.metrics.readers.memory import MemoryReader, MemorySettings, NumastatReader
from ccagent.agents.metrics.readers.network import NetworkReader, NetworkReaderSettings
from ccagent.agents.metrics.readers.nfs import NfsMountsReader, NfsMountsSettings, NfsReader
from ccagent.agents.metrics.readers.nvme import NvmeReader, NvmeSettings
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.agents.metrics.readers.parallel_file_systems import (
    BeegfsReader,
    BeegfsSettings,
    GpfsReader,
    GpfsSettings,
)
from ccagent.agents.metrics.readers.power import PowerReader
from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.errors import EncodingError, nearest
from ccagent.log import logger
from ccagent.records.points import NAME, encode_tags

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
        RdmaReader,
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
    rdma: Annotated[
        ReaderSettings, Meta(description="reader of the RDMA objects and requests of jobs")
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


class CommandSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.commands.NAME]."""

    command: Annotated[
        tuple[str, ...],
        Meta(description="program and arguments; prints line protocol", min_length=1),
    ]
    every: Annotated[Duration, Meta(description="interval of the program; 0s: every sample")] = (
        Duration("60s")
    )
    time_limit: Annotated[Duration, Meta(description="time after which the program is killed")] = (
        Duration("5s")
    )

    def problem(self) -> str:
        """Return a problem of the settings, empty if there is none."""
        if not self.command[0].startswith("/"):
            return f"command: {self.command[0]!r} is no absolute path"
        return "command: with a NUL" if any("\0" in word for word in self.command) else ""


class FileSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.files.NAME]."""

    path: Annotated[
        str, Meta(description="a file of line protocol, or a directory with files *.lp")
    ]
    max_age: Annotated[Duration, Meta(description="older files are skipped")] = Duration("5m")

    def problem(self) -> str:
        """Return a problem of the settings, empty if there is none."""
        is_path = self.path.startswith("/") and "\0" not in self.path
        return "" if is_path else f"path: {self.path!r} is no absolute path"


class ExpressionSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.expressions.NAME]."""

    expression: Annotated[
        str, Meta(description="names of metrics, numbers, + - * / ( ), sum mean min max abs")
    ]
    unit: Annotated[
        str, Meta(description="unit of the result; a base unit is converted by the preset")
    ] = ""
    aggregation: Annotated[
        Literal["sum", "mean", "max"],
        Meta(description="how to combine values of parts to a node value"),
    ] = "mean"


_RENAMED_METRICS = {
    "ccagent_left_out": "ccagent_skipped",
    "ccagent_agent_left_out": "ccagent_agent_skipped",
    **{
        f"ccagent_{part}{earlier}": f"ccagent_{part}{present}"
        for part in ("", "sink_")
        for earlier, present in (
            ("refused", "rejected"),
            ("waiting", "backlog"),
            ("waiting_bytes", "backlog_bytes"),
        )
    },
}
"""Metric names of earlier releases, and their current names."""

_COLLECTOR_TABLES = {"cpu": {"of_node": "sum"}, "memory": {"used": "cc-metric-collector"}}
"""Settings of readers that compute values as cc-metric-collector does."""


class MetricSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.metrics.NAME]: the output of one metric."""

    drop: Annotated[bool, Meta(description="do not send it")] = False
    name: Annotated[str, Meta(description="output name; empty: name of the preset")] = ""
    unit: Annotated[str, Meta(description="output unit; empty: unit of the preset")] = ""
    scale: Annotated[float, Meta(description="additional factor")] = 1.0
    of_node: Annotated[bool, Meta(description="send one node value instead of values of parts")] = (
        False
    )
    aggregation: Annotated[
        Literal["", "sum", "mean", "max"],
        Meta(description="how to combine parts to a node value; empty: default of the metric"),
    ] = ""
    tags: Annotated[dict[str, str], Meta(description="additional tags")] = {}

    def problem(self) -> str:
        """Return an error for values that line protocol can't carry; empty if valid."""
        if self.name and NAME.fullmatch(self.name) is None:
            return f"name {self.name!r}: letters, digits and '_' only"
        if not math.isfinite(self.scale):
            return f"scale {self.scale} is not a finite number"
        try:
            encode_tags(self.tags)
        except EncodingError as error:
            return str(error)
        return ""


class MetricsSettings(ReaderTables, frozen=True, kw_only=True):
    """The keys of [agents.metrics]."""

    renamed: ClassVar[dict[str, str]] = {"time-step": "resolution"}

    preset: Annotated[
        Preset,
        Meta(
            description="output names and units: ClusterCockpit's front end, its"
            " specification, base units, or cc-metric-collector (values too)"
        ),
    ] = "clustercockpit"
    readers: Annotated[tuple[str, ...], Meta(description="readers to use; empty: all")] = ()
    include: Annotated[tuple[str, ...], Meta(description="on-demand metrics to send")] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="metrics not to send")] = ()
    resolution: Annotated[
        Duration, Meta(description="downsample values to this time step of the store; 0s: off")
    ] = Duration("0s")
    metrics: Annotated[
        dict[str, MetricSettings], Meta(description="output of metrics, by name of the metric")
    ] = {}
    commands: Annotated[
        dict[str, CommandSettings],
        Meta(description="programs that print metrics, by a name of your choice"),
    ] = {}
    files: Annotated[
        dict[str, FileSettings],
        Meta(description="files and directories with metrics, by a name of your choice"),
    ] = {}
    expressions: Annotated[
        dict[str, ExpressionSettings],
        Meta(description="metrics computed from other metrics, by name of the metric"),
    ] = {}

    @property
    def has_jobs(self) -> bool:
        """Return whether the reader of cgroups of jobs is on."""
        return not self.readers or "cgroup-jobs" in self.readers

    def __post_init__(self) -> None:
        self._replace_renamed_metrics()
        for reader in self.readers:
            if reader not in READERS:
                raise ValueError(f"readers: {reader!r} is unknown{nearest(reader, [*READERS])}")
        for metric, settings in self.metrics.items():
            problem = settings.problem()
            if problem:
                raise ValueError(f"metrics.{metric}: {problem}")
        for table, sources in (("commands", self.commands), ("files", self.files)):
            for name, source in sources.items():
                problem = source.problem()
                if problem:
                    raise ValueError(f"{table}.{name}.{problem}")
        for name in self.expressions:
            if NAME.fullmatch(name) is None:
                raise ValueError(f"expressions.{name}: letters, digits and '_' only")

    def _replace_renamed_metrics(self) -> None:
        """Replace metric names of earlier releases, and log each."""
        named = {*self.metrics, *self.include, *self.exclude}
        earlier = sorted(named & _RENAMED_METRICS.keys())
        if not earlier:
            return

        def present(name: str) -> str:
            return _RENAMED_METRICS.get(name, name)

        for name in earlier:
            logger.warning("agents.metrics: the metric %s is now called %s", name, present(name))
        metrics = {present(name): settings for name, settings in self.metrics.items()}
        structs.force_setattr(self, "metrics", metrics)
        structs.force_setattr(self, "include", tuple(map(present, self.include)))
        structs.force_setattr(self, "exclude", tuple(map(present, self.exclude)))

    def make_readers(self) -> list[Reader[Any]]:
        """Return the configured readers with their tables; all readers if none is named."""
        own = {name: getattr(self, name.replace("-", "_")) for name in self.readers or READERS}
        if self.preset == "cc-metric-collector":
            for name, changed in _COLLECTOR_TABLES.items():
                if name in own:
                    own[name] = structs.replace(own[name], **changed)
        return [READERS[name](each) for name, each in own.items()]
