"""Records of an array, checked: what can never be stored is found before the database is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from ccagent.errors import CcagentError
from ccagent.log import printable
from ccagent.stores.jobstats.operations import (
    COLUMNS,
    FIELDS,
    LARGEST_COUNTER,
    PARTS,
    RESETS,
    kind_of_target,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.stores.jobstats.operations import TargetKind

JsonValue = int | float | str | bool | None
JobstatsRecord = dict[str, JsonValue]

_LONGEST_NAME = 255
_LONGEST_ENTRY = 1024
_MOST_OTHERS = 200
_LATEST = 253_402_300_799  # of the year 9999
_MOST_REASONS = 20
_LARGEST_ID = 2**63 - 1
_RESETS = frozenset(RESETS)
_NO_DELTA = UTC.utcoffset(None)

_decode_array = msgspec.json.Decoder(list[JobstatsRecord]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_record = msgspec.json.Decoder(JobstatsRecord).decode


class RefusedRecord(NamedTuple):
    """A record that can never be stored. number: from 1."""

    number: int
    reason: str


class RefusedArrayError(CcagentError):
    """An array that can never be stored: no part of it is.

    records: those at fault, the first of them; none if the whole is no array.
    is_forbidden: this sender may not send it, another one might.
    """

    def __init__(
        self, reason: str, records: Iterable[RefusedRecord] = (), *, is_forbidden: bool = False
    ) -> None:
        self.records = list(records)[:_MOST_REASONS]
        first = f": record {self.records[0].number}: {self.records[0].reason}" if records else ""
        super().__init__(reason + first)
        self.reason = reason
        self.is_forbidden = is_forbidden


class RecordError(CcagentError):
    """A record that can never be stored: the message is the reason."""


class SenderError(RecordError):
    """A record of another server than the sender's."""


class JobstatsObservation(NamedTuple):
    """A checked record.

    counters: all of them, by name. supplied: the id of the series, if the sender made one.
    """

    number: int
    target: str
    entry_id: str
    server: str
    timestamp: datetime
    snapshot_time: datetime | None
    start_time: datetime | None
    reset: str | None
    counters: dict[str, int]
    supplied: UUID | None
    parts: dict[str, Any]
    is_malformed: bool

    @property
    def kind(self) -> TargetKind:
        """The kind of the target, as far as this record shows it."""
        return kind_of_target(self.target, self.counters)


