"""The encoding of records as messages, once for each profile of sinks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import EncodingError
from ccagent.records.message import FORMATS, Format, JsonRecord, LineRecord, Message, TimeUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Protocol

    from ccagent.records.message import Record
    from ccagent.records.receivers import Receiver

    _Complain = Callable[[str, EncodingError], None]

    class _Clock(Protocol):
        def time(self) -> float: ...

    class _Origin(Protocol):
        """The node that records are from: its names and its clock. It is `machine.node.Node`."""

        @property
        def clock(self) -> _Clock: ...
        @property
        def cluster(self) -> str: ...
        @property
        def hostname(self) -> str: ...


_ID_BYTES = 12
_NANOSECONDS = "000000000\n"
_LARGEST = 512 * 1024
"""Maximum bytes of lines per message: servers refuse large messages (NATS: above 1 MiB)."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink gets of each record. Sinks with equal profiles share the encoded bytes.

    receiver: name of the receiving program in RECEIVERS; empty: any program. precision: unit of the
    times in lines; empty: seconds for metrics, else nanoseconds. sends_errors_alone: whether
    envelopes with errors and no data are sent; otherwise their errors are logged.
    """

    format: Format = "sonar"
    receiver: str = ""
    precision: TimeUnit = ""
    sends_errors_alone: bool = True

    def fit(self, record: JsonRecord) -> JsonRecord | None:
        """Return a record as the receiver accepts it, the same object if nothing changes.

        None if the receiver does not get it.
        """
        if not self.receiver and self.sends_errors_alone:
            return None if record.takes_differences else record
        from ccagent.records.receivers import fit_record

        return fit_record(record, self.receiver, sends_errors_alone=self.sends_errors_alone)

    def takes_lines(self, kind: str) -> bool:
        """Return whether the receiver accepts lines of a kind."""
        return not self.receiver or self._known.takes(kind)

    @property
    def takes_parts_of_nodes(self) -> bool:
        """True if the receiver accepts lines about jobs and similar parts of a node."""
        return not self.receiver or self._known.takes_parts_of_nodes

    def line_end(self, kind: str) -> str:
        """Return the end of lines of a kind, which have whole seconds."""
        unit = self.precision or ("s" if kind == "metrics" else "ns")
        return "\n" if unit == "s" else _NANOSECONDS

    @property
    def _known(self) -> Receiver:
        from ccagent.records.receivers import RECEIVERS

        return RECEIVERS[self.receiver]


def encode(
    records: Iterable[Record],
    wanted: Profile | Format | Collection[Format],
    node: _Origin,
    *,
    prefix: str = "",
    complain: _Complain | None = None,
) -> list[Message]:
    """Return the messages for one profile, or for any program that takes one of some formats.

    Times in lines are seconds, unless a profile says otherwise. Raise as `encode_each` does.
    """
    if isinstance(wanted, Profile):
        profiles = [wanted]
    else:
        formats: Collection[str] = [wanted] if isinstance(wanted, str) else wanted
        profiles = [Profile(format=each, precision="s") for each in FORMATS if each in formats]
    made = encode_each(records, profiles, node, prefix=prefix, complain=complain)
    return [message for _, message in made]


def encode_each(
    records: Iterable[Record],
    profiles: Collection[Profile],
    node: _Origin,
    *,
    prefix: str = "",
    complain: _Complain | None = None,
) -> Iterator[tuple[Profile, Message]]:
    """Yield the messages of records for each profile.

    An envelope or array becomes one message, yielded at once. It is encoded once for all profiles
    that leave it unchanged. Lines of one kind share messages. These are yielded at the end, or
    earlier when a message is large.

    complain: called with the name and the error of each record that can't be encoded; the record is
    skipped. Without `complain` the first such record raises EncodingError.
    """
    now = node.clock.time()

    def message(kind: str, form: Format, body: bytes) -> Message:
        number = os.urandom(_ID_BYTES).hex()
        return Message(node.cluster, node.hostname, kind, form, now, body, prefix, number)

    of_json = [profile for profile in profiles if profile.format == "sonar"]
    of_lines = [_Lines(profile) for profile in profiles if profile.format == "line"]
    for record in records:
        if isinstance(record, JsonRecord):
            for profile, kind, body in _encode_json_for(record, of_json, complain):
                yield profile, message(kind, "sonar", body)
        elif (
            of_lines and isinstance(record, LineRecord) and (line := _encode_line(record, complain))
        ):
            kind, text = line
            for lines in of_lines:
                if (full := lines.add(record, kind, text)) is not None:
                    yield lines.profile, message(kind, "line", full)
    for lines in of_lines:
        for kind, body in lines.bodies():
            yield lines.profile, message(kind, "line", body)


def _encode_json_for(
    record: JsonRecord, profiles: list[Profile], complain: _Complain | None
) -> Iterator[tuple[Profile, str, bytes]]:
    """Yield profile, kind and body for each profile that gets the record."""
    made: list[tuple[JsonRecord, tuple[str, bytes] | None]] = []
    for profile in profiles:
        fitted = profile.fit(record)
        if fitted is None:
            continue
        known = [encoded for other, encoded in made if other is fitted]
        if not known:
            try:
                kind, body, lost = fitted.encode_json()
                known, errors = [(kind, body)], [EncodingError(phrase) for phrase in lost]
            except EncodingError as error:
                known, errors = [None], [error]
            if not made:  # what is wrong with a record is reported once
                for problem in errors:
                    _report(fitted, problem, complain)
            made.append((fitted, known[0]))
        if known[0] is not None:
            yield profile, *known[0]


class _Lines:
    """Lines of one profile that become messages."""

    __slots__ = ("_batches", "_drops_parts", "profile")

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._drops_parts = not profile.takes_parts_of_nodes
        self._batches: dict[str, _Batch | None] = {}

    def add(self, record: LineRecord, kind: str, text: str) -> bytes | None:
        """Add a line. Return the body of a message if it is full before."""
        full = None
        try:
            batch = self._batches[kind]
        except KeyError:
            batch = _Batch(self.profile.line_end(kind)) if self.profile.takes_lines(kind) else None
            self._batches[kind] = batch
        if batch is None or (self._drops_parts and record.is_part_of_node()):
            return None
        size = (len(text) if text.isascii() else len(text.encode())) + 1
        if batch.size + size > _LARGEST and batch.lines:
            full = batch.body()
            batch = self._batches[kind] = _Batch(batch.end)
        batch.lines.append(text)
        batch.size += size
        return full

    def bodies(self) -> Iterator[tuple[str, bytes]]:
        """Yield kind and body of the messages that are not full."""
        for kind, batch in self._batches.items():
            if batch is not None and batch.lines:
                yield kind, batch.body()


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
    """Lines that become one message. end: of each line. size: bytes, including line breaks."""

    __slots__ = ("end", "lines", "size")

    def __init__(self, end: str) -> None:
        self.end = end
        self.lines: list[str] = []
        self.size = 0

    def body(self) -> bytes:
        return (self.end.join(self.lines) + self.end).encode()


def _report(record: Record, error: EncodingError, complain: _Complain | None) -> None:
    """Call `complain` with a record's name and error. Raise EncodingError without `complain`."""
    if complain is None:
        raise EncodingError(f"{record.label()}: {error}") from error
    complain(record.label(), error)
