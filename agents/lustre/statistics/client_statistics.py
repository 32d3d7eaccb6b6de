"""Parsers for a client's statistics: operations of its mounts, `llite.*.stats`.

Source: lproc_llite.c of Lustre. Metric names are those of ClusterCockpit's collector; the web front
end expects them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.parameters import show_text
from ccagent.agents.lustre.statistics.metric import (
    Measurement,
    MetricGroup,
    Quantity,
    TargetScope,
)
from ccagent.agents.lustre.statistics.operations import (
    operation_metrics,
    operation_readings,
    parse_operations,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.statistics.metric import Complain

# The name of a mount is its file system and the address of its super block.
_MOUNT = re.compile(r"([A-Za-z0-9_-]{1,64})-[0-9a-f]{8,16}", re.ASCII)
NAMES = re.compile(r"llite\.(?P<place>[^.]+)\.(?P<leaf>stats)", re.ASCII)

COUNTERS = {
    "lustre_read_bytes": Quantity("B", "read from the file system"),
    "lustre_write_bytes": Quantity("B", "written to the file system"),
    "lustre_read_requests": Quantity("requests", "read calls"),
    "lustre_write_requests": Quantity("requests", "write calls"),
    "lustre_open": Quantity("requests", "files opened"),
    "lustre_close": Quantity("requests", "files closed"),
    "lustre_getattr": Quantity("requests", "stat() and similar calls"),
    "lustre_setattr": Quantity("requests", "chmod(), chown(), utime() and similar calls"),
    "lustre_statfs": Quantity("requests", "statfs()"),
    "lustre_inode_permission": Quantity("requests", "permission checks"),
}
"""Metrics of dashboards; sent with 0 if the operation never happened."""

METRICS = COUNTERS | operation_metrics("lustre", "on the client")


def read_mount(place: str, _leaf: str, value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the operations of a mount, with its file system as scope.

    A file system mounted twice has two such parameters: their values are summed.
    """
    where = TargetScope("filesystem", file_system(place))
    # The kernel omits operations that never happened.
    missing = dict.fromkeys(COUNTERS) if b"snapshot_time" in value else {}

    def drop_spoiled(sentence: str) -> None:
        missing.clear()
        complain(sentence)

    for operation in parse_operations(value, drop_spoiled):
        for reading in operation_readings("lustre", where, operation):
            if reading.name in COUNTERS:
                missing.pop(reading.name, None)
                yield reading._replace(entry=reading.name)
            else:
                yield reading
    for name in missing:
        yield Measurement(name, name, 0, where)


def file_system(mount: str) -> str:
    """Return the file system of `scratch-ff47bce9ca35d800`. Raise UnparsableError if invalid."""
    found = _MOUNT.fullmatch(mount)
    if found is None:
        raise UnparsableError(f"{show_text(mount)} is no mount of a file system")
    return found[1]


GROUPS = {"llite": MetricGroup(NAMES, read_mount, ("llite.*.stats",))}
