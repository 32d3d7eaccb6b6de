"""Log messages as lines.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "log". A message has one
field `log`. The measurement is the id of the component.
"""

from __future__ import annotations

from ccagent.records.line_protocol.encoding import encode_start, encode_string, encode_time
from ccagent.records.message import LineRecord


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
