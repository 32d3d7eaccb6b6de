"""Messages: encoded records on their way to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import EncodingError
from ccagent.records.envelopes import Envelope
from ccagent.records.events import Event, event_line
from ccagent.records.json_array import JsonArray
from ccagent.records.json_encoding import encode_json
from ccagent.records.log_message import LogMessage, log_line
from ccagent.records.points import Point, line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ccagent.machine.node import Node

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

Record = Envelope | JsonArray | Point | Event | LogMessage
"""What an agent emits. Envelopes and arrays are for the format `sonar`, the others for `line`."""

_LINES = (Point, Event, LogMessage)
_ID_BYTES = 12
_LARGEST = 512 * 1024
"""Bytes of lines that go into one message: servers refuse large ones (NATS: above 1 MiB)."""


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, that of an array, `metrics` for
    points, `events.job` and `events.slurm` for events, `log.COMPONENT` for log messages.
    time: seconds since 1970 of the sample.
    body: one JSON object or array without line breaks, or lines of line protocol, each ended.
    prefix: the configured topic prefix; may be empty.
    id: tells the message from all others, so that a receiver can tell when it comes twice.
    """

    cluster: str
    node: str
    kind: str
    format: Format
    time: float
    body: bytes
    prefix: str = ""
    id: str = ""

    @property
    def topic(self) -> str:
        """The topic or subject: `[prefix.]<cluster>.<kind>`."""
        topic = f"{self.cluster}.{self.kind}"
        return f"{self.prefix}.{topic}" if self.prefix else topic


def encode(
    records: Iterable[Record], wanted: Format, node: Node, *, prefix: str = ""
) -> list[Message]:
    """Encode those of `records` that `wanted` can carry, as `encode_each` does."""
    return list(encode_each(records, (wanted,), node, prefix=prefix))


def encode_each(
    records: Iterable[Record],
    wanted: Collection[Format],
    node: Node,
    *,
    prefix: str = "",
    complain: Callable[[str, EncodingError], None] | None = None,
) -> Iterator[Message]:
    """Encode records as they come, each for those of the wanted formats that can carry it.

    An envelope or array is a message, at once. Points share messages, and so do the events of a
    subject; these come at the end, or before when one has grown large.

    complain: called with the name of a record, and why, for each that can't be encoded; the record
    is left out. Without it the first such record raises EncodingError.
    """
    now = node.clock.time()

    def message(kind: str, form: Format, body: bytes) -> Message:
        number = os.urandom(_ID_BYTES).hex()
        return Message(node.cluster, node.hostname, kind, form, now, body, prefix, number)

    takes_envelopes, takes_lines = "sonar" in wanted, "line" in wanted
    batches: dict[str, _Batch] = {}
    for record in records:
        is_line = isinstance(record, _LINES)
        if not (takes_lines if is_line else takes_envelopes):
            continue
        try:
            if not isinstance(record, _LINES):
                body, lost = _json(record)
                for error in lost:
                    _report(record, error, complain)
                yield message(record.kind, "sonar", body)
                continue
            kind, text = _as_line(record)
        except EncodingError as error:
            _report(record, error, complain)
            continue
        size = (len(text) if text.isascii() else len(text.encode())) + 1
        batch = batches.get(kind)
        if batch is None:
            batch = batches[kind] = _Batch()
        elif batch.size + size > _LARGEST:
            yield message(kind, "line", batch.body())
            batch = batches[kind] = _Batch()
        batch.lines.append(text)
        batch.size += size
    for kind, batch in batches.items():
        yield message(kind, "line", batch.body())


def in_nanoseconds(message: Message) -> Message:
    """Return a message with the times of its lines in nanoseconds; one without lines as it is."""
    if message.format != "line":
        return message
    # A line ends with whole seconds, and nothing in it can be a line break.
    body = message.body.replace(b"\n", b"000000000\n")
    return msgspec.structs.replace(message, body=body)


def _as_line(record: Point | Event | LogMessage) -> tuple[str, str]:
    """Return the kind of message and the line. Raises EncodingError."""
    try:
        if isinstance(record, Point):
            return "metrics", line(record)
        if isinstance(record, LogMessage):
            return f"log.{record.component}", log_line(record)
        return f"events.{record.subject}", event_line(record)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # A record of a type that it must not have, such as a tag that is no text.
        raise EncodingError(f"{type(error).__name__}: {error}") from error


class _Batch:
    """Lines that become one message. size: bytes, line breaks included."""

    __slots__ = ("lines", "size")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0

    def body(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def _json(record: Envelope | JsonArray) -> tuple[bytes, list[EncodingError]]:
    """Return the JSON, and an error for each part that is left out. Raises EncodingError."""
    if isinstance(record, JsonArray):
        body, lost = encode_json(record.items, has_null=True)
    else:
        body, lost = encode_json(record)
    return body, [EncodingError(text) for text in lost]


def _report(
    record: Record, error: EncodingError, complain: Callable[[str, EncodingError], None] | None
) -> None:
    if isinstance(record, LogMessage):
        name = f"log message of {record.component}"
    elif isinstance(record, Point):
        name = f"metric {record.name}"
    elif isinstance(record, Event):
        name = f"event {record.name}"
    else:
        name = f"a part of {record.kind}"
    if complain is None:
        raise EncodingError(f"{name}: {error}") from error
    complain(name, error)
