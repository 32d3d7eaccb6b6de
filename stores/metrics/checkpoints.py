"""Checkpoints: files `DIR/CLUSTER/NODE/SECONDS.json` or `.bin`, their state, and their writer.

Names that are not plain file names, such as `..` or `a/b`, are percent-encoded. No name can lead
out of the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.errors import NotPermittedError, UnparsableError
from ccagent.log import logger, printable
from ccagent.service.private_directories import make_directory, make_directory_at
from ccagent.service.private_files import open_private_at, replace_file
from ccagent.stores.metrics.checkpoint_levels import (
    CheckpointLevel,
    as_levels,
    collect_slices,
    decode_binary,
    decode_json,
    decode_reference_log,
    encode_binary,
    encode_json,
    restore_level,
)
from ccagent.stores.metrics.line_keys import file_name, original_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.store import MetricStore

CheckpointFormat = Literal["json", "binary"]

_NAME = re.compile(r"([0-9]{1,12})\.(json|bin)")
_SUFFIXES = {"json": "json", "binary": "bin"}
_LOG = "current.wal"
_LARGEST = 1 << 30
_LARGEST_STATE = 64 << 20
_BUFFER = 1 << 20
_LONGEST_STRETCH = 10**7
_AHEAD = 3600
"""Seconds ahead of the clock from which on a time is wrong."""

_SETTLING = 300
"""Age in seconds at which values are complete. Newer values go into the next checkpoint."""

_SLICE = 0.005
"""Seconds of work before the event loop gets control again."""


class NodeDirectory(NamedTuple):
    """The directory of a node's checkpoints."""

    cluster: str
    node: str
    path: str


def find_nodes(directory: str) -> Iterator[NodeDirectory]:
    """Yield the nodes with checkpoints. Skip everything except directories."""
    for cluster in _directories(directory):
        for node in _directories(cluster.path):
            yield NodeDirectory(original_name(cluster.name), original_name(node.name), node.path)


