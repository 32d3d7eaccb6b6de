"""Archiving of log segments by a separate program that writes Parquet.

The program reads a segment of the log. The store therefore loads no Parquet library.
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import TYPE_CHECKING

from ccagent.errors import ProgramError
from ccagent.log import logger
from ccagent.stores.metrics.programs import run_program

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment

_SECONDS = 600.0
"""Maximum duration for a segment. During this time the log may exceed its cap."""

_AGAIN_AFTER = 60.0
"""Seconds until a failed segment is tried again."""


class SegmentArchive:
    """Archives one segment at a time, and records the archived segments.

    directory: empty without an archive; then every segment counts as archived.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._archived: set[str] = set()
        self._failed: dict[str, float] = {}
        self._turn = asyncio.Lock()

    def has(self, segment: Segment) -> bool:
        """Return whether a segment is archived and may be deleted."""
        return not self.directory or segment.path in self._archived

    async def add(self, segment: Segment) -> bool:
        """Archive a segment. Return whether it may be deleted."""
        async with self._turn:
            if self.has(segment):
                return True
            if not await asyncio.to_thread(os.path.exists, segment.path):
                logger.error("log %s was removed before it was archived", segment.path)
                return True
            if monotonic() < self._failed.get(segment.path, 0.0):
                return False
            try:
                arguments = segment.path, self.directory, str(segment.newest)
                await run_program("archive_writer", *arguments, seconds=_SECONDS)
            except (OSError, ProgramError, TimeoutError) as error:
                self._failed[segment.path] = monotonic() + _AGAIN_AFTER
                reason = str(error) or "time limit exceeded"
                logger.error(
                    "archive %s: %s: %s; retrying later", self.directory, segment.path, reason
                )
                return False
            self._archived.add(segment.path)
            return True

    def forget(self, segment: Segment) -> None:
        """Forget a deleted segment."""
        self._archived.discard(segment.path)
        self._failed.pop(segment.path, None)
