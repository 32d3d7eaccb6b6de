"""A log message as the line protocol carries it.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "log": one field `log`,
the measurement is the id of the component.
"""

from __future__ import annotations

import msgspec

from ccagent.records.points import measurement, seconds


class LogMessage(msgspec.Struct, frozen=True):
    """component: such as `ccnc`; the message goes to `<cluster>.log.<component>`.

    tags: `cluster`, `hostname`, `type`, `loglevel`. time: seconds since 1970.
    """

    component: str
    tags: dict[str, str]
    text: str
    time: float


def log_line(message: LogMessage) -> str:
    """Write a log message as one line. Raises EncodingError."""
    text = "".join(character if character.isprintable() else " " for character in message.text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    start = measurement(message.component, message.tags)
    return f'{start} log="{escaped}" {seconds(message.time)}'
