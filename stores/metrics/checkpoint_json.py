"""ClusterCockpit's JSON checkpoints.

ccagent writes all digits. The reference writes one decimal and reads any number of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ccagent.config.settings import as_table
from ccagent.errors import UnparsableError
from ccagent.stores.metrics.checkpoint_levels import CheckpointLevel, make_series

if TYPE_CHECKING:
    from collections.abc import Iterator

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
