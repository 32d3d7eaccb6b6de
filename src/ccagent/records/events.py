"""Events as lines, for programs that react to them.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "event". An event has one
field `event`, a JSON string. The measurement is its class, the tag `function` its purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import EncodingError
from ccagent.records.json_encoding import encode_value
from ccagent.records.line_protocol.encoding import encode_start, encode_string, encode_time
from ccagent.records.message import LineRecord

if TYPE_CHECKING:
    import msgspec


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
