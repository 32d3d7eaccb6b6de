"""Reader of the RDMA objects of Slurm's jobs, and of their requests where they are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.machine.rdma import RdmaUse, read_job_rdma, sum_job_rdma

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.node import Node

_ASKED = "netlink of RDMA, as `rdma resource show"
_COUNTED = "netlink of RDMA, as `rdma statistic qp show`, if counted by process"


def _objects(name: str, text: str) -> Metric:
    return Metric("", "node", f"{text} of the job", f"{_ASKED} {name}`", is_default=False)


def _requests(text: str, field: str) -> Metric:
    return Metric("1/s", "node", f"{text} of the job", f"{_COUNTED}: {field}", is_default=False)


class RdmaReader(Reader[ReaderSettings]):
    """Queue pairs, completion queues, memory regions and contexts of jobs, and their requests."""

    name = "rdma"
    metrics: ClassVar[dict[str, Metric]] = {
        "job_rdma_queue_pairs": _objects("qp", "queue pairs"),
        "job_rdma_completion_queues": _objects("cq", "completion queues"),
        "job_rdma_completion_entries": _objects("cq", "entries of the completion queues"),
        "job_rdma_memory_regions": _objects("mr", "memory regions"),
        "job_rdma_memory": Metric("B", "node", "registered memory of the job",
            f"{_ASKED} mr`: mrlen", is_default=False),
        "job_rdma_contexts": _objects("ctx", "contexts"),
        "job_rdma_receive_queues": _objects("srq", "shared receive queues"),
        "job_rdma_write_requests": _requests("received write requests", "rx_write_requests"),
        "job_rdma_read_requests": _requests("received read requests", "rx_read_requests"),
        "job_rdma_atomic_requests": _requests("received atomic requests", "rx_atomic_requests"),
    }  # fmt: skip

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Ask the kernel. Raise NotHereError without a device, ProgramError if it refuses."""
        return list(make_job_values(sum_job_rdma(read_job_rdma(node))))


def make_job_values(jobs: dict[int, RdmaUse]) -> Iterator[Gauge | Count]:
    """Yield the metrics of jobs. A job with a queue pair but without a context has 0 of these."""
    for job, use in sorted(jobs.items()):
        scope = Scope("node", "", "job", str(job))
        for metric, known in RdmaReader.metrics.items():
            name = metric.removeprefix("job_rdma_")
            if known.unit != "1/s":
                yield Gauge(metric, use.get(name, 0), scope)
            elif (count := use.get(f"rx_{name}")) is not None:
                yield Count(metric, count, scope)
