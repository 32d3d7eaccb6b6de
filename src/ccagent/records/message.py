"""Records, and the messages that they become on their way to a sink."""

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
"""Bytes of lines that go into one message: servers refuse large ones (NATS: above 1 MiB)."""


class Record(msgspec.Struct, frozen=True):
    """Base of all that agents emit: JsonRecord for the format `sonar`, LineRecord for `line`."""

    def label(self) -> str:
        """Return the record's name in the log."""
        return type(self).__name__


class JsonRecord(Record, frozen=True):
    """A record that is a message of JSON."""

    def encode_json(self) -> tuple[str, bytes, list[str]]:
        """Return kind and JSON of the message, and a phrase for each part that is left out.

        Raises EncodingError.
        """
        raise NotImplementedError


class LineRecord(Record, frozen=True):
    """A record that is a line; lines of one kind share messages."""

    def encode_line(self) -> tuple[str, str]:
        """Return the kind of message, and the line without its end. Raises EncodingError."""
        raise NotImplementedError


class Message(msgspec.Struct, frozen=True):
    """One encoded unit that a transport delivers whole or not at all.

    kind: `sample`, `sysinfo`, `job`, `cluster` for envelopes, that of an array, `metrics` for
    points, `events.job` and `events.slurm` for events, `log.COMPONENT` for log messages.
    time: seconds since 1970 of the sample.
    body: one JSON object or array without line breaks, or lines of line protocol, each ended.
    prefix: the configured topic prefix; may be empty.
    id: unique, so that a receiver recognises a repetition.
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
    """Encode records as they come, each for those of the wanted formats that can carry it.

    An envelope or array is a message, returned at once. Lines of one kind share messages, which are
    returned at the end, or before when one has grown large.

    complain: called with the name and the error of each record that can't be encoded; the record is
    left out. Without it the first such record raises EncodingError.
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
    """Return a message with the times of its lines in nanoseconds; any other one unchanged."""
    if message.format != "line":
        return message
    # A line ends with whole seconds, and nothing in it can be a line break.
    body = message.body.replace(b"\n", b"000000000\n")
    return msgspec.structs.replace(message, body=body)


def _encode_line(record: LineRecord, complain: _Complain | None) -> tuple[str, str] | None:
    """Return kind of message and line; None if the record can't be encoded."""
    try:
        return record.encode_line()
    except EncodingError as error:
        _report(record, error, complain)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # A value of another type than declared, such as a tag that is no text.
        _report(record, EncodingError(f"{type(error).__name__}: {error}"), complain)
    return None


class _Batch:
    """Lines that become one message. size: bytes, line breaks included."""

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
    """Call `complain` with a record's name and error. Raises EncodingError if there is none."""
    if complain is None:
        raise EncodingError(f"{record.label()}: {error}") from error
    complain(record.label(), error)
