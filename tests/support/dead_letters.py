"""The dead letters of a queue in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.queue.segment import DEAD, parse_segment

if TYPE_CHECKING:
    from ccagent.queue.queue import Queue
    from ccagent.queue.segment import QueueEntry


def read_dead_letters(queue: Queue) -> list[QueueEntry]:
    """Return the dead letters of open segments."""
    return [
        message.entry
        for segment in queue._segments.values()
        for message in parse_segment(segment.file.read(0, segment.file.size), queue.owner).messages
        if message.state == DEAD and message.entry is not None
    ]
