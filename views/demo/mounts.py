"""File systems of the simulated cluster, and the I/O of jobs on them."""

from __future__ import annotations

from typing import NamedTuple

MIB = float(1 << 20)


class DemoMount(NamedTuple):
    """I/O of a job on a mount of a node: B/s, calls per second, metadata operations per second."""

    point: str
    type: str
    source: str
    read: float
    written: float
    calls: float
    metadata: float


HOME = DemoMount("/home", "nfs4", "nfs1:/export/home", 2e4, 5e3, 4, 30)
SCRATCH = DemoMount(
    "/scratch", "lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch", 48 * MIB, 21 * MIB, 90, 7
)
LOCAL = DemoMount("/tmp", "xfs", "/dev/nvme0n1p2", 3e5, 2 * MIB, 40, 12)  # noqa: S108 - a name
