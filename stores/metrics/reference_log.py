"""Parser of ClusterCockpit's log, `current.wal`: a record for each value."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np

from ccagent.stores.metrics.checkpoint_levels import CheckpointLevel, make_series

_FILE, _RECORD = 0xCC1DA701, 0xCC1DA7A1
_HEAD = struct.Struct("<II")


class LoggedValue(NamedTuple):
    """A value of a node's level."""

    path: tuple[str, ...]
    metric: str
    time: int
    value: float


def decode_reference_log(data: bytes) -> tuple[list[LoggedValue], int]:
    """Return the values, and the number of bytes after the last complete record."""
    found: list[LoggedValue] = []
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != _FILE:
        return found, len(data)
    position = 4
    while position + _HEAD.size <= len(data):
        magic, size = _HEAD.unpack_from(data, position)
        begin = position + _HEAD.size
        payload = data[begin : begin + size]
        checksum = data[begin + size : begin + size + 4]
        if magic != _RECORD or len(checksum) < 4:
            break
        if zlib.crc32(payload) != struct.unpack("<I", checksum)[0]:
            break
        try:
            found.append(_value(payload))
        except (struct.error, UnicodeDecodeError, IndexError):
            break
        position = begin + size + 4
    return found, len(data) - position


def as_levels(values: list[LoggedValue], frequencies: dict[str, int]) -> CheckpointLevel:
    """Return values as series with equal steps. Skip metrics without a frequency."""
    series: dict[tuple[tuple[str, ...], str], dict[int, float]] = {}
    starts: dict[tuple[tuple[str, ...], str], int] = {}
    for path, metric, time, value in values:
        frequency = frequencies.get(metric)
        if frequency is None:
            continue
        key = path, metric
        start = starts.setdefault(key, time)
        slot = (time - start + frequency // 2) // frequency
        series.setdefault(key, {})[slot] = value
    root = CheckpointLevel()
    for (path, metric), slots in series.items():
        level = root
        for name in path:
            level = level.children.setdefault(name, CheckpointLevel())
        first, last = min(slots), max(slots)
        frequency = frequencies[metric]
        row = np.full(last - first + 1, np.nan)
        for slot, value in slots.items():
            row[slot - first] = value
        start = starts[path, metric] + first * frequency
        level.series[metric] = make_series(frequency, start, row)
    return root


def _value(payload: bytes) -> LoggedValue:
    time, length = struct.unpack_from("<qH", payload)
    position = 10
    metric = payload[position : position + length].decode()
    position += length
    path: list[str] = []
    count = payload[position]
    position += 1
    for _ in range(count):
        size = payload[position]
        path.append(payload[position + 1 : position + 1 + size].decode())
        position += 1 + size
    (value,) = struct.unpack_from("<f", payload, position)
    return LoggedValue(tuple(path), metric, time, value)
