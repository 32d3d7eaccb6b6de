"""Facts and series of a job, the input of its figures."""

from __future__ import annotations

import msgspec

from ccagent.stores.metrics.job_table import StoredJobDetails

LARGEST_VALUE = 1e18
"""Values from this number on are implausible and ignored."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the store's table of jobs: user, nodes, times, resources.

    start, stop: seconds since 1970; stop: None for a running job. parts: names of its parts, such
    as mounts, by node.
    """

    job: str
    cluster: str = ""
    user: str = ""
    state: str = ""
    start: int = 0
    stop: int | None = None
    nodes: tuple[str, ...] = ()
    details: StoredJobDetails = StoredJobDetails()
    parts: dict[str, list[str]] = {}


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of a node, as far as known. memory: B."""

    cores: float | None = None
    memory: float | None = None
    cards: int | None = None


class JobSeries(msgspec.Struct, frozen=True):
    """Values of a metric of a job on a node, from `start` on, `step` seconds apart.

    metric: ccagent's name. card: the address of a GPU, "" for the job itself. values: None:
    missing; the base units are B, B/s and percent.
    """

    metric: str
    node: str
    card: str
    start: int
    step: int
    values: list[float | None]

    def present(self) -> list[float]:
        """Return the values without the missing ones."""
        return [value for value in self.values if value is not None]


JOB_METRICS = {
    "job_cpu_util": "%", "job_mem_rss": "B", "job_mem_used": "B", "job_mem_peak": "B",
    "job_mem_limit": "B", "job_oom_kills": "", "job_pressure_memory": "%", "job_io_read": "B/s",
    "job_io_write": "B/s", "job_gpu_util": "%", "job_gpus_idle": "",
}  # fmt: skip
"""Metrics of a job on a node (`stype=job`), with their base units."""

CARD_METRICS = {"acc_utilization": "%", "acc_mem_used": "B", "acc_mem_share": "%"}
"""Metrics of a GPU."""

NODE_METRICS = {"cpu_load": ""}
"""Metrics of a node, used for jobs with exclusive nodes."""
