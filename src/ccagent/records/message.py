"""Records, messages, and the encoding of records as messages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from ccagent.machine.node import Node

    _Complain = Callable[[str, EncodingError], None]

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

_ID_BYTES = 12
_LARGEST = 512 * 1024
"""Maximum bytes of lines per message: servers refuse large messages (NATS: above 1 MiB)."""


class Record(msgspec.Struct, frozen=True):
    """Base class of records: JsonRecord for the format `sonar`, LineRecord for `line`."""

    def label(self) -> str:
        """Return the record's name in the log."""
        return type(self).__name__


class JsonRecord(Record, frozen=True):
    """A record that becomes a JSON message."""

    def encode_json(self) -> tuple[str, bytes, list[str]]:
        """Return kind and JSON of the message, and a phrase for each omitted part.

        Raise EncodingError if nothing can be encoded.
        """
        raise NotImplementedError


class LineRecord(Record, frozen=True):
    """A record that becomes a line. Lines of one kind share messages."""

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line without line break. Raise EncodingError."""
        raise NotImplementedError


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, the kind of an array, `metrics` for
    points, `events.job` and `events.slurm` for events, `log.COMPONENT` for log messages.
    time: seconds since 1970 of the sample.
    body: one JSON object or array without line breaks, or lines of line protocol, each with a line
    break at the end.
    prefix: the configured topic prefix; may be empty.
    id: unique; receivers use it to recognise a repetition.
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
    """Return the messages of those records that a format can carry, as `encode_each` does."""
    return list(encode_each(records, (wanted,), node, prefix=prefix))


def encode_each(
    records: Iterable[Record],
    wanted: Collection[Format],
    node: Node,
    *,
    prefix: str = "",
    complain: _Complain | None = None,
) -> Iterator[Message]:
    """Yield messages of records, in those of the wanted formats that the record supports.

    An envelope or array becomes one message, yielded at once. Lines of one kind share messages.
    These are yielded at the end, or earlier when a message is large.

    complain: called with the name and the error of each record that can't be encoded; the record is
    skipped. Without `complain` the first such record raises EncodingError.
    """
    now = node.clock.time()

    def message(kind: str, form: Format, body: bytes) -> Message:
        number = os.urandom(_ID_BYTES).hex()
        return Message(node.cluster, node.hostname, kind, form, now, body, prefix, number)

    takes_json, takes_lines = "sonar" in wanted, "line" in wanted
    batches: dict[str, _Batch] = {}
    for record in records:
        if not isinstance(record, LineRecord):
            if (
                takes_json
                and isinstance(record, JsonRecord)
                and (encoded := _encode_json(record, complain)) is not None
            ):
                yield message(encoded[0], "sonar", encoded[1])
            continue
        if not takes_lines or (line := _encode_line(record, complain)) is None:
            continue
        kind, text = line
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


def convert_to_nanoseconds(message: Message) -> Message:
    """Return a message of lines with times in nanoseconds; any other message unchanged."""
    if message.format != "line":
        return message
    # Each line ends with whole seconds, and contains no other line break.
    body = message.body.replace(b"\n", b"000000000\n")
    return msgspec.structs.replace(message, body=body)


def _encode_line(record: LineRecord, complain: _Complain | None) -> tuple[str, str] | None:
    """Return kind of message and line; None if the record can't be encoded."""
    try:
        return record.encode_line()
    except EncodingError as error:
        _report(record, error, complain)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # A value does not have the declared type, such as a tag that is not a string.
        _report(record, EncodingError(f"{type(error).__name__}: {error}"), complain)
    return None


class _Batch:
    """Lines that become one message. size: bytes, including line breaks."""

    __slots__ = ("lines", "size")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0

    def body(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


def _encode_json(record: JsonRecord, complain: _Complain | None) -> tuple[str, bytes] | None:
    """Return kind and body of the message; None if the record can't be encoded."""
    try:
        kind, body, lost = record.encode_json()
    except EncodingError as error:
        _report(record, error, complain)
        return None
    for phrase in lost:
        _report(record, EncodingError(phrase), complain)
    return kind, body


def _report(record: Record, error: EncodingError, complain: _Complain | None) -> None:
    """Call `complain` with a record's name and error. Raise EncodingError without `complain`."""
    if complain is None:
        raise EncodingError(f"{record.label()}: {error}") from error
    complain(record.label(), error)
