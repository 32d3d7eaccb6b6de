"""The program `archive_reader`, which reads values from the archive.

Its argument is the directory, its stdin an ArchiveRequest in MessagePack. It prints an
ArchiveAnswer in MessagePack.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ccagent.stores.metrics.line_keys import LONGEST_NAME, file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[0-9]{1,12}\.parquet")
_KEYS = ("hostname", "metric", "scope", "scope_id", "frequency")


class ArchiveRequest(msgspec.Struct, frozen=True):
    """A request for values. hosts: empty for all nodes. most: maximum number of values."""

    cluster: str
    start: int
    end: int
    hosts: list[str]
    metrics: list[str]
    most: int


class ArchivedValues(msgspec.Struct, frozen=True):
    """Values of a series: times as int64, values as float32. levels: names below the node."""

    host: str
    metric: str
    levels: list[str]
    frequency: int
    times: bytes
    values: bytes


class ArchiveAnswer(msgspec.Struct, frozen=True):
    """The series of a request. damaged: paths and errors of unreadable files."""

    series: list[ArchivedValues] = []
    damaged: list[str] = []
    is_too_large: bool = False


def read_archive(directory: str, request: ArchiveRequest) -> ArchiveAnswer:
    """Return the requested values of all files that may contain some."""
    found: dict[tuple[Any, ...], list[tuple[bytes, bytes]]] = {}
    damaged: list[str] = []
    count = 0
    for path in _files(directory, request):
        try:
            for key, times, values in _runs(path, request):
                count += len(times)
                if count > request.most:
                    return ArchiveAnswer(is_too_large=True)
                found.setdefault(key, []).append((times.tobytes(), values.tobytes()))
        except Exception as error:  # noqa: BLE001 - the library raises its own kinds
            damaged.append(f"{path}: {error}")
    series = [
        ArchivedValues(
            host, metric, join_scope(scope, number), frequency,
            b"".join(times for times, _ in parts), b"".join(values for _, values in parts),
        )
        for (host, metric, scope, number, frequency), parts in found.items()
    ]  # fmt: skip
    return ArchiveAnswer(series, damaged)


def join_scope(scope: str, number: str) -> list[str]:
    """Return the names of the levels of a scope and id: the inverse of `split_scope`."""
    if scope == "node":
        return []
    return [scope, number] if scope.startswith("job") and number else [f"{scope}{number}"]


def _files(directory: str, request: ArchiveRequest) -> list[str]:
    """Return the files of a cluster. Their names are times at or after the newest value."""
    name = file_name(request.cluster)
    if len(name) > LONGEST_NAME:
        return []  # no cluster has this name
    folder = os.path.join(directory, name)
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    wanted = [name for name in names if int(name.partition(".")[0]) >= request.start]
    return [os.path.join(folder, name) for name in sorted(wanted, key=lambda name: int(name[:-8]))]


def _runs(path: str, request: ArchiveRequest) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield key, times and values of each run of consecutive rows of a series."""
    parquet: Any = import_module("pyarrow.parquet")
    # A symbolic link in the directory may point to any file.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
        table = parquet.ParquetFile(file)
        for number in range(table.num_row_groups):
            if _may_hold(table.metadata.row_group(number), request):
                for batch in table.iter_batches(row_groups=[number]):
                    yield from _split(_filtered(batch, request))


def _may_hold(group: Any, request: ArchiveRequest) -> bool:
    """Return whether a row group (it has one node) may contain requested values."""
    for number in range(group.num_columns):
        column = group.column(number)
        found = column.statistics
        if found is None or not found.has_min_max:
            continue
        if column.path_in_schema == "hostname" and request.hosts and found.min == found.max:
            return found.min in request.hosts
        if column.path_in_schema == "timestamp" and (
            found.max < request.start or found.min >= request.end
        ):
            return False
    return True


def _filtered(batch: Any, request: ArchiveRequest) -> Any:
    compute: Any = import_module("pyarrow.compute")
    arrow: Any = import_module("pyarrow")
    times = batch.column("timestamp")
    wanted = compute.and_(
        compute.greater_equal(times, request.start), compute.less(times, request.end)
    )
    chosen = [("metric", request.metrics)]
    chosen += [("hostname", request.hosts)] if request.hosts else []
    for name, names in chosen:
        is_chosen = compute.is_in(batch.column(name), value_set=arrow.array(names, arrow.string()))
        wanted = compute.and_(wanted, is_chosen)
    return batch.filter(wanted)


def _split(batch: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    if not batch.num_rows:
        return
    changes = np.zeros(batch.num_rows, bool)
    words: dict[str, tuple[Any, list[Any]]] = {}
    for name in _KEYS:
        encoded = batch.column(name).dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        words[name] = indices, encoded.dictionary.to_pylist()
        changes[1:] |= indices[1:] != indices[:-1]
    bounds = [0, *np.flatnonzero(changes).tolist(), batch.num_rows]
    times = batch.column("timestamp").to_numpy(zero_copy_only=False)
    values = batch.column("value").to_numpy(zero_copy_only=False)
    for begin, end in itertools.pairwise(bounds):
        key = tuple(words[name][1][int(words[name][0][begin])] for name in _KEYS)
        yield key, times[begin:end], values[begin:end]


def main() -> None:
    """Answer the request on stdin."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ArchiveRequest)
    sys.stdout.buffer.write(msgspec.msgpack.encode(read_archive(sys.argv[1], request)))
