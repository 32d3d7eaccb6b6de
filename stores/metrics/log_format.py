"""Records of the write-ahead log.

A segment starts with a magic number and a version. The format of a record is that of `record_log`.
Its payload is one byte for the kind, then the content. Each segment describes its groups of series
before their first values, and can be read alone. All numbers are little endian, values are float64.
"""

from __future__ import annotations

import struct
import zlib
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccagent.queue.record_log import frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import SeriesGroup

MAGIC = b"CCASTLOG\x01\x00\x00\x00"

GROUP, RUNS, POINTS, FREED = range(1, 5)
"""Kinds of records."""

_WIDTH = 8
_RUNS = struct.Struct("<BqI")
RUN = struct.Struct("<III")
POINT = np.dtype([("group", "<u4"), ("column", "<u4"), ("time", "<i8"), ("value", "<f8")])
_LARGEST = 1 << 30


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """Description of a group. levels: path, and the metrics of consecutive columns."""

    number: int
    start: int
    frequency: int
    levels: list[tuple[tuple[str, ...], list[str]]]

    def width(self) -> int:
        """Return the number of columns."""
        return sum(len(metrics) for _, metrics in self.levels)


class FreedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Values that an administrator released. The record prevents their return at a restart."""

    selectors: list[list[str]]
    until: int


_group = msgspec.json.Decoder(GroupRecord)
decode_freed = msgspec.json.Decoder(FreedRecord).decode
"""Parse a record of released values. Raise ValueError."""


def encode_group(group: SeriesGroup) -> bytes:
    """Return a record with the description of a group."""
    levels: list[tuple[tuple[str, ...], list[str]]] = []
    end = 0
    for level, same in groupby(group.levels):
        begin, end = end, end + len([*same])
        levels.append((level.path, group.metrics[begin:end]))
    record = GroupRecord(group.number, group.start, group.frequency, levels)
    # A window of 4 KB: the usual one takes 15 times as long, to allocate.
    deflater = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
    packed = deflater.compress(msgspec.json.encode(record)) + deflater.flush()
    return frame(bytes([GROUP]) + packed)


def decode_group(payload: memoryview) -> GroupRecord:
    """Parse the description of a group. Raise ValueError."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(payload, _LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return _group.decode(text)


def encode_runs(time: int, runs: list[tuple[int, int, bytes]]) -> bytes:
    """Return a record of value runs at one time: number of a group, first column, values."""
    parts = [_RUNS.pack(RUNS, time, len(runs))]
    parts += [RUN.pack(number, first, len(values) // _WIDTH) for number, first, values in runs]
    parts += [values for _, _, values in runs]
    return frame(b"".join(parts))


def decode_runs(payload: memoryview) -> tuple[int, Iterator[tuple[int, ...]], int]:
    """Return time, runs (group, first column, number of values), and the offset of the values."""
    _, time, count = _RUNS.unpack_from(payload)
    begin = _RUNS.size + count * RUN.size
    return time, RUN.iter_unpack(payload[_RUNS.size : begin]), begin


def encode_points(number: int, time: int, columns: bytes, values: bytes) -> bytes:
    """Return a record of values of a group at one time."""
    points = np.empty(len(values) // _WIDTH, POINT)
    points["group"], points["time"] = number, time
    points["column"], points["value"] = np.frombuffer(columns, "=i8"), np.frombuffer(values, "=f8")
    return frame(bytes([POINTS]) + points.tobytes())


def encode_freed(selectors: list[list[str]], until: int) -> bytes:
    """Return a record of released values."""
    return frame(bytes([FREED]) + msgspec.json.encode(FreedRecord(selectors, until)))
