"""What a client of Lustre did: the operations of its mounts, `llite.*.stats`.

Source: lproc_llite.c of Lustre. The names of the metrics are those of ClusterCockpit's collector,
which the web front end expects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.parameters import shown
from ccagent.agents.lustre.statistics.metric import Group, Metric, Place, Reading
from ccagent.agents.lustre.statistics.operations import (
    operation_metrics,
    operation_readings,
    parse_operations,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.statistics.metric import Complain

# A mount is named by its file system and the address of its super block.
_MOUNT = re.compile(r"([A-Za-z0-9_-]{1,64})-[0-9a-f]{8,16}", re.ASCII)
NAMES = re.compile(r"llite\.(?P<place>[^.]+)\.(?P<leaf>stats)", re.ASCII)

COUNTERS = {
    "lustre_read_bytes": Metric("B", "read from the file system"),
    "lustre_write_bytes": Metric("B", "written to the file system"),
    "lustre_read_requests": Metric("requests", "calls that read"),
    "lustre_write_requests": Metric("requests", "calls that wrote"),
    "lustre_open": Metric("requests", "files opened"),
    "lustre_close": Metric("requests", "files closed"),
    "lustre_getattr": Metric("requests", "stat() and the like"),
    "lustre_setattr": Metric("requests", "chmod(), chown(), utime() and the like"),
    "lustre_statfs": Metric("requests", "statfs()"),
    "lustre_inode_permission": Metric("requests", "checks of permission"),
}
"""What a dashboard asks for; 0 if it never happened."""

METRICS = COUNTERS | operation_metrics("lustre", "on the client")


def read_mount(place: str, _leaf: str, value: bytes, complain: Complain) -> Iterator[Reading]:
    """Give the operations of a mount, with its file system for the place.

    A file system that is mounted twice has two such parameters: their readings add up.
    """
    where = Place("filesystem", file_system(place))
    # The kernel prints no operation that was never done.
    missing = dict.fromkeys(COUNTERS) if b"snapshot_time" in value else {}

    def spoiled(sentence: str) -> None:
        missing.clear()
        complain(sentence)

    for operation in parse_operations(value, spoiled):
        for reading in operation_readings("lustre", where, operation):
            if reading.name in COUNTERS:
                missing.pop(reading.name, None)
                yield reading._replace(entry=reading.name)
            else:
                yield reading
    for name in missing:
        yield Reading(name, name, 0, where)


def file_system(mount: str) -> str:
    """Give the file system of `scratch-ff47bce9ca35d800`. Raises UnparsableError."""
    found = _MOUNT.fullmatch(mount)
    if found is None:
        raise UnparsableError(f"{shown(mount)} is no mount of a file system")
    return found[1]


GROUPS = {"llite": Group(NAMES, read_mount, ("llite.*.stats",))}