def _directories(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.error("checkpoints %s: %s; their values are missing", path, error.strerror)
        return []
    return sorted(found, key=lambda entry: entry.name)


def read_checkpoints(
    store: MetricStore,
    directory: str,
    oldest: int,
    ends: dict[tuple[str, str], int] | None = None,
) -> int:
    """Read all checkpoints with values since `oldest`, then the logs. Return the number of values.

    Unreadable files are logged and skipped. ends: receives the times after the last values of
    checkpoints, by cluster and node.
    """
    count = 0
    for cluster, node, path in find_nodes(directory):
        try:
            files = _recent(path, oldest)
        except OSError as error:
            logger.error("checkpoints %s: %s; their values are missing", path, error.strerror)
            continue
        for _, name in files:
            level = _read_file(os.path.join(path, name))
            count += restore_level(store, (cluster, node), level)
            if ends is not None:
                ends[cluster, node] = max(level.end(), ends.get((cluster, node), 0))
        count += _read_log(store, (cluster, node), os.path.join(path, _LOG))
    return count


def write_slices(
    node: StoreLevel, directory: str, form: CheckpointFormat, start: int, end: int
) -> Iterator[int]:
    """Write the values of a node from `start` to before `end`, with a pause after each series.

    Yield 0 at each pause, and the number of values at the end. Raise OSError.
    """
    level = CheckpointLevel()
    for _ in collect_slices(node, start, end, level):
        yield 0
    if not (level.series or level.children):
        return
    parts = encode_json(level, start, end) if form == "json" else encode_binary(level, start, end)
    target = f"{start}.{_SUFFIXES[form]}"
    folder = open_folder(directory, [file_name(name) for name in node.path])
    try:
        for _ in _write_file(folder, target, parts):
            yield 0
    finally:
        os.close(folder)
    yield level.count()


def open_folder(directory: str, names: list[str]) -> int:
    """Open a directory; create what is missing. Follow no symbolic link below `directory`."""
    make_directory(directory)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(directory, flags)
    for name in names:
        try:
            make_directory_at(descriptor, name, 0o700)
            below = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _write_file(folder: int, target: str, parts: Iterator[bytes]) -> Iterator[None]:
    """Write a file in parts under a temporary name, then rename it to `target`."""
    partial = f"{target}.tmp"
    descriptor = open_private_at(folder, partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with open(descriptor, "wb", _BUFFER) as file:
            for part in parts:
                file.write(part)
                yield
        os.replace(partial, target, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


def remove_checkpoints(directory: str, oldest: int) -> int:
    """Delete files with only values older than `oldest`. Return their number."""
    removed = 0
    for _, _, path in find_nodes(directory):
        try:
            kept = {name for _, name in _recent(path, oldest)}
            for _, name in _files(path):
                if name not in kept:
                    os.unlink(os.path.join(path, name))
                    removed += 1
        except OSError as error:
            logger.error("checkpoints %s can't be deleted: %s", path, error.strerror)
    return removed


def _files(path: str) -> list[tuple[int, str]]:
    """Return times and names of a node's checkpoints, sorted by time."""
    found = (_NAME.fullmatch(name) for name in os.listdir(path))
    return sorted((int(one[1]), one[0]) for one in found if one)


def _recent(path: str, oldest: int) -> list[tuple[int, str]]:
    """Return the files since `oldest`, and the file before, which may contain later values."""
    files = _files(path)
    first = next((n for n, (time, _) in enumerate(files) if time >= oldest), len(files))
    return files[max(0, first - 1) :]


def _read_file(file: str) -> CheckpointLevel:
    """Read a checkpoint. Log errors; then return a level without values."""
    try:
        data = _read(file)
        return decode_json(data) if file.endswith(".json") else decode_binary(data)
    except OSError as error:
        logger.error("checkpoint %s: %s; its values are missing", file, error.strerror)
    except UnparsableError as error:
        logger.error("checkpoint %s: %s; its values are missing", file, error)
    return CheckpointLevel()


def _read_log(store: MetricStore, path: tuple[str, str], file: str) -> int:
    try:
        data = _read(file)
    except FileNotFoundError:
        return 0
    except OSError as error:
        logger.error("log %s: %s; its values are missing", file, error.strerror)
        return 0
    values, rest = decode_reference_log(data)
    if rest:
        logger.warning("log %s: the last %d bytes are not a complete record", file, rest)
    frequencies = {
        one.metric: known.frequency
        for one in values
        if (known := store.catalogue.get(one.metric)) is not None
    }
    latest = int(store.now()) + _AHEAD
    newest = max((one.time for one in values if one.time <= latest), default=0)
    near = [one for one in values if 0 <= newest - one.time < _LONGEST_STRETCH]
    if len(near) < len(values):
        logger.warning("log %s: skipped %d values of wrong times", file, len(values) - len(near))
    return restore_level(store, path, as_levels(near, frequencies))


def _read(file: str) -> bytes:
    """Read a file of at most 1 GB, no symbolic link. Raise OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        return opened.read(_LARGEST)


class NodeBehind(msgspec.Struct, frozen=True):
    """A node whose last checkpoint failed. since: time of the first value without a checkpoint."""

    cluster: str
    node: str
    since: int


class CheckpointState(msgspec.Struct, frozen=True):
    """until: time before which all values are in files, except values of the nodes behind."""

    until: int = 0
    behind: list[NodeBehind] = []


def read_state(path: str) -> CheckpointState:
    """Return the state. Return an empty state if the file is missing or unusable."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST_STATE), type=CheckpointState)
    except FileNotFoundError:
        return CheckpointState()
    except (OSError, ValueError, msgspec.DecodeError) as error:
        logger.warning("%s: %s; the next checkpoint will contain all values", path, error)
        return CheckpointState()


def write_state(path: str, state: CheckpointState) -> None:
    """Replace the file. A failure is logged; the next checkpoint is then larger."""
    try:
        replace_file(path, msgspec.json.encode(state))
    except (OSError, NotPermittedError) as error:
        logger.error("%s: %s", path, getattr(error, "strerror", None) or error)


class _Range(NamedTuple):
    start: int
    end: int


class Checkpointer:
    """Writes the values since the last checkpoint, node by node.

    The files of a node do not overlap, because ClusterCockpit's store can't read overlapping files.
    Values that arrive more than five minutes late are therefore only in the log. A node whose file
    failed is behind; its next file contains the missing values. `state` is the path of the state
    file.

    ends: times after the last values in each node's files at the start, including files of other
    programs.
    """

    def __init__(
        self,
        store: MetricStore,
        directory: str,
        form: CheckpointFormat,
        *,
        retention: int,
        state: str,
        ends: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._form: CheckpointFormat = form
        self._retention = retention
        self._state = state
        found = read_state(state)
        self._until = found.until
        self._behind = {(one.cluster, one.node): one.since for one in found.behind}
        # Ignore files ahead of the clock; they would stop the checkpoints of their nodes.
        latest = int(store.now()) + _SETTLING
        self._ends = {name: end for name, end in (ends or {}).items() if end <= latest}

    async def write(self) -> None:
        """Write a checkpoint. Yield to the event loop every few milliseconds."""
        asked = self._range(_SETTLING)
        if asked is None:
            return
        count = 0
        begin = time.perf_counter()
        for node in self._nodes():
            for written in self._write_node(node, asked):
                count += written
                if time.perf_counter() - begin > _SLICE:
                    await asyncio.sleep(0)
                    begin = time.perf_counter()
        self._finish(asked, count)

    def write_at_once(self) -> int:
        """Write a checkpoint of all values. Return their number."""
        asked = self._range(0)
        if asked is None:
            return 0
        count = sum(sum(self._write_node(node, asked)) for node in self._nodes())
        self._finish(asked, count)
        return count

    def remove_old(self) -> None:
        """Delete files that are older than the retention."""
        removed = remove_checkpoints(self._directory, int(self._store.now()) - self._retention)
        if removed:
            logger.info("deleted %d checkpoints in %s", removed, self._directory)

    def _range(self, settling: int) -> _Range | None:
        """Return the range of the next checkpoint; None if it would be empty."""
        now = int(self._store.now())
        oldest = now - self._retention
        if self._until > now + _SETTLING:
            logger.warning(
                "checkpoints end at %d, %d s ahead of the clock: writing all values again",
                self._until, self._until - now,
            )  # fmt: skip
            self._until = 0
        end = now + 1 - settling
        found = _Range(min(end, max(self._until, oldest)), end)
        return found if found.start < found.end or self._behind else None

    def _nodes(self) -> Iterator[StoreLevel]:
        for cluster in list(self._store.root.children.values()):
            yield from list(cluster.children.values())

    def _write_node(self, node: StoreLevel, asked: _Range) -> Iterator[int]:
        """Write the file of a node as a generator. Yield numbers of written values."""
        name = node.path[0], node.path[1]
        oldest = int(self._store.now()) - self._retention
        start = max(oldest, min(asked.start, self._behind.get(name, asked.start)))
        start = max(start, self._ends.get(name, start))
        try:
            yield from write_slices(node, self._directory, self._form, start, asked.end)
        except Exception as error:  # noqa: BLE001 - one node must not cost the others
            self._behind[name] = start
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            logger.error(
                "checkpoint of %s: %s; the log has its values; the next checkpoint retries",
                printable("/".join(name)), reason,
            )  # fmt: skip
        else:
            self._behind.pop(name, None)

    def _finish(self, asked: _Range, count: int) -> None:
        self._until = max(self._until, asked.end)
        root = self._store.root
        self._behind = {
            name: since for name, since in self._behind.items() if root.find(name) is not None
        }
        behind = [NodeBehind(*name, since) for name, since in self._behind.items()]
        write_state(self._state, CheckpointState(self._until, behind))
        logger.info("checkpoint: %d values from %d to %d", count, asked.start, asked.end)
        if behind:
            logger.warning(
                "checkpoint: writing failed for %d nodes; the next checkpoint retries", len(behind)
            )
