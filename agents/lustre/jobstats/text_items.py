"""Items of the text of job_stats besides entries: targets and problems."""

from __future__ import annotations

from typing import NamedTuple

NOT_UNDERSTOOD = "can't be parsed"
BREAKS_OFF = "the text breaks off in this entry; entry skipped"
LACKS_TIME = "an entry without snapshot_time; entry skipped"
LACKS_LINES = "an entry lacks operations that all others have; entry skipped"
CONTRADICTS = "an entry has two different lines of one operation; entry skipped"
LACKS_ID = "a line of an entry without job id; line skipped"
CUT = "the text breaks off"
ELSEWHERE = "is part of a job id or of a text that was not requested"


class Target(NamedTuple):
    """Start of the text of a target. kind: `mdt`, `obdfilter`, or empty if unknown."""

    name: str
    kind: str


class Problem(NamedTuple):
    """A part of the text that is not used.

    line: line number in the text. text: start of the line, or the id of its entry. hides_entries:
    other entries of the target may be missing in the text although they exist.
    """

    target: str
    line: int
    text: str
    reason: str = NOT_UNDERSTOOD
    hides_entries: bool = False
