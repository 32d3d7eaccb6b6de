"""Validation of an array's records before they are sent to the database.

Records of the usual form are validated while they are decoded. All other arrays are validated
record by record, with the same result.
"""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec

from ccagent.log import printable
from ccagent.stores.jobstats.admission import (
    RecordError,
    RefusedArrayError,
    RefusedRecord,
    SenderError,
)
from ccagent.stores.jobstats.schema import (
    COLUMNS,
    FIELDS,
    KINDS,
    LARGEST_COUNTER,
    MDT,
    OST,
    PARTS,
    RESETS,
    kind_by_name,
    kind_by_operations,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.stores.jobstats.admission import SenderRights
    from ccagent.stores.jobstats.schema import TargetKind

JsonValue = int | float | str | bool | None
JobstatsRecord = dict[str, JsonValue]

_LONGEST_NAME = 255
_LONGEST_ENTRY = 1024
"""Maximum bytes. PostgreSQL's index rows have at most 2704 bytes."""
_MOST_OTHERS = 200
_LATEST = 253_402_300_799  # the end of the year 9999
_LARGEST_ID = 2**63 - 1
_RESETS = frozenset(RESETS)
_PARTS = frozenset(PARTS)
_NUMBERS = frozenset({"job_id", "user_id", "group_id", "process_id"})
_UUID_FORM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DECIMAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_MOST_DIGITS = len(str(LARGEST_COUNTER))
_PLACE = re.compile(r"\$\[([0-9]{1,9})\]")
_MOST_EXPLAINED = 400_000
"""Maximum commas of a body that is searched for all bad records, not only the first one."""

_NO_DELTA = UTC.utcoffset(None)

_decode_array = msgspec.json.Decoder(list[JobstatsRecord]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_record = msgspec.json.Decoder(JobstatsRecord).decode

_Name: Any = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)]
_Entry: Any = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_ENTRY)]
_Count: Any = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_ID)]
_Step: Any = Annotated[float, msgspec.Meta(ge=-_LATEST, le=_LATEST)]
# Here a float holds all microseconds.
_Moment: Any = Annotated[float, msgspec.Meta(ge=0, le=2**32)]
_Reset: Any = Literal[RESETS]
_Uuid: Any = Annotated[str, msgspec.Meta(pattern=f"^{_UUID_FORM.pattern}$")]
_COUNTERS = tuple(dict.fromkeys((
    *OST, *MDT, "create", "destroy", "prealloc", "fallocate", "migrate", "fallocate_usecs",
    "parallel_rename_file", "parallel_rename_dir", "parallel_rename_file_usecs",
    "parallel_rename_dir_usecs", "create_usecs", "destroy_usecs", "prealloc_usecs",
    *(f"{name}_usecs" for name in (*OST, *MDT) if not name.endswith("_bytes")),
)))  # fmt: skip
_OTHERS = {kind: tuple(one for one in _COUNTERS if one not in COLUMNS[kind]) for kind in KINDS}
_FIRST_COUNTER = 10 + len(PARTS)
_NO_OTHERS = {kind: (0,) * len(names) for kind, names in _OTHERS.items()}
_FIELDS: list[Any] = [
    ("target", _Name), ("entry_id", _Entry), ("timestamp", str), ("server", _Name, ""),
    ("snapshot_time", _Moment | None, None), ("start_time", _Moment | None, None),
    ("reset", _Reset | None, None), ("clock_step", _Step | None, None),
    ("malformed", bool, False), ("time_series_id", _Uuid | None, None),
    ("job_id", _Count | _Entry | None, None),
    *((name, _Count | None if name in _NUMBERS else _Entry | None, None) for name in PARTS[1:]),
    *((name, _Count, 0) for name in _COUNTERS),
]  # fmt: skip
_UsualRecord = msgspec.defstruct("_UsualRecord", _FIELDS, forbid_unknown_fields=True, gc=False)
"""A valid record with the operations of Lustre's own servers."""
_decode_usual: Callable[[bytes], list[Any]] = msgspec.json.Decoder(
    list[_UsualRecord]  # type: ignore[valid-type]
).decode


