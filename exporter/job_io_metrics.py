"""I/O of jobs by mount and their network traffic, from ccagent's kernel programs; RDMA of jobs.

Names of ccagent, and those of the CEEMS exporter's collectors of eBPF and RDMA that count the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.jobio.usage import (
    add,
    bytes_read,
    bytes_written,
    metadata_operations,
    read_calls,
    write_calls,
)
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import counter, gauge
from ccagent.machine.rdma import read_job_rdma

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.machine.bpf.io_records import IoCounts
    from ccagent.machine.node import Node

_MOUNT = ("jobid", "mountpoint", "fstype")
_BY_MOUNT: tuple[tuple[Family, Callable[[IoCounts], int]], ...] = (
    (counter("ccagent_job_fs_read_bytes_total", "Bytes read by calls and asynchronous requests.",
        *_MOUNT), bytes_read),
    (counter("ccagent_job_fs_written_bytes_total",
        "Bytes written by calls and asynchronous requests.", *_MOUNT), bytes_written),
    (counter("ccagent_job_fs_reads_total", "Read calls and requests.", *_MOUNT), read_calls),
    (counter("ccagent_job_fs_writes_total", "Write calls and requests.", *_MOUNT), write_calls),
    (counter("ccagent_job_fs_metadata_total",
        "Operations on names: opens, creates, links, unlinks, mkdirs, rmdirs, renames, stats,"
        " readdirs, statfs.", *_MOUNT), metadata_operations),
    (counter("ccagent_job_fs_errors_total", "Failed reads and writes.", *_MOUNT),
        lambda counts: counts.read_errors + counts.write_errors),
)  # fmt: skip
_NETWORK = ("jobid", "protocol", "loopback")
_SENT = counter("ccagent_job_network_sent_bytes_total", "Payload sent by sockets.", *_NETWORK)
_RECEIVED = counter(
    "ccagent_job_network_received_bytes_total", "Payload received by sockets.", *_NETWORK
)
_LOST = counter(
    "ccagent_job_io_lost_total", "Calls that are not counted: the kernel's table was full."
)
_UNIT = ("manager", "hostname", "uuid", "mountpoint")
_CEEMS: tuple[tuple[Family, str], ...] = tuple(
    (counter(f"ceems_ebpf_{way}_{name}_total", text, *_UNIT), field)
    for way, name, field, text in (
        ("read", "bytes", "read_bytes", "Total number of bytes read from a cgroup in bytes"),
        ("read", "requests", "reads", "Total number of read requests from a cgroup"),
        ("read", "errors", "read_errors", "Total number of read errors from a cgroup"),
        ("write", "bytes", "write_bytes", "Total number of bytes written from a cgroup in bytes"),
        ("write", "requests", "writes", "Total number of write requests from a cgroup"),
        ("write", "errors", "write_errors", "Total number of write errors from a cgroup"),
    )
)
_CEEMS_JOB: tuple[tuple[Family, str], ...] = tuple(
    (counter(f"ceems_ebpf_{name}_requests_total", text, *_UNIT[:3]), field)
    for name, field, text in (
        ("open", "opens", "Total number of open requests from a cgroup"),
        ("create", "creates", "Total number of create requests from a cgroup"),
        ("unlink", "unlinks", "Total number of unlink requests from a cgroup"),
    )
)

_RDMA_UNIT = ("manager", "hostname", "device", "port", "uuid")
_CEEMS_RDMA: dict[str, Family] = {
    field: gauge(f"ceems_rdma_{name}", text, *_RDMA_UNIT)
    for field, name, text in (
        ("queue_pairs", "qps_active", "Number of active QPs"),
        ("completion_queues", "cqs_active", "Number of active CQs"),
        ("memory_regions", "mrs_active", "Number of active MRs"),
        ("completion_entries", "cqe_len_active", "Length of active CQs"),
        ("memory", "mrs_len_active", "Length of active MRs"),
    )
} | {
    name: counter(f"ceems_rdma_{name}", text, *_RDMA_UNIT)
    for name, text in (
        ("rx_write_requests", "Number of received write requests for the associated QPs"),
        ("rx_read_requests", "Number of received read requests for the associated QPs"),
        ("rx_atomic_requests", "Number of received atomic request for the associated QPs"),
        *(
            (f"{who[:3] if who == 'requester' else 'resp'}_{name}",
                f"Number of times {who} detected {text}")
            for who, name, text in (
                ("requester", "cqe_error", "CQEs completed with errors"),
                ("requester", "cqe_flush_error", "CQEs completed with flushed errors"),
                ("requester", "remote_access_errors", "remote access errors"),
                ("requester", "remote_invalid_request", "remote invalid request errors"),
                ("responder", "cqe_error", "CQEs completed with errors"),
                ("responder", "cqe_flush_error", "CQEs completed with flushed errors"),
                ("responder", "local_length_error", "local length errors"),
                ("responder", "remote_access_errors", "remote access errors"),
            )
        ),
    )
}  # fmt: skip


class JobIoCollector(Collector):
    """I/O and network traffic under ccagent's names."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the kernel programs. Raise NotHereError if they are not loaded."""
        found = self.sources.job_io.get(node)
        labels: list[tuple[Labels, IoCounts]] = [
            ((str(use.job), use.mount.point, use.mount.type), use.total) for use in found.mounts
        ]
        for family, value in _BY_MOUNT:
            yield family, [(own, value(counts)) for own, counts in labels]
        traffic = [
            ((str(use.job), use.protocol, "yes" if use.is_loopback else "no"), use.total)
            for use in found.network
        ]
        yield _SENT, [(own, counts.sent_bytes) for own, counts in traffic]
        yield _RECEIVED, [(own, counts.received_bytes) for own, counts in traffic]
        yield _LOST, [((), found.lost)]


class CeemsIoCollector(Collector):
    """I/O as the eBPF collector of the CEEMS exporter exposes it."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the kernel programs. Raise NotHereError if they are not loaded."""
        found = self.sources.job_io.get(node)
        by_point: dict[Labels, IoCounts] = {}
        by_job: dict[Labels, list[IoCounts]] = {}
        for use in found.mounts:
            own = ("slurm", node.hostname, str(use.job))
            place = (*own, use.mount.point)
            before = by_point.get(place)
            by_point[place] = use.total if before is None else add(before, use.total)
            by_job.setdefault(own, []).append(use.total)
        for family, field in _CEEMS:
            yield family, [(own, getattr(counts, field)) for own, counts in by_point.items()]
        for family, field in _CEEMS_JOB:
            yield (
                family,
                [
                    (own, sum(getattr(counts, field) for counts in each))
                    for own, each in by_job.items()
                ],
            )


class CeemsRdmaCollector(Collector):
    """RDMA objects of jobs as the RDMA collector of the CEEMS exporter exposes them."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Ask the kernel. Raise NotHereError without a device."""
        parts = [
            (("slurm", node.hostname, part.device, str(part.port or ""), str(part.job)), use)
            for part, use in read_job_rdma(node).items()
        ]
        for field, family in _CEEMS_RDMA.items():
            yield family, [(own, use[field]) for own, use in parts if field in use]
