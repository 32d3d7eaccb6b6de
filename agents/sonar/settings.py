"""Settings of the agent `sample`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta, structs

from ccagent.agents.gpu_settings import GpuSettings
from ccagent.agents.sonar.sources.registry import SourceName
from ccagent.config.duration import Duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.agents.base import AgentSettings


class SampleSettings(GpuSettings, frozen=True, kw_only=True):
    """The keys of [agents.sample]."""

    renamed: ClassVar[dict[str, str]] = {
        **GpuSettings.renamed,
        "batchless": "jobs-by-process-group",
    }

    source: Annotated[
        SourceName, Meta(description="source of processes; auto: the cheapest that works here")
    ] = "auto"
    exclude_system_jobs: Annotated[
        bool, Meta(description="exclude processes of users below 1000, unless in a container")
    ] = False
    exclude_users: Annotated[list[str], Meta(description="users to exclude, by name")] = []
    exclude_commands: Annotated[
        list[str], Meta(description="commands to exclude, by the beginning of their name")
    ] = []
    min_cpu_time: Annotated[Duration, Meta(description="exclude processes with less CPU time")] = (
        Duration("0s")
    )
    rollup: Annotated[
        bool,
        Meta(description="one record for childless processes of equal job, parent and command"),
    ] = False
    jobs_by_process_group: Annotated[
        bool, Meta(description="take the process group as the job even inside Slurm jobs")
    ] = False
    preset: Annotated[
        Literal["", "jobanalyzer"],
        Meta(
            description="process records of all sinks for a receiver that takes differences of"
            " cpu_time: jobanalyzer; empty: for each sink those of its receiver"
        ),
    ] = ""
    job_memory: Annotated[
        Literal["auto", "processes", "cgroup"],
        Meta(
            description="resident_memory of a Slurm job's processes: processes: as the kernel"
            " counts it for each; cgroup: scaled to the sum of the control group; auto: cgroup in"
            " records for Jobanalyzer"
        ),
    ] = "auto"
    process_io: Annotated[
        Literal["calls", "storage"],
        Meta(
            description="source of data_read and data_written: bytes of read and write calls,"
            " or of storage, as in Sonar"
        ),
    ] = "calls"
    points: Annotated[
        Literal["auto", "own", "all"],
        Meta(
            description="which metrics lines have: own: those that the agent metrics does not send;"
            " all: those too; auto: own where that agent is configured"
        ),
    ] = "auto"
    job_pss: Annotated[
        bool, Meta(description="read memory of jobs with shared pages divided (PSS); costly")
    ] = False
    gpu_activity: Annotated[
        bool,
        Meta(
            description="lines have the activity of SMs, and the use of MIG instances, where NVML"
            " reports them (Hopper and later)"
        ),
    ] = True

    scontrol: Annotated[
        str, Meta(description="the program scontrol, the last source of a job's cards")
    ] = "scontrol"
    squeue: Annotated[
        str, Meta(description="the program squeue, source of the user of a job without processes")
    ] = "squeue"

    def beside(self, agents: Mapping[str, AgentSettings]) -> SampleSettings:
        """Return the settings with `points` resolved.

        "own" if the agent `metrics` sends metrics of jobs, else "all".
        """
        if self.points != "auto" or "metrics" not in agents:
            return self
        from ccagent.agents.metrics.settings import MetricsSettings

        other = agents["metrics"]
        is_owner = isinstance(other, MetricsSettings) and other.has_jobs
        return structs.replace(self, points="own" if is_owner else "all")
