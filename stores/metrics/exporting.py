"""Export of all values of a stopped store to files."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError, EncodingError, NotPermittedError
from ccagent.log import logger, printable
from ccagent.records.points import encode_number, encode_tags
from ccagent.service.instance import Lock
from ccagent.service.private_files import open_private
from ccagent.stores.metrics.checkpoints import read_checkpoints, write_slices
from ccagent.stores.metrics.line_keys import level_tags
from ccagent.stores.metrics.log_replay import Replay
from ccagent.stores.metrics.settings import log_directory
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ccagent.stores.metrics.checkpoints import CheckpointFormat
    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.settings import StoreSettings


def export_values(
    settings: StoreSettings, form: Literal["line"] | CheckpointFormat, target: str
) -> int:
    """Write all values as lines or checkpoints. Return their number.

    Raise ConfigurationError, LockedError.
    """
    directory = log_directory(settings)
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{directory}: no such directory; check data")
    lock = Lock(os.path.join(settings.data, "lock"), "data")
    try:
        store = MetricStore(settings.catalogue(), time.time)
        oldest = int(time.time() - 2 * settings.retention.seconds)
        if settings.checkpoints.directory:
            read_checkpoints(store, settings.checkpoints.directory, oldest)
        Replay(store).read_directory(directory, oldest)
        if form == "line":
            return _write_lines(store, target)
        end = int(time.time()) + 1
        return sum(
            count
            for cluster in store.root.children.values()
            for node in cluster.children.values()
            for count in write_slices(node, target, form, oldest, end)
        )
    except NotPermittedError as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(f"{target}: {error.strerror}") from error
    finally:
        lock.release()


def _write_lines(store: MetricStore, target: str) -> int:
    count = 0
    with open(_open_target(target), "w", encoding="utf-8") as file:
        for start, when, value in _iterate_values(store.root):
            file.write(f"{start} value={encode_number(value)} {when}\n")
            count += 1
    return count


def _open_target(target: str) -> int:
    """Open the target for writing. Follow no symbolic link except /dev/stdout and similar."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if target in {"/dev/stdout", "/dev/stderr"} or target.startswith("/dev/fd/"):
        return os.open(target, flags)
    return open_private(target, flags)


def _iterate_values(root: StoreLevel) -> Iterator[tuple[str, int, float]]:
    """Yield start of the line, time and value of each value."""
    for level in root.walk():
        for metric, (group, column) in level.series.items():
            try:
                start = _encode_metric(metric) + encode_tags(level_tags(level.path))
            except EncodingError as error:
                logger.warning("%s: %s; skipped", printable(metric), error)
                continue
            for block in group.ordered_blocks():
                first = group.time(block.first)
                for row, value in enumerate(block.values[: block.rows, column].tolist()):
                    if not math.isnan(value):
                        yield start, first + row * group.frequency, value


def _encode_metric(name: str) -> str:
    """Return a metric's name in line protocol. Receivers accept more names than agents send.

    Raise EncodingError if no line can start with the name.
    """
    if not name or name.startswith("#") or name.endswith("\\") or not name.isprintable():
        raise EncodingError("not a valid name in line protocol")
    return name.replace(",", "\\,").replace(" ", "\\ ")
