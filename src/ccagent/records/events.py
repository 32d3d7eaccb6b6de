"""An event as the line protocol carries it: something happened that others act upon.

Source: ClusterCockpit's flavor of the InfluxData line protocol, category "event": one field
`event`, a string of JSON; the measurement is its class, the tag `function` its purpose.
"""

from __future__ import annotations

import msgspec

from ccagent.errors import EncodingError
from ccagent.records.json_encoding import encode_json
from ccagent.records.points import measurement, seconds


class Event(msgspec.Struct, frozen=True):
    """name: the measurement. tags: `hostname`, `type` and more. payload: becomes JSON.

    subject: where it belongs below `<cluster>.events`: `job` or `slurm`. time: seconds since 1970.
    """

    name: str
    subject: str
    tags: dict[str, str]
    payload: msgspec.Struct
    time: float


def event_line(event: Event) -> str:
    """Write an event as one line. Raises EncodingError."""
    body, lost = encode_json(event.payload, has_null=True)
    if lost:
        raise EncodingError(lost[0])
    text = body.decode()
    # A line break of the text is `\n` in JSON already.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{measurement(event.name, event.tags)} event="{escaped}" {seconds(event.time)}'
