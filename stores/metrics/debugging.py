"""The response to /api/debug: a list of the buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.stores.metrics.query_request import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoredSeries
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore


def describe_buffers(store: MetricStore, selector: str) -> Iterator[bytes]:
    """Yield the parts of the response in JSON: start, length and end of each buffer.

    selector: names separated by colons; empty for all. Raise BadRequestError for an unknown level.
    """
    path = selector.split(":") if selector else []
    level = store.root.find(path)
    if level is None:
        raise BadRequestError(f"not found: {selector}")
    yield b'{"data":'
    yield from _describe(level)
    yield b"}\n"


def _describe(level: StoreLevel) -> Iterator[bytes]:
    own = {metric: _buffers(series) for metric, series in level.series.items()}
    text = msgspec.json.encode(own)[:-1]
    is_first = not own
    # Nodes are yielded one by one, because a cluster has many of them.
    for name, below in list(level.children.items()):
        yield text + (b"" if is_first else b",") + msgspec.json.encode(name) + b":"
        is_first, text = False, b""
        yield from _describe(below)
    yield text + b"}"


def _buffers(series: StoredSeries) -> list[dict[str, Any]]:
    group, column = series
    first, last = group.column_bounds(column)
    found: list[dict[str, Any]] = []
    for block in group.iterate_blocks():
        length = min(last - block.first, block.rows)
        if length > 0 and first < block.first + block.rows:
            start = group.start + block.first * group.frequency
            end = start + length * group.frequency
            found.append({"start": start, "len": length, "end": end})
    return found
