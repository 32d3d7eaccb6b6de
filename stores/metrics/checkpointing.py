"""Writing checkpoints now and then, and at the end."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

from ccagent.log import logger
from ccagent.stores.metrics.checkpoint_files import remove_checkpoints, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.stores.metrics.checkpoint_files import CheckpointFormat
    from ccagent.stores.metrics.levels import StoreLevel
    from ccagent.stores.metrics.store import MetricStore


class Checkpointer:
    """Writes the values since the last checkpoint, node by node.

    `state` is the file that remembers until when values were written.
    """

    def __init__(
        self,
        store: MetricStore,
        directory: str,
        form: CheckpointFormat,
        *,
        retention: int,
        state: str,
    ) -> None:
        self._store = store
        self._directory = directory
        self._form: CheckpointFormat = form
        self._retention = retention
        self._state = state
        self._until = _read_state(state)

    async def write(self) -> None:
        """Write a checkpoint; other work goes on between two nodes."""
        start, end = self._range()
        count = 0
        for node in self._nodes():
            count += self._write_node(node, start, end)
            await asyncio.sleep(0)
        self._finish(start, end, count)

    def write_at_once(self) -> int:
        """Write a checkpoint; return the number of values."""
        start, end = self._range()
        count = sum(self._write_node(node, start, end) for node in self._nodes())
        self._finish(start, end, count)
        return count

    def remove_old(self) -> None:
        """Delete files that are older than the retention."""
        try:
            removed = remove_checkpoints(self._directory, int(self._store.now()) - self._retention)
        except OSError as error:
            logger.error("checkpoints %s can't be deleted: %s", self._directory, error.strerror)
        else:
            if removed:
                logger.info("deleted %d checkpoints in %s", removed, self._directory)

    def _range(self) -> tuple[int, int]:
        now = int(self._store.now())
        return max(self._until, now - self._retention), now + 1

    def _nodes(self) -> Iterator[StoreLevel]:
        for cluster in list(self._store.root.children.values()):
            yield from list(cluster.children.values())

    def _write_node(self, node: StoreLevel, start: int, end: int) -> int:
        try:
            return write_checkpoint(node, self._directory, self._form, start, end)
        except OSError as error:
            logger.error(
                "checkpoint of %s: %s; the log keeps its values",
                "/".join(node.path), error.strerror,
            )  # fmt: skip
            return 0

    def _finish(self, start: int, end: int, count: int) -> None:
        self._until = end
        partial = f"{self._state}.tmp"
        try:
            with open(partial, "w", encoding="ascii") as file:
                json.dump({"until": end}, file)
            os.replace(partial, self._state)
        except OSError as error:
            logger.error("%s: %s", self._state, error.strerror)
        logger.info("checkpoint: %d values from %d to %d", count, start, end)


def _read_state(path: str) -> int:
    """Return until when values were written; 0 if that is unknown."""
    try:
        with open(path, encoding="ascii") as file:
            until = json.load(file)["until"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return until if isinstance(until, int) else 0
