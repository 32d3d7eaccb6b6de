"""Parser for `stats` and `md_stats` of servers and clients: counters of operations.

Source: lprocfs_stats_seq_show() in lprocfs_status.c of Lustre. A line has the operation, the number
of samples and a unit. Some lines also have minimum, maximum, sum and sum of squares:

    snapshot_time 1709306082.170995043 secs.nsecs
    read_bytes 71482249 samples [bytes] 4096 1048576 58370831220736 5356592093840015
    statfs 142531 samples [usecs] 0 26666 634747 714999967
    ioctl 114 samples [reqs]

Minimum, maximum and squares are ignored: they cover the whole time since the start.
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
    """Number of samples of an operation, and the sum in `unit` if printed."""

    name: str
    samples: int
    unit: str
    sum: int | None


def parse_operations(content: bytes, complain: Complain) -> Iterator[Operation]:
    """Yield the operations of a `stats`; report and skip an unparsable line."""
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
    """Return the metrics of `operation_readings`, by name."""
    return {
        f"{prefix}_OPERATION": Quantity("requests", f"operations {where}"),
        f"{prefix}_OPERATION_usecs": Quantity("us", f"time of operations, {where}"),
        f"{prefix}_OPERATION_bytes": Quantity("B", f"bytes of operations that move data, {where}"),
        f"{prefix}_OPERATION_requests": Quantity(
            "requests", f"operations that move data, {where}: read, write"
        ),
        f"{prefix}_OPERATION_sum": Quantity(
            "", f"sum of other counted items of operations {where}: pages, open files"
        ),
    }


def operation_readings(
    prefix: str, place: TargetScope, operation: Operation
) -> Iterator[Measurement]:
    """Yield number of samples and sum of an operation.

    `read_bytes` counts the requests that moved data. It becomes `read_bytes` and `read_requests`.
    From 2.14 on, `read` without bytes has the same requests with their times.
    """
    name, samples, unit, total = operation
    # Some versions print bytes with the unit reqs, so the name decides first.
    if name.endswith(_BYTES) or unit == "bytes":
        name = name.removesuffix(_BYTES)
        if total is not None:
            yield _reading(prefix, name, _BYTES, total, place)
        elif not samples:
            # An operation without samples has no sum.
            yield _reading(prefix, name, _BYTES, 0, place)
        yield _reading(prefix, name, "_requests", samples, place)
        return
    yield _reading(prefix, name, "", samples, place)
    if total is not None:
        kind = "_usecs" if unit in {"usec", "usecs"} else "_sum"
        yield _reading(prefix, name, kind, total, place)


def _reading(prefix: str, name: str, suffix: str, value: int, place: TargetScope) -> Measurement:
    return Measurement(f"{prefix}_OPERATION{suffix}", f"{prefix}_{name}{suffix}", value, place)
