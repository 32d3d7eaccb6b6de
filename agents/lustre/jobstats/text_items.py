"""Items of the text of job_stats besides entries: targets, and lines that do not count."""

from __future__ import annotations

from typing import NamedTuple

NOT_UNDERSTOOD = "can't be understood"
BREAKS_OFF = "the text breaks off in this entry, which is left out"
LACKS_TIME = "an entry without snapshot_time is left out"
LACKS_LINES = "an entry without the operations that all others have is left out"
CONTRADICTS = "an entry with two different lines of one operation is left out"
LACKS_ID = "a line of an entry without job id is left out"
CUT = "the text breaks off"
ELSEWHERE = "is part of a job id, or of a text that was not asked for"


class Target(NamedTuple):
    """The text of a target starts. kind: `mdt`, `obdfilter`, or empty if no line names it."""

    name: str
    kind: str


class Problem(NamedTuple):
    """Something of the text that does not count.

    line: its number in the text. text: how it starts, or the id of its entry. hides_entries: other
    entries of the target may be missing without having gone.
    """

    target: str
    line: int
    text: str
    reason: str = NOT_UNDERSTOOD
    hides_entries: bool = False
