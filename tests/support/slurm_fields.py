"""Fields of a job that must equal those of sacct, and how each is read."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ccagent.agents.slurm import values
from ccagent.machine.hostlist import split

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.records.envelopes import SlurmJob


def seconds(timestamp: str) -> str:
    """Return a Timestamp as seconds since 1970; empty if it is empty."""
    return str(int(datetime.fromisoformat(timestamp).timestamp())) if timestamp else ""


def parse_moment(text: str) -> str:
    """Return seconds since 1970; empty for Unknown and None."""
    return text if text.isdecimal() else ""


def _accounted(name: str) -> Callable[[SlurmJob], object]:
    """Take a field of a job's accounting; 0 if it has none."""
    return lambda job: getattr(job.sacct, name, 0)


FIELDS: dict[str, tuple[Callable[[SlurmJob], object], Callable[[str], object]]] = {
    "State": (lambda j: j.job_state, lambda text: text.split()[0]),
    "User": (lambda j: j.user_name, str),
    "Account": (lambda j: j.account, str),
    "Partition": (lambda j: j.partition, str),
    "Submit": (lambda j: seconds(j.submit_time), parse_moment),
    "End": (lambda j: seconds(j.end_time), parse_moment),
    "TimelimitRaw": (lambda j: j.time_limit, values.time_limit),
    "Priority": (lambda j: j.priority, values.parse_extended),
    "ReqCPUS": (lambda j: j.requested_cpus, int),
    "ReqNodes": (lambda j: j.requested_node_count, int),
    "ExitCode": (lambda j: j.exit_code, values.exit_code),
    "NodeList": (lambda j: j.nodes, split),
    "Reservation": (lambda j: j.reservation, str),
    "AllocTRES": (lambda j: j.allocated_resources, str),
    "ReqTRES": (lambda j: j.requested_resources, str),
    "Suspended": (lambda j: j.suspend_time, values.seconds),
    "SystemCPU": (_accounted("system_cpu"), values.seconds),
    "UserCPU": (_accounted("user_cpu"), values.seconds),
    "AveCPU": (_accounted("ave_cpu"), values.seconds),
    "MinCPU": (_accounted("min_cpu"), values.seconds),
    "ElapsedRaw": (_accounted("elapsed_raw"), values.uint),
    "AveDiskRead": (_accounted("ave_disk_read"), values.kilobytes),
    "AveDiskWrite": (_accounted("ave_disk_write"), values.kilobytes),
    "AveRSS": (_accounted("ave_rss"), values.kilobytes),
    "MaxRSS": (_accounted("max_rss"), values.kilobytes),
    "AveVMSize": (_accounted("ave_vm_size"), values.kilobytes),
    "MaxVMSize": (_accounted("max_vm_size"), values.kilobytes),
    "Layout": (lambda j: j.distribution or "Unknown", lambda text: text or "Unknown"),
}
"""By field of sacct: the value of a record, and the value of sacct's text."""
