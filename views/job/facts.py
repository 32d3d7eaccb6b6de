"""Facts and series of a job, from which its figures are measured."""

from __future__ import annotations

import msgspec

from ccagent.stores.metrics.job_details import StoredJobDetails

LARGEST_VALUE = 1e18
"""Values from here on are none that a machine can have."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who ran where and when, and with what; as the store's table of jobs describes it.

    start, stop: seconds since 1970; stop: None while it runs. parts: names of its mounts and the
    like by node.
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
    """What a node has, as far as known. memory: B."""

    cores: float | None = None
    memory: float | None = None
    cards: int | None = None


class JobSeries(msgspec.Struct, frozen=True):
    """Values of a metric of a job on a node, from `start` on, `step` seconds apart.

    metric: ccagent's name. card: the address of a GPU, empty for the job itself. values: None where
    there is none. In the base units B, B/s and percent.
    """

    metric: str
    node: str
    card: str
    start: int
    step: int
    values: list[float | None]

    def present(self) -> list[float]:
        """Return the values that are there."""
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
"""Metrics of a node that count for jobs that have it for themselves."""
