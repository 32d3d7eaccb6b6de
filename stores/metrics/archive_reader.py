"""The program that reads values out of the archive.

    python -m ccagent.stores.metrics.archive_reader DIRECTORY

It takes an ArchiveRequest in JSON on stdin and prints a list of ArchivedValues in JSON.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.stores.metrics.checkpoint_files import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[0-9]{1,12}\.parquet")
_MOST_ROWS = 50_000_000


class ArchiveRequest(msgspec.Struct, frozen=True):
    """Which values are wanted. hosts: empty for all."""

    cluster: str
    start: int
    end: int
    hosts: list[str]
    metrics: list[str]


class ArchivedValues(msgspec.Struct, frozen=True):
    """Values of a series."""

    host: str
    metric: str
    level: str
    frequency: int
    times: list[int]
    values: list[float]


def read_archive(directory: str, request: ArchiveRequest) -> list[ArchivedValues]:
    """Return the wanted values of all files that may hold some."""
    found: dict[tuple[str, str, str, int], tuple[list[int], list[float]]] = {}
    for path in _files(directory, request):
        for row in _rows(path, request):
            key = row["hostname"], row["metric"], _level(row), row["frequency"]
            times, values = found.setdefault(key, ([], []))
            times.append(row["timestamp"])
            values.append(row["value"])
            if len(times) > _MOST_ROWS:
                break
    return [ArchivedValues(*key, *series) for key, series in found.items()]


def _files(directory: str, request: ArchiveRequest) -> list[str]:
    """Return the files of a cluster; a name is the time of the newest value, or a little later."""
    folder = os.path.join(directory, file_name(request.cluster))
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    wanted = [name for name in names if int(name.partition(".")[0]) >= request.start]
    return [os.path.join(folder, name) for name in sorted(wanted, key=len) if name]


def _rows(path: str, request: ArchiveRequest) -> Iterator[dict[str, Any]]:
    parquet: Any = import_module("pyarrow.parquet")
    wanted: list[tuple[str, str, Any]] = [
        ("timestamp", ">=", request.start), ("timestamp", "<", request.end),
        ("metric", "in", request.metrics),
    ]  # fmt: skip
    if request.hosts:
        wanted.append(("hostname", "in", request.hosts))
    yield from parquet.read_table(path, filters=wanted).to_pylist()


def _level(row: dict[str, Any]) -> str:
    scope: str = row["scope"]
    return "" if scope == "node" else scope + str(row["scope_id"])


def main() -> None:
    """Answer the request on stdin."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ArchiveRequest)
    sys.stdout.buffer.write(msgspec.json.encode(read_archive(sys.argv[1], request)))


if __name__ == "__main__":
    main()
