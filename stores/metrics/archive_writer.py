"""The program that turns a segment of the log into Parquet files, one for each cluster.

python -m ccagent.stores.metrics.archive_writer SEGMENT DIRECTORY LIMIT
"""

from __future__ import annotations

import os
import re
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ccagent.stores.metrics.catalogue import MetricCatalogue
from ccagent.stores.metrics.line_keys import file_name
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.levels import StoreLevel

_SCOPE = re.compile(r"(socket|memoryDomain|core|hwthread|cpu|accelerator)(?=[0-9])")
_EARLIEST = -(10**11)


class ArchivedSeries(NamedTuple):
    """Values of one series, without missing ones."""

    metric: str
    scope: str
    scope_id: str
    frequency: int
    times: NDArray[np.int64]
    values: NDArray[np.float32]


def split_scope(path: tuple[str, ...]) -> tuple[str, str]:
    """Return scope and its id, from the names of levels below a node."""
    if not path:
        return "node", ""
    name = path[-1]
    match = _SCOPE.match(name)
    if match is None:
        return name, ""
    scope = "hwthread" if match[1] == "cpu" else match[1]
    return scope, name[match.end() :]


def read_archived(node: StoreLevel) -> Iterator[ArchivedSeries]:
    """Yield the series of a node."""
    for level in node.walk():
        scope, number = split_scope(level.path[2:])
        for metric, (group, column) in level.series.items():
            for block in group.iterate_blocks():
                values = block.values[: block.rows, column]
                rows = np.flatnonzero(~np.isnan(values))
                if rows.size:
                    times = group.time(block.first) + rows * group.frequency
                    yield ArchivedSeries(
                        metric, scope, number, group.frequency, times, values[rows].astype("f4")
                    )


def write_cluster(cluster: StoreLevel, directory: str, limit: int) -> str:
    """Write a cluster's values, a row group for each node; return the path of the file."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    names = ("cluster", "hostname", "metric", "scope", "scope_id")
    schema = arrow.schema(
        [arrow.field(name, arrow.string(), nullable=False) for name in names]
        + [arrow.field(name, arrow.int64(), nullable=False) for name in ("timestamp", "frequency")]
        + [arrow.field("value", arrow.float32(), nullable=False)]
    )
    folder = os.path.join(directory, file_name(cluster.path[0]))
    os.makedirs(folder, 0o755, exist_ok=True)
    target = _free_name(folder, limit)
    partial = f"{target}.tmp"
    with parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
        for host, node in cluster.children.items():
            found = list(read_archived(node))
            if not found:
                continue
            sizes = [len(one.values) for one in found]
            texts = {"cluster": [cluster.path[0]] * len(found), "hostname": [host] * len(found)}
            texts |= {"metric": [one.metric for one in found]}
            texts |= {"scope": [one.scope for one in found]}
            texts |= {"scope_id": [one.scope_id for one in found]}
            columns = [np.repeat(np.array(texts[name], object), sizes) for name in names]
            columns += [np.concatenate([one.times for one in found])]
            columns += [np.repeat(np.array([one.frequency for one in found]), sizes)]
            columns += [np.concatenate([one.values for one in found])]
            table = arrow.Table.from_arrays(
                [arrow.array(one, field.type) for one, field in zip(columns, schema, strict=True)],
                schema=schema,
            )
            writer.write_table(table, row_group_size=len(table) or 1)
    os.replace(partial, target)
    return target


def _free_name(folder: str, limit: int) -> str:
    while os.path.exists(found := os.path.join(folder, f"{limit}.parquet")):
        limit += 1
    return found


def main() -> None:
    """Archive the segment that the command line names."""
    segment, directory, limit = sys.argv[1:]
    store = MetricStore(MetricCatalogue({}), time.time)
    Replay(store).read_segment(segment, _EARLIEST)
    for cluster in store.root.children.values():
        write_cluster(cluster, directory, int(limit))


if __name__ == "__main__":
    main()