def decode_records(body: bytes, most: int) -> list[JobstatsRecord]:
    """Return the objects of a JSON array. Raises RefusedArrayError."""
    try:
        records = _decode_array(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _explain(body) from None
    if len(records) > most:
        raise RefusedArrayError(f"{len(records)} records, more than {most} (limits.records)")
    return records


def check_records(
    records: list[JobstatsRecord], sender: str | None, latest: datetime
) -> list[JobstatsObservation]:
    """Return checked records. Raises RefusedArrayError with those that can never be stored.

    sender: the only server whose records are taken; None: any. latest: a time that no observation
    can have.
    """
    found: list[JobstatsObservation] = []
    refused: list[RefusedRecord] = []
    is_forbidden = False
    for number, record in enumerate(records, 1):
        try:
            found.append(_check_record(number, record, sender, latest))
        except RecordError as error:
            is_forbidden |= isinstance(error, SenderError)
            refused.append(RefusedRecord(number, str(error)))
    if refused:
        reason = f"{len(refused)} of {len(records)} records can't be stored, so none is"
        raise RefusedArrayError(reason, refused, is_forbidden=is_forbidden)
    return found


def split_counters(
    counters: dict[str, int], kind: TargetKind
) -> tuple[list[int], dict[str, int] | None]:
    """Return the values of a table's columns, and the other counters."""
    names = COLUMNS[kind]
    values = [counters.get(name, 0) for name in names]
    others = {name: value for name, value in counters.items() if name not in names}
    return values, others or None


def _check_record(
    number: int, record: JobstatsRecord, sender: str | None, latest: datetime
) -> JobstatsObservation:
    target = _text(record, "target", _LONGEST_NAME)
    entry_id = _text(record, "entry_id", _LONGEST_ENTRY)
    server = _text(record, "server", _LONGEST_NAME) if "server" in record else sender or ""
    if sender is not None and server != sender:
        raise SenderError(f"server: {printable(server)!r} is not {sender!r}, whose token this is")
    timestamp = _timestamp(record.get("timestamp"))
    if timestamp > latest:
        raise RecordError(f"timestamp: {record['timestamp']} is in the future; check the clocks")
    reset = record.get("reset")
    if reset is not None and reset not in _RESETS:
        raise RecordError(f"reset: none of {', '.join(RESETS)}")
    snapshot, start = record.get("snapshot_time"), record.get("start_time")
    malformed = record.get("malformed", False)
    if not isinstance(malformed, bool):
        raise RecordError("malformed: not a boolean")
    return JobstatsObservation(
        number,
        target,
        entry_id,
        server,
        timestamp,
        None if snapshot is None else _seconds(snapshot, "snapshot_time"),
        None if start is None else _seconds(start, "start_time"),
        None if reset is None else str(reset),
        _counters(record),
        _uuid(record["time_series_id"]) if "time_series_id" in record else None,
        _parts(record),
        malformed,
    )


def _counters(record: JobstatsRecord) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in record.items():
        if name in FIELDS:
            continue
        if type(value) is not int or not 0 <= value <= LARGEST_COUNTER:
            raise RecordError(f"{printable(name[:64])}: not an integer from 0 to 2^64-1")
        found[name] = value
    if len(found) > _MOST_OTHERS:
        raise RecordError(f"{len(found)} counters, more than {_MOST_OTHERS}")
    for name in found:
        if not (name.isascii() and name.isidentifier() and len(name) <= 64):
            raise RecordError(f"{printable(name[:64])!r}: not the name of an operation")
    return found


def _parts(record: JobstatsRecord) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in PARTS:
        value = record.get(name)
        if value is None:
            continue
        if name in {"user_id", "group_id", "process_id"}:
            if type(value) is not int or not 0 <= value <= _LARGEST_ID:
                raise RecordError(f"{name}: not an integer from 0 to 2^63-1")
        elif name != "job_id" or type(value) is not int:
            value = _text(record, name, _LONGEST_ENTRY)
        elif not 0 <= value <= _LARGEST_ID:
            raise RecordError("job_id: a number is from 0 to 2^63-1")
        found[name] = value
    return found


def _text(record: JobstatsRecord, name: str, longest: int) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{name}: {'missing' if name not in record else 'not a text'}")
    if not value or len(value) > longest:
        raise RecordError(f"{name}: {'empty' if not value else f'longer than {longest}'}")
    if not value.isprintable():
        raise RecordError(f"{name}: has an unprintable character")
    return value


def _timestamp(value: JsonValue) -> datetime:
    if not isinstance(value, str):
        raise RecordError("timestamp: missing, or not a text")
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise RecordError(f"timestamp: {printable(value[:40])!r} has no offset from UTC")
        return moment.astimezone(UTC) if moment.utcoffset() != _NO_DELTA else moment
    except (ValueError, OverflowError):
        raise RecordError(f"timestamp: {printable(value[:40])!r} is no time") from None


def _seconds(value: JsonValue, name: str) -> datetime:
    if type(value) not in {int, float} or not 0 <= value <= _LATEST:  # type: ignore[operator]
        raise RecordError(f"{name}: not a number of seconds since 1970")
    return datetime.fromtimestamp(value, UTC)  # type: ignore[arg-type]


def _uuid(value: JsonValue) -> UUID:
    if not isinstance(value, str):
        raise RecordError("time_series_id: not a text")
    try:
        found = UUID(value)
    except ValueError:
        raise RecordError("time_series_id: not a UUID") from None
    if str(found) != value:
        raise RecordError("time_series_id: not a UUID in its usual form")
    return found


def _explain(body: bytes) -> RefusedArrayError:
    """Return why a body is no array of flat objects, with the numbers of the records."""
    try:
        items = _decode_items(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return RefusedArrayError(f"not a JSON array: {printable(str(error)[:200])}")
    refused: list[RefusedRecord] = []
    for number, item in enumerate(items, 1):
        try:
            _decode_record(item)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refused.append(RefusedRecord(number, printable(str(error)[:200])))
    return RefusedArrayError("not an array of flat objects", refused)
