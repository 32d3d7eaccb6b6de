"""Records and messages."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

Format = Literal["sonar", "line"]
"""Sonar JSON envelopes, or line protocol."""

FORMATS: tuple[Format, ...] = ("sonar", "line")

TimeUnit = Literal["", "s", "ns"]
"""Unit of the times in lines."""


class Record(msgspec.Struct, frozen=True):
    """Base class of records: JsonRecord for the format `sonar`, LineRecord for `line`."""

    def label(self) -> str:
        """Return the record's name in the log."""
        return type(self).__name__


class JsonRecord(Record, frozen=True):
    """A record that becomes a JSON message.

    takes_differences: it is for receivers that compute CPU time from differences of `cpu_time`
    (True), for the others (False), or for all (None).
    """

    takes_differences: ClassVar[bool | None] = None
    is_envelope: ClassVar[bool] = False

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

    def is_part_of_node(self) -> bool:
        """Return whether the line is about a part of a node that is not hardware, such as a job."""
        return False


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
