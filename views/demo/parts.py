"""Simulated I/O of jobs by mount and on the network, and their energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccagent.stores.metrics.line_keys import JOB_ENERGY, MOUNT, NETWORK, part_name
from ccagent.views.demo.mounts import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.views.demo.placing import PlacedJob
    from ccagent.views.demo.signals import TimeSteps

    Values = NDArray[np.float64]

_NETWORK = (("tcp", "no", 0.6), ("tcp", "yes", 0.3), ("udp", "no", 0.01))
_WATTS = {("cpu", "active"): 4.1, ("cpu", "idle"): 1.3, ("memory", "active"): 0.4,
          ("memory", "idle"): 0.2}  # fmt: skip
"""Power of a core in W."""


def part_signals(
    job: PlacedJob, number: int, steps: TimeSteps
) -> Iterator[tuple[str, str, Values]]:
    """Yield part, metric and values of a job on its node `number`; NaN before and after the job."""
    is_there, noise = steps.inside(job), steps.noise(job.number, number, 5)

    def shown(amounts: Values) -> Values:
        return np.where(is_there, amounts, np.nan)

    for mount in job.job.mounts:
        tags = {"mountpoint": mount.point, "fstype": mount.type, "source": mount.source}
        for metric, rate in (
            ("job_fs_read", mount.read), ("job_fs_write", mount.written),
            ("job_fs_reads", 0.7 * mount.calls), ("job_fs_writes", 0.3 * mount.calls),
            ("job_fs_metadata", mount.metadata),
        ):  # fmt: skip
            yield part_name(tags, MOUNT), metric, shown(rate * noise)
    for protocol, loopback, portion in _NETWORK if job.job.mounts else ():
        tags = {"layer": "socket", "proto": protocol, "loopback": loopback}
        for metric, rate in (("job_net_received", 9 * MIB), ("job_net_sent", 7 * MIB)):
            yield part_name(tags, NETWORK), metric, shown(portion * rate * noise)
    for (part, share), watts in _energy(job).items() if job.job.mounts else ():
        name = part_name({"part": part, "share": share}, JOB_ENERGY)
        yield name, "job_energy", shown(np.multiply(watts, steps.times - job.start))


def _energy(job: PlacedJob) -> dict[tuple[str, str], float]:
    """Return the power of a job on one node in W, by part and share."""
    found = {key: watts * job.job.cores for key, watts in _WATTS.items()}
    if job.job.gpu:
        used = sum(one or 0.0 for one in job.job.gpu)
        found |= {("gpu", "active"): 3.3 * used, ("gpu", "idle"): 65.0 * len(job.job.gpu)}
    return found
