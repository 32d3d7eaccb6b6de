"""Archiving what is older than the retention: a program of its own writes Parquet.

It reads a segment of the log, so that the store needs neither the library nor its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import ProgramError
from ccagent.log import logger
from ccagent.stores.metrics.programs import run_program

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment

_SECONDS = 3600.0


async def archive_segment(segment: Segment, directory: str) -> bool:
    """Write a segment into the archive; return whether it may be deleted."""
    if not directory:
        return True
    try:
        arguments = segment.path, directory, str(segment.newest)
        await run_program("archive_writer", *arguments, seconds=_SECONDS)
    except (OSError, ProgramError, TimeoutError) as error:
        reason = str(error) or "it takes too long"
        logger.error("archive %s: %s: %s; trying again later", directory, segment.path, reason)
        return False
    return True
