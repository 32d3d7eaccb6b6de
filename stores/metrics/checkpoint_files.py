"""Checkpoint files, `DIR/CLUSTER/NODE/SECONDS.json` or `.bin`, and the state of checkpoints.

Names that are not plain file names, such as `..` or `a/b`, are percent-encoded. No name can lead
out of the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.errors import NotPermittedError, UnparsableError
from ccagent.log import logger
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
    from collections.abc import Iterator

    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.store import MetricStore


CheckpointFormat = Literal["json", "binary"]

_NAME = re.compile(r"([0-9]{1,12})\.(json|bin)")
_SUFFIXES = {"json": "json", "binary": "bin"}
_LOG = "current.wal"
_LARGEST = 1 << 30
_BUFFER = 1 << 20
_LONGEST_STRETCH = 10**7
_AHEAD = 3600
"""Seconds ahead of the clock from which on a time is wrong."""


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


_LARGEST_STATE = 64 << 20


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