class JobstatsObservation(NamedTuple):
    """A validated record.

    snapshot_time, start_time: microseconds since 1970. kind: the target's kind, derived from this
    record. values: counters of the kind's columns. others: other counters. supplied: the series'
    id, if the sender sends one. parts: in the order of PARTS, or None.
    """

    number: int
    target: str
    entry_id: str
    server: str
    timestamp: datetime
    snapshot_time: int | None
    start_time: int | None
    reset: str | None
    clock_step: float | None
    kind: TargetKind
    values: tuple[int, ...]
    others: dict[str, int] | None
    supplied: str | None
    parts: tuple[Any, ...]
    is_malformed: bool


class CheckedRecords(NamedTuple):
    """Valid and refused records. is_forbidden: some need another token."""

    observations: list[JobstatsObservation]
    refused: list[RefusedRecord]
    is_forbidden: bool


def decode_records(
    body: bytes, most: int
) -> tuple[list[tuple[int, JobstatsRecord]], list[RefusedRecord]]:
    """Return the objects of a JSON array with their numbers, and what is not a flat object.

    Raise RefusedArrayError if the body is no array.
    """
    # Decoded tiny objects need thirty times the memory of their text, so count them before. Names
    # may also contain braces.
    if body.count(b"{") > most:
        _check_count(body, most)
    try:
        return list(enumerate(_decode_array(body), 1)), []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _decode_each(body, str(error))


def check_records(
    records: Iterable[tuple[int, JobstatsRecord]], check: RecordCheck
) -> CheckedRecords:
    """Return validated records, and the invalid ones."""
    found: list[JobstatsObservation] = []
    refused: list[RefusedRecord] = []
    is_forbidden = False
    for number, record in records:
        try:
            found.append(check.observe(number, record))
        except RecordError as error:
            is_forbidden |= isinstance(error, SenderError)
            refused.append(RefusedRecord(number, str(error)))
    return CheckedRecords(found, refused, is_forbidden)


def move_counters(
    one: JobstatsObservation, kind: TargetKind
) -> tuple[tuple[int, ...], dict[str, int] | None]:
    """Return values and others of a record for the table of another kind."""
    counters = dict(zip(COLUMNS[one.kind], one.values, strict=True)) | (one.others or {})
    values = tuple(counters.pop(name, 0) for name in COLUMNS[kind])
    return values, {name: value for name, value in counters.items() if value} or None


class RecordCheck:
    """Validates the records of one array. Repeated values are validated once.

    rights: of the sender. latest: maximum time of an observation.
    """

    def __init__(self, rights: SenderRights, latest: datetime) -> None:
        self._rights = rights
        self._latest = latest
        self._times: dict[str, datetime] = {}
        self._kinds: dict[str, TargetKind | None] = {}
        self._servers: set[str] = set()

    def observe(self, number: int, record: JobstatsRecord) -> JobstatsObservation:
        """Return a validated record. Raise RecordError."""
        target = cast("str", record.get("target"))
        kind = self.find_kind(target, record) or kind_by_operations(record)
        entry_id = _text(record, "entry_id", _LONGEST_ENTRY)
        timestamp = self.find_time(record.get("timestamp"))
        reset = record.get("reset")
        if reset is not None and reset not in _RESETS:
            raise RecordError(f"reset: expected one of {', '.join(RESETS)}")
        snapshot, start = record.get("snapshot_time"), record.get("start_time")
        malformed = record.get("malformed", False)
        if malformed is not False and malformed is not True:
            raise RecordError("malformed: not a boolean")
        values, others = _counters(record, kind)
        return JobstatsObservation(
            number,
            target,
            entry_id,
            self.find_server(record),
            timestamp,
            None if snapshot is None else _seconds(snapshot, "snapshot_time"),
            None if start is None else _seconds(start, "start_time"),
            None if reset is None else str(reset),
            _clock_step(record["clock_step"]) if "clock_step" in record else None,
            kind,
            values,
            others,
            _uuid(record["time_series_id"]) if "time_series_id" in record else None,
            _parts(record),
            malformed,
        )

    def find_kind(self, target: JsonValue, record: JobstatsRecord) -> TargetKind | None:
        """Return the kind of a record's target by its name. Raise RecordError."""
        if target not in self._kinds:
            target = _text(record, "target", _LONGEST_NAME)
            self._rights.require_target(target)
            self._kinds[target] = kind_by_name(target)
        return self._kinds[target]

    def find_server(self, record: JobstatsRecord) -> str:
        """Return the server of a record. Raise SenderError if the token is for another server."""
        server = record.get("server")
        if server in self._servers:
            return server
        if "server" not in record:
            return self._rights.server or ""
        name = _text(record, "server", _LONGEST_NAME)
        self._rights.require_server(name, "server")
        self._servers.add(name)
        return name

    def find_time(self, text: JsonValue) -> datetime:
        """Return the time of a text. Raise RecordError."""
        found = self._times.get(text) if type(text) is str else None
        if found is None:
            found = _timestamp(text)
            if found > self._latest:
                raise RecordError(f"timestamp: {text} is in the future; check the clocks")
            self._times[str(text)] = found
        return found


