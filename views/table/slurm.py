"""Tables of Slurm's jobs, partitions and nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.slurm import tres
from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.units import short_size, short_time

if TYPE_CHECKING:
    from ccagent.records.envelopes import ClusterAttributes, JobsAttributes, SlurmJob
    from ccagent.views.terminal import Style

_JOBS = (
    TableColumn("JOB", True), TableColumn("USER", most=12), TableColumn("PART", rank=3, most=10),
    TableColumn("STATE", most=13), TableColumn("NODES", True, 2), TableColumn("CPUS", True),
    TableColumn("GPUS", True, 4), TableColumn("MEM", True, 1), TableColumn("LIMIT", True, 5),
    TableColumn("START", rank=6), TableColumn("NODELIST", rank=7, most=20), TableColumn("NAME"),
)  # fmt: skip
_PARTITIONS = (TableColumn("PARTITION"), TableColumn("NODES"))
_STATES = (TableColumn("STATE"), TableColumn("NODES"))


def format_jobs(jobs: JobsAttributes, width: int, style: Style) -> list[str]:
    """Return one line per job. Steps are only counted."""
    own = [job for job in jobs.slurm_jobs if not job.job_step]
    steps = len(jobs.slurm_jobs) - len(own)
    head = f"{jobs.cluster}  {jobs.time[:19].replace('T', ' ')}  {len(own)} jobs, {steps} steps"
    if not own:
        return [head]
    return [head, "", *format_rows(_JOBS, [_job_cells(job) for job in own], width, style)]


def _job_cells(job: SlurmJob) -> list[str]:
    resources = job.allocated_resources or job.requested_resources
    memory = tres.total_memory(resources) * 1024.0
    gpus = tres.count_gpus(resources)
    limit = job.time_limit
    return [
        str(job.job_id),
        job.user_name,
        job.partition,
        job.job_state,
        str(tres.count(resources, "node") or job.requested_node_count),
        str(tres.count(resources, "cpu") or job.requested_cpus),
        str(gpus or "-"),
        short_size(memory or None),
        short_time(limit - 2) if limit > 1 else "none" if limit == 1 else "-",
        job.start_time[:19].replace("T", " ") or "-",
        ",".join(job.nodes),
        job.job_name,
    ]


def format_cluster(cluster: ClusterAttributes, width: int, style: Style) -> list[str]:
    """Return the numbers of nodes by state and by partition."""
    states = [["+".join(one.states), ",".join(one.names)] for one in cluster.nodes]
    partitions = [[one.name, ",".join(one.nodes)] for one in cluster.partitions]
    return [
        f"{cluster.cluster}  {cluster.time[:19].replace('T', ' ')}",
        "",
        *format_rows(_STATES, states, width, style),
        "",
        *format_rows(_PARTITIONS, partitions, width, style),
    ]
