"""Measured values as lines.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "metric". A line has one
field `value`, the tags `cluster`, `hostname`, `type`, and further tags for the scope.
"""

from __future__ import annotations

import math

from ccagent.records.line_protocol.encoding import (
    CHECKED_NAMES,
    EARLIEST,
    LATEST,
    Tags,
    encode_number,
    encode_start,
    encode_time,
)
from ccagent.records.line_protocol.floats import MOST_DIGITS, drop_remainder
from ccagent.records.message import LineRecord


# There are thousands of points at a time. They have no reference cycles.
class Point(LineRecord, frozen=True, gc=False):
    """One metric: name, tags, value and seconds since 1970."""

    name: str
    tags: dict[str, str]
    value: int | float
    time: float

    def label(self) -> str:
        """Return the metric's name."""
        return f"metric {self.name}"

    def is_part_of_node(self) -> bool:
        """Return whether the metric is that of a job or another part of a node."""
        return "stype" in self.tags and self.tags.get("type") == "node"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line: tags sorted, time in seconds.

        Raise EncodingError for a bad name, an empty tag, a line break, NaN or infinity, or a time
        after the year 2262.
        """
        name, tags, value = self.name, self.tags, self.value
        if name in CHECKED_NAMES and isinstance(tags, Tags):
            start = name + tags.text()
        else:
            start = encode_start(name, tags)
        # Go programs parse all these forms. The repr of a float is exact and has no locale.
        if type(value) is float and math.isfinite(value):
            text = repr(value)
            if len(text) >= MOST_DIGITS and (text[-3] in "09+-" or text[-5] == "e"):
                text = drop_remainder(value, text)
        else:
            text = encode_number(value)
        time = self.time
        if not EARLIEST <= time <= LATEST:
            encode_time(time)
        return "metrics", f"{start} value={text} {int(time)}"