def _counters(
    record: JobstatsRecord, kind: TargetKind
) -> tuple[tuple[int, ...], dict[str, int] | None]:
    """Return the values of the columns, and the other counters. Raise RecordError."""
    counters: dict[str, int] = {}
    for name, value in record.items():
        if name in FIELDS:
            continue
        count = int(value) if type(value) is str and _is_number(value) else value
        if type(count) is not int or not 0 <= count <= LARGEST_COUNTER:
            raise RecordError(f"{printable(name[:64])}: not an integer from 0 to 2^64-1")
        counters[name] = count
    values = tuple(counters.pop(name, 0) for name in COLUMNS[kind])
    if len(counters) > _MOST_OTHERS:
        raise RecordError(f"{len(counters)} counters without a column, more than {_MOST_OTHERS}")
    for name in counters:
        if not (name.isascii() and name.isidentifier() and len(name) <= 64):
            raise RecordError(f"{printable(name[:64])!r}: not the name of an operation")
    return values, {name: count for name, count in counters.items() if count} or None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _parts(record: JobstatsRecord) -> tuple[Any, ...]:
    found: dict[str, Any] = {}
    for name in record.keys() & _PARTS:
        value = record[name]
        if value is None:
            continue
        if name in _NUMBERS and name != "job_id" and type(value) is str and _is_number(value):
            value = int(value)
        if type(value) is int and name in _NUMBERS:
            if not 0 <= value <= _LARGEST_ID:
                what = "expected an integer" if name == "job_id" else "not an integer"
                raise RecordError(f"{name}: {what} from 0 to 2^63-1")
        elif name in _NUMBERS and name != "job_id":
            raise RecordError(f"{name}: not an integer from 0 to 2^63-1")
        else:
            value = _text(record, name, _LONGEST_ENTRY)
        found[name] = value
    return tuple(map(found.get, PARTS))


def _text(record: JobstatsRecord, name: str, longest: int) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{name}: {'missing' if name not in record else 'not a string'}")
    if not value:
        raise RecordError(f"{name}: empty")
    if not value.isprintable():
        raise RecordError(f"{name}: has an unprintable character")
    if len(value.encode()) > longest:
        raise RecordError(f"{name}: longer than {longest} bytes")
    return value


def _timestamp(value: JsonValue) -> datetime:
    if not isinstance(value, str):
        raise RecordError("timestamp: missing, or not a string")
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise RecordError(f"timestamp: {printable(value[:40])!r} has no offset from UTC")
        return moment.astimezone(UTC) if moment.utcoffset() != _NO_DELTA else moment
    except (ValueError, OverflowError):
        raise RecordError(f"timestamp: {printable(value[:40])!r} is not a time") from None


def _seconds(value: JsonValue, name: str) -> int:
    if type(value) is str and _DECIMAL.fullmatch(value):
        value = float(value) if "." in value else int(value)
    if type(value) is int:
        if 0 <= value <= _LATEST:
            return value * 1_000_000
    elif type(value) is float and 0 <= value <= _LATEST:
        return round(value * 1e6)
    raise RecordError(f"{name}: not a number of seconds since 1970")


def _clock_step(value: JsonValue) -> float | None:
    if value is None:
        return None
    if type(value) in {int, float} and abs(cast("float", value)) <= _LATEST:
        return float(cast("float", value)) or None
    raise RecordError("clock_step: not a number of seconds")


def _uuid(value: JsonValue) -> str:
    if type(value) is not str:
        raise RecordError("time_series_id: not a string")
    text = value.lower()
    if _UUID_FORM.fullmatch(text) is None:
        raise RecordError("time_series_id: not a UUID with hyphens")
    return text


class _CountedObject(msgspec.Struct):
    """Counts decoded objects without keeping them."""

    def __post_init__(self) -> None:
        _counted.left -= 1
        if _counted.left < 0:
            raise ValueError("too many")


_counted = threading.local()
_count_objects = msgspec.json.Decoder(list[_CountedObject]).decode


