"""Values of one node in a checkpoint, and the reference's formats of them.

JSON: ccagent writes all digits; the reference writes one decimal and reads any number of them.
Binary: little endian, values as float32. `current.wal`: the reference's log, a record per value.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from ccagent.config.settings import as_table
from ccagent.errors import UnparsableError
from ccagent.stores.metrics.line_keys import LAST_SECOND
from ccagent.stores.metrics.reading import read_series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import Path, StoreLevel
    from ccagent.stores.metrics.store import MetricStore


_LONGEST_STEP = 10**7


class CheckpointSeries(NamedTuple):
    """Values of a metric. start: time of the first value. frequency: seconds to the next one."""

    frequency: int
    start: int
    values: NDArray[np.float64]


def make_series(frequency: int, start: int, values: NDArray[np.float64]) -> CheckpointSeries:
    """Return a series read from a file. Raise ValueError for an implausible step or time."""
    if not (0 < frequency <= _LONGEST_STEP and abs(start) < LAST_SECOND):
        raise ValueError(f"implausible series from {start} in steps of {frequency} s")
    return CheckpointSeries(frequency, start, np.where(np.isfinite(values), values, np.nan))


class CheckpointLevel:
    """A level of a node, and its children."""

    def __init__(self) -> None:
        self.series: dict[str, CheckpointSeries] = {}
        self.children: dict[str, CheckpointLevel] = {}

    def count(self) -> int:
        """Return the number of values."""
        own = sum(len(one.values) for one in self.series.values())
        return own + sum(child.count() for child in self.children.values())

    def end(self) -> int:
        """Return the time after the last value; 0 without values."""
        own = [
            one.start + (len(one.values) - 1) * one.frequency + 1 for one in self.series.values()
        ]
        return max([0, *own, *(child.end() for child in self.children.values())])


def collect_level(
    level: StoreLevel, start: int, end: int, metrics: Collection[str] | None = None
) -> CheckpointLevel:
    """Return the values of a level from `start` to before `end`. metrics: None for all."""
    found = CheckpointLevel()
    for _ in collect_slices(level, start, end, found, metrics):
        pass
    return found


def collect_slices(
    level: StoreLevel,
    start: int,
    end: int,
    into: CheckpointLevel,
    metrics: Collection[str] | None = None,
) -> Iterator[None]:
    """Collect the values of a level into `into`. The generator pauses after each series."""
    for metric, series in list(level.series.items()):
        if metrics is not None and metric not in metrics:
            continue
        group = series.group
        # Use the times of slots: reading the file again then keeps the phase of the series.
        first = start + (group.time(0) - start) % group.frequency
        values = read_series(series, first, end)
        if values is not None and len(values.values):
            into.series[metric] = CheckpointSeries(group.frequency, values.start, values.values)
        yield
    for name, below in list(level.children.items()):
        child = CheckpointLevel()
        yield from collect_slices(below, start, end, child, metrics)
        if child.series or child.children:
            into.children[name] = child


def restore_level(store: MetricStore, path: Path, level: CheckpointLevel) -> int:
    """Write the values of a checkpoint into a store. Return their number.

    Series with the same start become a group. Metrics that the store does not accept are skipped.
    """
    new: dict[tuple[int, int], list[tuple[Path, str]]] = {}
    found = list(_walk(path, level))
    for below, metric, one in found:
        known = store.catalogue.get(metric)
        if known is not None and store.find(below, metric) is None:
            step = store.changed_steps.configured(metric, one.frequency)
            new.setdefault((one.start, step), []).append((below, metric))
    for (start, frequency), wanted in new.items():
        store.add(wanted, start, frequency)
    count = 0
    for below, metric, one in found:
        series = store.find(below, metric)
        if series is not None:
            group, column = series
            present = np.flatnonzero(~np.isnan(one.values))
            times = one.start + present * one.frequency
            slots = (times - group.start) // group.frequency
            group.write_column(store.pool, column, slots, one.values[present])
            count += len(present)
    return count


def _walk(path: Path, level: CheckpointLevel) -> list[tuple[Path, str, CheckpointSeries]]:
    found = [(path, metric, one) for metric, one in level.series.items()]
    for name, below in level.children.items():
        found += _walk((*path, name), below)
    return found


_DEEPEST = 8


def encode_json(level: CheckpointLevel, start: int, end: int) -> Iterator[bytes]:
    """Yield the parts of a node's checkpoint, one for each series."""
    yield from _table(level)
    yield b',"from":%d,"to":%d}' % (start, end)


