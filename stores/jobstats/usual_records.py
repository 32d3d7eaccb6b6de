"""Arrays of records of the usual form, which are validated while they are decoded.

All other arrays are validated record by record, with the same result.
"""

from __future__ import annotations

from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ccagent.stores.jobstats.operations import COLUMNS, KINDS, MDT, OST, PARTS, RESETS
from ccagent.stores.jobstats.records import (
    LARGEST_ID,
    LATEST,
    LONGEST_ENTRY,
    LONGEST_NAME,
    NUMBERS,
    UUID_FORM,
    CheckedRecords,
    JobstatsObservation,
    RecordCheck,
    check_records,
    decode_records,
)
from ccagent.stores.jobstats.refusals import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ccagent.stores.jobstats.operations import TargetKind
    from ccagent.stores.jobstats.refusals import SenderRights

_Name: Any = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
_Entry: Any = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ENTRY)]
_Count: Any = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
_Step: Any = Annotated[float, msgspec.Meta(ge=-LATEST, le=LATEST)]
# Here a float holds all microseconds.
_Moment: Any = Annotated[float, msgspec.Meta(ge=0, le=2**32)]
_Reset: Any = Literal[RESETS]
_Uuid: Any = Annotated[str, msgspec.Meta(pattern=f"^{UUID_FORM.pattern}$")]
_COUNTERS = tuple(dict.fromkeys((
    *OST, *MDT, "create", "destroy", "prealloc", "fallocate", "migrate", "fallocate_usecs",
    "parallel_rename_file", "parallel_rename_dir", "parallel_rename_file_usecs",
    "parallel_rename_dir_usecs", "create_usecs", "destroy_usecs", "prealloc_usecs",
    *(f"{name}_usecs" for name in (*OST, *MDT) if not name.endswith("_bytes")),
)))  # fmt: skip
_OTHERS = {kind: tuple(one for one in _COUNTERS if one not in COLUMNS[kind]) for kind in KINDS}
_FIRST_COUNTER = 10 + len(PARTS)


def _make_getter(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """Return a function that returns the counters of a record's fields. A slice costs least."""
    first, *more = (_FIRST_COUNTER + _COUNTERS.index(one) for one in names)
    if more == [*range(first + 1, first + len(names))]:
        return itemgetter(slice(first, first + len(names)))
    return itemgetter(first, *more)


_TAKE_COLUMNS, _TAKE_OTHERS = (
    {kind: _make_getter(names) for kind, names in each.items()} for each in (COLUMNS, _OTHERS)
)
_NO_OTHERS = {kind: (0,) * len(names) for kind, names in _OTHERS.items()}
_FIELDS: list[Any] = [
    ("target", _Name), ("entry_id", _Entry), ("timestamp", str), ("server", _Name, ""),
    ("snapshot_time", _Moment | None, None), ("start_time", _Moment | None, None),
    ("reset", _Reset | None, None), ("clock_step", _Step | None, None),
    ("malformed", bool, False), ("time_series_id", _Uuid | None, None),
    ("job_id", _Count | _Entry | None, None),
    *((name, _Count | None if name in NUMBERS else _Entry | None, None) for name in PARTS[1:]),
    *((name, _Count, 0) for name in _COUNTERS),
]  # fmt: skip
_UsualRecord = msgspec.defstruct("_UsualRecord", _FIELDS, forbid_unknown_fields=True, gc=False)
"""A valid record with the operations of Lustre's own servers."""
_decode_usual = msgspec.json.Decoder(list[_UsualRecord]).decode  # type: ignore[valid-type]


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
