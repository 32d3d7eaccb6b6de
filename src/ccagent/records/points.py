"""Measured values, events and log messages as lines.

Source: ClusterCockpit's flavor of the InfluxData line protocol, categories "metric", "event" and
"log". A line has one field: `value`, `event` (a JSON string) or `log`. The measurement is the name
of the metric, the class of the event (its tag `function` is the purpose), or the id of the
component. Tags are `cluster`, `hostname`, `type`, and further ones for the scope.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.records.json_encoding import encode_value
from ccagent.records.line_protocol.encoding import (
    CHECKED_NAMES,
    EARLIEST,
    LATEST,
    MOST_DIGITS,
    Tags,
    drop_remainder,
    encode_number,
    encode_start,
    encode_string,
    encode_time,
)
from ccagent.records.message import LineRecord

if TYPE_CHECKING:
    import msgspec


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


class Event(LineRecord, frozen=True):
    """One event.

    name: the measurement. subject: `job` or `slurm`, the part of the topic after
    `<cluster>.events`. tags: `hostname`, `type` and more. payload: an object, encoded as JSON.
    time: seconds since 1970.
    """

    name: str
    subject: str
    tags: dict[str, str]
    payload: msgspec.Struct
    time: float

    def label(self) -> str:
        """Return the event's name."""
        return f"event {self.name}"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line. Raise EncodingError for an invalid value."""
        body, lost = encode_value(self.payload, has_null=True)
        if lost:
            raise EncodingError(lost[0])
        start = encode_start(self.name, self.tags)
        # JSON already has `\n` in place of a line break.
        line = f"{start} event={encode_string(body.decode())} {encode_time(self.time)}"
        return f"events.{self.subject}", line


class LogMessage(LineRecord, frozen=True):
    """One log message.

    component: such as `ccnc`; the topic of the message is `<cluster>.log.<component>`.
    tags: `cluster`, `hostname`, `type`, `loglevel`. time: seconds since 1970.
    """

    component: str
    tags: dict[str, str]
    text: str
    time: float

    def label(self) -> str:
        """Return the component's name."""
        return f"log message of {self.component}"

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line. Raise EncodingError for an invalid value."""
        text = "".join(character if character.isprintable() else " " for character in self.text)
        start = encode_start(self.component, self.tags)
        line = f"{start} log={encode_string(text)} {encode_time(self.time)}"
        return f"log.{self.component}", line
