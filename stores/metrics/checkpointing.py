"""Writing of checkpoints, periodically and at the end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.log import logger, printable
from ccagent.stores.metrics.checkpoint_files import (
    CheckpointState,
    NodeBehind,
    read_state,
    remove_checkpoints,
    write_slices,
    write_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.stores.metrics.checkpoint_files import CheckpointFormat
    from ccagent.stores.metrics.groups import StoreLevel
    from ccagent.stores.metrics.store import MetricStore

_SETTLING = 300
"""Age in seconds at which values are complete. Newer values go into the next checkpoint."""

_SLICE = 0.005
"""Seconds of work before the event loop gets control again."""


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