def _check_count(body: bytes, most: int) -> None:
    """Raise RefusedArrayError if an array has more than `most` objects, without building them."""
    _counted.left = most
    try:
        _count_objects(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if _counted.left < 0:
            raise RefusedArrayError(f"more than {most} records (limits.records)") from None


def _decode_each(
    body: bytes, problem: str
) -> tuple[list[tuple[int, JobstatsRecord]], list[RefusedRecord]]:
    """Decode the items of an array one by one. Raise RefusedArrayError if that isn't possible."""
    refused: list[RefusedRecord] = []
    if body.count(b",") > _MOST_EXPLAINED:
        found = _PLACE.search(problem)
        if found is None:
            raise RefusedArrayError(f"not a JSON array: {printable(problem[:200])}")
        refused.append(RefusedRecord(int(found[1]) + 1, printable(problem[:200])))
        raise RefusedArrayError("not an array of flat objects", refused)
    try:
        items = _decode_items(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedArrayError(f"not a JSON array: {printable(str(error)[:200])}") from None
    records: list[tuple[int, JobstatsRecord]] = []
    for number, item in enumerate(items, 1):
        try:
            records.append((number, _decode_record(item)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refused.append(RefusedRecord(number, printable(str(error)[:200])))
    return records, refused


def _make_getter(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """Return a function that returns the counters of a record's fields. A slice costs least."""
    first, *more = (_FIRST_COUNTER + _COUNTERS.index(one) for one in names)
    if more == [*range(first + 1, first + len(names))]:
        return itemgetter(slice(first, first + len(names)))
    return itemgetter(first, *more)


_TAKE_COLUMNS, _TAKE_OTHERS = (
    {kind: _make_getter(names) for kind, names in each.items()} for each in (COLUMNS, _OTHERS)
)


def check_array(body: bytes, most: int, rights: SenderRights, latest: datetime) -> CheckedRecords:
    """Return the valid and refused records of an array of up to `most`, as `check_records` does.

    rights, latest: as for RecordCheck. Raise RefusedArrayError if the body is no array.
    """
    check = RecordCheck(rights, latest)
    usual = _check_usual(body, most, check)
    if usual is not None:
        return CheckedRecords(usual, [], is_forbidden=False)
    records, refused = decode_records(body, most)
    checked = check_records(records, check)
    return checked._replace(refused=refused + checked.refused)


def _check_usual(body: bytes, most: int, check: RecordCheck) -> list[JobstatsObservation] | None:
    """Return the records of an array without peculiarities: the fastest way. None for others.

    Plain ASCII without escapes has no unprintable characters, and as many bytes as characters.
    """
    if body.count(b"{") > most or not body.isascii() or b"\\" in body or b"\x7f" in body:
        return None
    try:
        return _observe(check, _decode_usual(body))
    except (msgspec.MsgspecError, RecursionError, RecordError):
        return None


def _observe(check: RecordCheck, records: list[Any]) -> list[JobstatsObservation]:
    """Return records whose values are valid in themselves. Raise RecordError."""
    kinds: dict[str, TargetKind] = {
        each: _find_kind(check, each) for each in {one.target for one in records}
    }
    times = {each: check.find_time(each) for each in {one.timestamp for one in records}}
    servers = {
        each: check.find_server({"server": each} if each else {})
        for each in {one.server for one in records}
    }
    found: list[JobstatsObservation] = []
    for number, record in enumerate(records, 1):
        fields = msgspec.structs.astuple(record)
        target, entry_id, timestamp, server, snapshot, start, reset, step = fields[:8]
        kind = kinds[target]
        others = _TAKE_OTHERS[kind](fields)
        found.append(JobstatsObservation(
            number, target, entry_id, servers[server], times[timestamp],
            None if snapshot is None else round(snapshot * 1e6),
            None if start is None else round(start * 1e6),
            reset, step or None, kind, _TAKE_COLUMNS[kind](fields),
            dict(zip(compress(_OTHERS[kind], others), filter(None, others), strict=True))
            if others != _NO_OTHERS[kind] else None,
            fields[9], fields[10:_FIRST_COUNTER], fields[8],
        ))  # fmt: skip
    return found


def _find_kind(check: RecordCheck, target: str) -> TargetKind:
    """Return the kind of a target. Raise RecordError if its name shows none."""
    kind = check.find_kind(target, {"target": target})
    if kind is None:
        raise RecordError("target: its name shows no kind")
    return kind
