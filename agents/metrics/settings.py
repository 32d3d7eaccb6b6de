"""The keys of [agents.metrics]."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, structs

from ccagent.agents.base import AgentSettings
from ccagent.agents.metrics.custom.settings import (
    CommandSettings,
    ExpressionSettings,
    FileSettings,
)
from ccagent.agents.metrics.pipeline.presets import Preset
from ccagent.agents.metrics.readers.accelerators import AcceleratorsSettings
from ccagent.agents.metrics.readers.base import ReaderSettings
from ccagent.agents.metrics.readers.beegfs import BeegfsSettings
from ccagent.agents.metrics.readers.cgroup_jobs import CgroupJobsSettings
from ccagent.agents.metrics.readers.cpu import CpuSettings
from ccagent.agents.metrics.readers.disk import DiskSettings
from ccagent.agents.metrics.readers.filesystem import FilesystemSettings
from ccagent.agents.metrics.readers.gpfs import GpfsSettings
from ccagent.agents.metrics.readers.ipmi import IpmiSettings
from ccagent.agents.metrics.readers.memory import MemorySettings
from ccagent.agents.metrics.readers.network import NetworkSettings
from ccagent.agents.metrics.readers.nfs_mounts import NfsMountsSettings
from ccagent.agents.metrics.readers.nvme import NvmeSettings
from ccagent.agents.metrics.readers.registry import READERS
from ccagent.config.duration import Duration
from ccagent.config.settings import Settings, nearest
from ccagent.errors import EncodingError
from ccagent.log import logger
from ccagent.records.line_protocol.encoding import NAME, encode_tags

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.base import Reader

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
"""Metric names of earlier releases, and the present ones."""

_OF_COLLECTOR = {"cpu": {"of_node": "sum"}, "memory": {"used": "cc-metric-collector"}}
"""Settings of readers with which values mean what cc-metric-collector sends."""


class MetricSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.metrics.NAME]: how one metric is sent."""

    drop: Annotated[bool, Meta(description="don't send it")] = False
    name: Annotated[str, Meta(description="send it under this name; empty: its own")] = ""
    unit: Annotated[str, Meta(description="send it in this unit; empty: the preset's")] = ""
    scale: Annotated[float, Meta(description="multiply it by this besides")] = 1.0
    of_node: Annotated[
        bool, Meta(description="one value of the node instead of those of its parts")
    ] = False
    aggregation: Annotated[
        Literal["", "sum", "mean", "max"],
        Meta(description="how parts make up the node; empty: as the metric's table says"),
    ] = ""
    tags: Annotated[dict[str, str], Meta(description="more tags")] = {}

    def problem(self) -> str:
        """Return what no line can carry; empty if all is well."""
        if self.name and NAME.fullmatch(self.name) is None:
            return f"name {self.name!r}: letters, digits and '_' only"
        if not math.isfinite(self.scale):
            return f"scale {self.scale} is no number"
        try:
            encode_tags(self.tags)
        except EncodingError as error:
            return str(error)
        return ""


class MetricsSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics]."""

    renamed: ClassVar[dict[str, str]] = {"time-step": "resolution"}

    preset: Annotated[
        Preset,
        Meta(
            description="names and units: of ClusterCockpit's front end, of the specification, SI,"
            " those and the meaning of cc-metric-collector"
        ),
    ] = "clustercockpit"
    readers: Annotated[
        tuple[str, ...], Meta(description="what is read; empty: all that this machine has")
    ] = ()
    include: Annotated[
        tuple[str, ...], Meta(description="metrics that are sent only on demand")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="metrics that are not sent")] = ()
    resolution: Annotated[
        Duration,
        Meta(description="the store's time step: what comes more often is made one mean; 0s: none"),
    ] = Duration("0s")
    metrics: Annotated[
        dict[str, MetricSettings],
        Meta(description="how a metric is sent, by its name"),
    ] = {}
    cpu: Annotated[CpuSettings, Meta(description="the reader of processor time and load")] = (
        CpuSettings()
    )
    cpufreq: Annotated[
        ReaderSettings, Meta(description="the reader of frequencies that the kernel scales")
    ] = ReaderSettings()
    schedstat: Annotated[
        ReaderSettings, Meta(description="the reader of run and wait times of hwthreads")
    ] = ReaderSettings()
    memory: Annotated[MemorySettings, Meta(description="the reader of memory")] = MemorySettings()
    numastat: Annotated[
        ReaderSettings, Meta(description="the reader of pages that NUMA nodes gave")
    ] = ReaderSettings()
    pressure: Annotated[
        ReaderSettings, Meta(description="the reader of pressure stall information")
    ] = ReaderSettings()
    network: Annotated[NetworkSettings, Meta(description="the reader of network interfaces")] = (
        NetworkSettings()
    )
    infiniband: Annotated[
        ReaderSettings, Meta(description="the reader of InfiniBand and Omni-Path")
    ] = ReaderSettings()
    nfs: Annotated[ReaderSettings, Meta(description="the reader of NFS clients")] = ReaderSettings()
    nfs_mounts: Annotated[NfsMountsSettings, Meta(description="the reader of each NFS mount")] = (
        NfsMountsSettings()
    )
    disk: Annotated[DiskSettings, Meta(description="the reader of local disks")] = DiskSettings()
    nvme: Annotated[NvmeSettings, Meta(description="the reader of SMART logs of NVMe drives")] = (
        NvmeSettings()
    )
    filesystem: Annotated[
        FilesystemSettings, Meta(description="the reader of local file systems")
    ] = FilesystemSettings()
    beegfs: Annotated[BeegfsSettings, Meta(description="the reader of BeeGFS servers")] = (
        BeegfsSettings()
    )
    gpfs: Annotated[GpfsSettings, Meta(description="the reader of GPFS file systems")] = (
        GpfsSettings()
    )
    power: Annotated[ReaderSettings, Meta(description="the reader of power and energy")] = (
        ReaderSettings()
    )
    temperature: Annotated[ReaderSettings, Meta(description="the reader of temperatures")] = (
        ReaderSettings()
    )
    hwmon: Annotated[ReaderSettings, Meta(description="the reader of all sensors")] = (
        ReaderSettings()
    )
    ipmi: Annotated[
        IpmiSettings, Meta(description="the reader of the management controller's sensors")
    ] = IpmiSettings()
    cgroup_jobs: Annotated[
        CgroupJobsSettings, Meta(description="the reader of control groups of jobs")
    ] = CgroupJobsSettings()
    perf: Annotated[ReaderSettings, Meta(description="the reader of hardware counters")] = (
        ReaderSettings()
    )
    ccagent: Annotated[ReaderSettings, Meta(description="the reader of ccagent's own counters")] = (
        ReaderSettings()
    )
    accelerators: Annotated[
        AcceleratorsSettings, Meta(description="the reader of accelerators")
    ] = AcceleratorsSettings()
    commands: Annotated[
        dict[str, CommandSettings],
        Meta(description="programs that print metrics, by any name"),
    ] = {}
    files: Annotated[
        dict[str, FileSettings],
        Meta(description="files and directories that hold metrics, by any name"),
    ] = {}
    expressions: Annotated[
        dict[str, ExpressionSettings],
        Meta(description="metrics that are reckoned from others, by the metric's name"),
    ] = {}

    @property
    def has_jobs(self) -> bool:
        """Return whether the control groups of jobs are read."""
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
        """Return the readers that are named, all if none is, each with its table."""
        own = {name: getattr(self, name.replace("-", "_")) for name in self.readers or READERS}
        if self.preset == "cc-metric-collector":
            for name, changed in _OF_COLLECTOR.items():
                if name in own:
                    own[name] = structs.replace(own[name], **changed)
        return [READERS[name](each) for name, each in own.items()]
