"""ClusterCockpit's binary checkpoints: little endian, values as float32."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from ccagent.errors import UnparsableError
from ccagent.stores.metrics.checkpoint_levels import CheckpointLevel, make_series

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = 0xCC5B0001
_HEAD = struct.Struct("<Iqq")
_SERIES = struct.Struct("<qqI")
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
_DEEPEST = 8
_LONGEST_NAME = 65535


def encode_binary(level: CheckpointLevel, start: int, end: int) -> Iterator[bytes]:
    """Yield the parts of a node's checkpoint, one for each series."""
    yield _HEAD.pack(_MAGIC, start, end)
    yield from _parts(level)


def decode_binary(data: bytes) -> CheckpointLevel:
    """Parse a checkpoint. Raise UnparsableError."""
    try:
        magic, _, _ = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise UnparsableError("not a binary checkpoint: wrong magic number")
        level, end = _level(data, _HEAD.size, 0)
    except (struct.error, ValueError) as error:
        raise UnparsableError(f"not a binary checkpoint: {error}") from error
    if end != len(data):
        raise UnparsableError(f"not a binary checkpoint: {len(data) - end} bytes too many")
    return level


def _parts(level: CheckpointLevel) -> Iterator[bytes]:
    yield _COUNT.pack(len(level.series))
    for metric, one in level.series.items():
        with np.errstate(over="ignore"):
            values = one.values.astype("<f4").tobytes()
        yield _name(metric) + _SERIES.pack(one.frequency, one.start, len(one.values)) + values
    yield _COUNT.pack(len(level.children))
    for name, below in level.children.items():
        yield _name(name)
        yield from _parts(below)


def _name(name: str) -> bytes:
    text = name.encode()[:_LONGEST_NAME]
    return _LENGTH.pack(len(text)) + text


def _level(data: bytes, position: int, depth: int) -> tuple[CheckpointLevel, int]:
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    level = CheckpointLevel()
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    for _ in range(count):
        metric, position = _read_name(data, position)
        frequency, start, length = _SERIES.unpack_from(data, position)
        position += _SERIES.size
        values = np.frombuffer(data, "<f4", length, position).astype(np.float64)
        position += 4 * length
        level.series[metric] = make_series(frequency, start, values)
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    for _ in range(count):
        name, position = _read_name(data, position)
        level.children[name], position = _level(data, position, depth + 1)
    return level, position


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    begin = position + _LENGTH.size
    text = data[begin : begin + length]
    if len(text) < length:
        raise ValueError("a name is incomplete")
    return text.decode(), begin + length
