"""Counters with a column, and fields of a record that are not counters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

TargetKind = Literal["ost", "mdt"]
"""The kind of a target, and the name of its table."""

MDT = (
    "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr", "setattr",
    "getxattr", "setxattr", "statfs", "sync", "samedir_rename", "crossdir_rename",
)  # fmt: skip
OST = (
    "read_bytes", "write_bytes", "read", "write", "setattr", "punch", "sync", "get_info",
    "set_info", "quotactl",
)  # fmt: skip

METADATA = tuple(name for name in MDT if name not in {"samedir_rename", "crossdir_rename"})
"""Operations of an MDT that are added up. The two left out are counted as `rename`, too."""

COLUMNS: dict[TargetKind, tuple[str, ...]] = {"ost": OST, "mdt": MDT}
"""The counter columns of the tables. Other operations are in the column `others`."""

KINDS: tuple[TargetKind, ...] = ("ost", "mdt")

PARTS = ("job_id", "user_id", "user", "group_id", "nodename", "executable", "process_id")
"""Parts of an entry's id, if the sender has parsed it."""

FIELDS = frozenset({
    "time_series_id", "target", "entry_id", "timestamp", "snapshot_time", "start_time", "server",
    "malformed", "reset", "clock_step", *PARTS,
})  # fmt: skip
"""The fields of a record that are not counters."""

RESETS = ("start_time", "absent", "decreased", "snapshot_gap")

LARGEST_COUNTER = 2**64 - 1

_TARGET = re.compile(r"-(MDT|OST)[0-9a-fA-F]{4}$")
_MDT_ONLY = frozenset(MDT) - {*OST, "getattr", "statfs"}


def sums_table(kind: TargetKind) -> str:
    """Return the name of the table with the sums of a kind."""
    return f"{kind}_sums"


def kind_by_name(target: str) -> TargetKind | None:
    """Return the kind of a target from its name; None if the name has no kind."""
    match = _TARGET.search(target)
    if match is None:
        return None
    return "mdt" if match[1] == "MDT" else "ost"


def file_system_of(target: str) -> str:
    """Return the file system of a target: its name without its last part."""
    return target.rpartition("-")[0] or target


def kind_by_operations(fields: Iterable[str]) -> TargetKind:
    """Return the kind of a target from the fields of a record."""
    return "ost" if _MDT_ONLY.isdisjoint(fields) else "mdt"
