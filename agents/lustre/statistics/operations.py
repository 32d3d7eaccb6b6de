"""Counters of operations: the text of `stats` and `md_stats`, on servers and clients alike.

Source: lprocfs_stats_seq_show() in lprocfs_status.c of Lustre. A line is the operation, how often
it was done, a unit, and for some the least, the greatest and the sum of what was counted, and the
sum of squares:

    snapshot_time             1709306082.170995043 secs.nsecs
    read_bytes                71482249 samples [bytes] 4096 1048576 58370831220736 5356592093840015
    statfs                    142531 samples [usecs] 0 26666 634747 714999967
    ioctl                     114 samples [reqs]

Least, greatest and squares are left out: they go over all time, and say little.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.agents.lustre.parameters import show_text
from ccagent.agents.lustre.statistics.metric import (
    Measurement,
    Quantity,
    TargetScope,
    number,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.statistics.metric import Complain

_OPERATION = re.compile(rb"[a-z][a-z0-9_]{0,63}")
_TIMES = frozenset({b"snapshot_time", b"start_time", b"elapsed_time"})
_BYTES = "_bytes"


class Operation(NamedTuple):
    """How often an operation was done, and the sum in `unit` where there is one."""

    name: str
    samples: int
    unit: str
    sum: int | None


def parse_operations(content: bytes, complain: Complain) -> Iterator[Operation]:
    """Yield the operations of a `stats`; a line that can't be understood costs itself."""
    for line in content.split(b"\n"):
        words = line.split(None, 8)
        if not words or words[0].rstrip(b":") in _TIMES:
            continue
        try:
            yield _operation(words)
        except UnparsableError as error:
            complain(f"{error}, in {show_text(line)}")


def _operation(words: list[bytes]) -> Operation:
    if _OPERATION.fullmatch(words[0]) is None:
        raise UnparsableError("no operation")
    if len(words) < 4 or words[2] != b"samples" or words[3][:1] != b"[" or words[3][-1:] != b"]":
        raise UnparsableError("no samples with a unit")
    total = number(words[6]) if len(words) > 6 else None
    unit = words[3][1:-1].decode("ascii", "replace")
    return Operation(words[0].decode(), number(words[1]), unit, total)


def operation_metrics(prefix: str, where: str) -> dict[str, Quantity]:
    """Return the entries of the table for the names that `operation_readings` makes."""
    return {
        f"{prefix}_OPERATION": Quantity("requests", f"operations {where}"),
        f"{prefix}_OPERATION_usecs": Quantity("us", f"time that operations took, {where}"),
        f"{prefix}_OPERATION_bytes": Quantity("B", f"bytes of operations that move data, {where}"),
        f"{prefix}_OPERATION_requests": Quantity(
            "requests", f"operations that move data, {where}: read, write"
        ),
        f"{prefix}_OPERATION_sum": Quantity(
            "", f"sum of what else is counted with operations {where}: pages, open files"
        ),
    }


def operation_readings(
    prefix: str, place: TargetScope, operation: Operation
) -> Iterator[Measurement]:
    """Yield count and sum of an operation.

    `read_bytes` counts the requests that moved data: it becomes `read_bytes`, `read_requests`.
    (`read` without bytes is the same requests with the time they took, from 2.14 on.)
    """
    name, samples, unit, total = operation
    # Some versions give bytes the unit reqs: the name decides first.
    if name.endswith(_BYTES) or unit == "bytes":
        name = name.removesuffix(_BYTES)
        if total is not None:
            yield _reading(prefix, name, _BYTES, total, place)
        elif not samples:
            # What was never done has no sum.
            yield _reading(prefix, name, _BYTES, 0, place)
        yield _reading(prefix, name, "_requests", samples, place)
        return
    yield _reading(prefix, name, "", samples, place)
    if total is not None:
        kind = "_usecs" if unit in {"usec", "usecs"} else "_sum"
        yield _reading(prefix, name, kind, total, place)


def _reading(prefix: str, name: str, suffix: str, value: int, place: TargetScope) -> Measurement:
    return Measurement(f"{prefix}_OPERATION{suffix}", f"{prefix}_{name}{suffix}", value, place)
