"""Archiving what is older than the retention: a program of its own writes Parquet.

It reads a segment of the log, so that the store needs neither the library nor its memory.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from ccagent.log import logger, printable

if TYPE_CHECKING:
    from ccagent.stores.metrics.log_writer import Segment

_PROGRAM = "ccagent.stores.metrics.archive_writer"


async def archive_segment(segment: Segment, directory: str) -> bool:
    """Write a segment into the archive; return whether it may be deleted."""
    if not directory:
        return True
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _PROGRAM, segment.path, directory, str(segment.newest),
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
    except OSError as error:
        logger.error("archive %s: %s; trying again later", directory, error)
        return False
    if process.returncode:
        last = printable(said.decode("utf-8", "replace").strip().rpartition("\n")[2])
        logger.error("archive %s: %s: %s; trying again later", directory, segment.path, last)
        return False
    return True
