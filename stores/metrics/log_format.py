"""Records of the write-ahead log.

A segment starts with a magic number and a version. A record is a marker, the length of its payload,
the CRC-32 of the payload, and the payload. The payload is one byte for the kind, then the content.
Each segment describes its groups of series before their first values, and can be read alone. All
numbers are little endian, values are float64.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.stores.metrics.groups import SeriesGroup

MAGIC = b"CCASTLOG\x01\x00\x00\x00"

GROUP, RUNS, POINTS, FREED = range(1, 5)
"""Kinds of records."""

_MARKER = 0x5DCA6E71
_FRAME = struct.Struct("<III")
_RUNS = struct.Struct("<BqI")
RUN = struct.Struct("<III")
POINT = struct.Struct("<IIqd")
_LARGEST = 1 << 30

MARKER_BYTES = struct.pack("<I", _MARKER)


class GroupRecord(msgspec.Struct, frozen=True, array_like=True):
    """Description of a group. columns: path and metric of each column."""

    number: int
    start: int
    frequency: int
    columns: list[tuple[list[str], str]]


class FreedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Values that an administrator released. The record prevents their return at a restart."""

    selectors: list[list[str]]
    until: int


class LogRecord(NamedTuple):
    """One record. payload: without the byte for the kind."""

    kind: int
    payload: memoryview


class DamagedPart(NamedTuple):
    """Bytes of a segment that are not a valid record."""

    offset: int
    size: int


_group = msgspec.json.Decoder(GroupRecord)
_freed = msgspec.json.Decoder(FreedRecord)


def frame(payload: bytes) -> bytes:
    """Return a record with this payload."""
    return _FRAME.pack(_MARKER, len(payload), zlib.crc32(payload)) + payload


def encode_group(group: SeriesGroup) -> bytes:
    """Return a record with the description of a group."""
    columns = [([*level.path], metric) for level, metric in group.columns]
    record = GroupRecord(group.number, group.start, group.frequency, columns)
    return frame(bytes([GROUP]) + zlib.compress(msgspec.json.encode(record), 1))


def decode_group(payload: memoryview) -> GroupRecord:
    """Parse the description of a group. Raise ValueError."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(payload, _LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return _group.decode(text)


def encode_runs(header: bytes, time: int, packed: bytes) -> bytes:
    """Return a record of value runs at one time. header: the encoded runs."""
    return frame(_RUNS.pack(RUNS, time, len(header) // RUN.size) + header + packed)


def decode_runs(payload: memoryview) -> tuple[int, Iterator[tuple[int, ...]], memoryview]:
    """Return time, runs (group, first column, first value, number of values), and the values."""
    time, count = struct.unpack_from("<qI", payload)
    begin = 12 + count * RUN.size
    return time, RUN.iter_unpack(payload[12:begin]), payload[begin:]


def encode_points(points: Sequence[tuple[SeriesGroup, int, int, float]]) -> bytes:
    """Return a record of single values."""
    pack = POINT.pack
    packed = b"".join([pack(group.number, *rest) for group, *rest in points])
    return frame(bytes([POINTS]) + packed)


def encode_freed(selectors: list[list[str]], until: int) -> bytes:
    """Return a record of released values."""
    return frame(bytes([FREED]) + msgspec.json.encode(FreedRecord(selectors, until)))


def decode_freed(payload: memoryview) -> FreedRecord:
    """Parse a record of released values. Raise ValueError."""
    return _freed.decode(payload)


def read_records(data: memoryview) -> Iterator[LogRecord | DamagedPart]:
    """Yield the records and the damaged parts of a segment.

    After a damaged part the next record is found by its marker and CRC.
    """
    position = len(MAGIC) if bytes(data[: len(MAGIC)]) == MAGIC else 0
    end = len(data)
    while position < end:
        found = _record(data, position)
        if found is not None:
            position += _FRAME.size + 1 + len(found.payload)
            yield found
            continue
        following = _next_record(data, position + 1)
        yield DamagedPart(position, following - position)
        position = following


def _record(data: memoryview, position: int) -> LogRecord | None:
    begin = position + _FRAME.size
    if begin > len(data):
        return None
    marker, size, checksum = _FRAME.unpack_from(data, position)
    if marker != _MARKER or not 0 < size <= len(data) - begin:
        return None
    payload = data[begin : begin + size]
    if zlib.crc32(payload) != checksum:
        return None
    return LogRecord(payload[0], payload[1:])


def _next_record(data: memoryview, position: int) -> int:
    """Return the position of the next complete record, or the end."""
    step = 1 << 20
    while position < len(data):
        part = bytes(data[position : position + step + 3])
        offset = part.find(MARKER_BYTES)
        while offset >= 0:
            if _record(data, position + offset) is not None:
                return position + offset
            offset = part.find(MARKER_BYTES, offset + 1)
        position += step
    return len(data)
