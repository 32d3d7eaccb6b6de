"""The program `archive_writer`: converts a log segment to a Parquet file for each cluster.

Its arguments are SEGMENT, DIRECTORY and LIMIT, the time of the segment's newest value.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ccagent.service.private_files import open_private_at
from ccagent.stores.metrics.checkpoints import open_folder
from ccagent.stores.metrics.line_keys import LAST_SECOND, MetricCatalogue, file_name
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import StoreLevel

_SCOPE = re.compile(r"(socket|memoryDomain|core|hwthread|cpu|accelerator)(?=[0-9])")
_TEXTS = ("cluster", "hostname", "metric", "scope", "scope_id")
_SEGMENT = b"ccagent.segment"
"""Key of the segment in a file's metadata. After a crash, the same segment is written again."""


class ArchivedSeries(NamedTuple):
    """Values of one series, without missing values."""

    metric: str
    scope: str
    scope_id: str
    frequency: int
    times: NDArray[np.int64]
    values: NDArray[np.float32]


def split_scope(path: tuple[str, ...]) -> tuple[str, str]:
    """Return scope and scope id for the names of levels below a node.

    For a part of a job, the scope is the job and the id is the name of the part.
    """
    if not path:
        return "node", ""
    name = path[-1]
    if len(path) > 1 and path[0].startswith("job"):
        return path[0], name
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
            for block in group.ordered_blocks():
                values = block.values[: block.rows, column]
                rows = np.flatnonzero(~np.isnan(values))
                if rows.size:
                    times = group.time(block.first) + rows * group.frequency
                    yield ArchivedSeries(
                        metric, scope, number, group.frequency, times, values[rows].astype("f4")
                    )


def write_cluster(cluster: StoreLevel, directory: str, limit: int, segment: str) -> None:
    """Write a cluster's values, a row group for each node.

    An existing file of the same segment is replaced. Raise OSError.
    """
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    schema = arrow.schema(
        [arrow.field(name, arrow.string(), nullable=False) for name in _TEXTS]
        + [arrow.field(name, arrow.int64(), nullable=False) for name in ("timestamp", "frequency")]
        + [arrow.field("value", arrow.float32(), nullable=False)],
        metadata={_SEGMENT: segment.encode()},
    )
    folder = open_folder(directory, [file_name(cluster.path[0])])
    try:
        target = _free_name(folder, limit, segment, parquet)
        partial = f"{target}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private_at(folder, partial, flags), "wb") as file:
            with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for host, node in cluster.children.items():
                    _write_node(writer, schema, (cluster.path[0], host), list(read_archived(node)))
            # The file must be on disk before the segment is deleted.
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_node(
    writer: Any, schema: Any, path: tuple[str, str], found: list[ArchivedSeries]
) -> None:
    if not found:
        return
    arrow: Any = import_module("pyarrow")
    sizes = [len(one.values) for one in found]
    texts = {"cluster": [path[0]] * len(found), "hostname": [path[1]] * len(found)}
    texts |= {"metric": [one.metric for one in found], "scope": [one.scope for one in found]}
    texts |= {"scope_id": [one.scope_id for one in found]}
    columns = [np.repeat(np.array(texts[name], object), sizes) for name in _TEXTS]
    columns += [np.concatenate([one.times for one in found])]
    columns += [np.repeat(np.array([one.frequency for one in found]), sizes)]
    columns += [np.concatenate([one.values for one in found])]
    table = arrow.Table.from_arrays(
        [arrow.array(one, field.type) for one, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
    writer.write_table(table, row_group_size=len(table))


def _free_name(folder: int, limit: int, segment: str, parquet: Any) -> str:
    """Return an unused name, or the name of the existing file of the same segment."""
    while True:
        name = f"{limit}.parquet"
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            return name
        except OSError:  # a symbolic link is kept
            limit += 1
            continue
        with open(descriptor, "rb") as file, contextlib.suppress(Exception):
            metadata: dict[bytes, bytes] | None = parquet.ParquetFile(file).schema_arrow.metadata
            if metadata is not None and metadata.get(_SEGMENT) == segment.encode():
                return name
        limit += 1


def identify_segment(path: str) -> str:
    """Return name and SHA-256 of a segment, to distinguish segments of the same name."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{os.path.basename(path)} {digest}"


def main() -> None:
    """Archive the segment that the command line names."""
    segment, directory, limit = sys.argv[1:]
    store = MetricStore(MetricCatalogue({}), time.time)
    Replay(store).read_segment(segment, -LAST_SECOND)
    name = identify_segment(segment)
    for cluster in store.root.children.values():
        write_cluster(cluster, directory, int(limit), name)