def decode_json(data: bytes) -> CheckpointLevel:
    """Parse a checkpoint. Raise UnparsableError."""
    try:
        return _level(as_table(orjson.loads(data)), 0)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UnparsableError(f"not a JSON checkpoint: {error}") from error


def _table(level: CheckpointLevel) -> Iterator[bytes]:
    """Yield a JSON object without its closing brace."""
    text = b'{"metrics":{'
    for metric, one in level.series.items():
        found = {"frequency": one.frequency, "start": one.start, "data": one.values}
        series = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
        yield text + orjson.dumps(metric) + b":" + series
        text = b","
    text = (b"" if level.series else text) + b'},"children":{'
    for name, below in level.children.items():
        yield text + orjson.dumps(name) + b":"
        yield from _table(below)
        text = b"},"
    yield (b"}" if level.children else text) + b"}"


def _level(table: dict[str, Any], depth: int) -> CheckpointLevel:
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    found = CheckpointLevel()
    for metric, one in as_table(table.get("metrics")).items():
        values = [math.nan if value is None else float(value) for value in one["data"]]
        found.series[metric] = make_series(
            int(one["frequency"]), int(one["start"]), np.array(values, np.float64)
        )
    for name, below in as_table(table.get("children")).items():
        found.children[name] = _level(as_table(below), depth + 1)
    return found


_MAGIC = 0xCC5B0001
_HEAD = struct.Struct("<Iqq")
_SERIES = struct.Struct("<qqI")
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
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
        level, end = _binary_level(data, _HEAD.size, 0)
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


def _binary_level(data: bytes, position: int, depth: int) -> tuple[CheckpointLevel, int]:
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
        level.children[name], position = _binary_level(data, position, depth + 1)
    return level, position


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    begin = position + _LENGTH.size
    text = data[begin : begin + length]
    if len(text) < length:
        raise ValueError("a name is incomplete")
    return text.decode(), begin + length


_FILE, _RECORD = 0xCC1DA701, 0xCC1DA7A1
_LOG_HEAD = struct.Struct("<II")


class LoggedValue(NamedTuple):
    """A value of a node's level."""

    path: Path
    metric: str
    time: int
    value: float


def decode_reference_log(data: bytes) -> tuple[list[LoggedValue], int]:
    """Return the values, and the number of bytes after the last complete record."""
    found: list[LoggedValue] = []
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != _FILE:
        return found, len(data)
    position = 4
    while position + _LOG_HEAD.size <= len(data):
        magic, size = _LOG_HEAD.unpack_from(data, position)
        begin = position + _LOG_HEAD.size
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
    series: dict[tuple[Path, str], tuple[int, dict[int, float]]] = {}
    for path, metric, time, value in values:
        frequency = frequencies.get(metric)
        if frequency is not None:
            start, slots = series.setdefault((path, metric), (time, {}))
            slots[(time - start + frequency // 2) // frequency] = value
    root = CheckpointLevel()
    for (path, metric), (start, slots) in series.items():
        level = root
        for name in path:
            level = level.children.setdefault(name, CheckpointLevel())
        first, last = min(slots), max(slots)
        frequency = frequencies[metric]
        row = np.full(last - first + 1, np.nan)
        for slot, value in slots.items():
            row[slot - first] = value
        level.series[metric] = make_series(frequency, start + first * frequency, row)
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
