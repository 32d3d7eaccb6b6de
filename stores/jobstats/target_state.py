"""The targets' own state, from the points of the agent's `statistics`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.types.json import Jsonb

from ccagent.records.line_protocol import decode_lines
from ccagent.stores.jobstats.admission import (
    RecordError,
    RefusedArrayError,
    RefusedRecord,
    SenderError,
)
from ccagent.stores.jobstats.schema import kind_by_name

if TYPE_CHECKING:
    from psycopg import Connection

    from ccagent.records.line_protocol import Line, LineError
    from ccagent.stores.jobstats.admission import SenderRights

_NAME = re.compile(r"lustre_(?:(?:ost|mdt)_|(?=recovery_))([a-z0-9_]{1,100})")
_LONGEST = 255
_STORE = """
INSERT INTO target_state AS s (target, server, timestamp, numbers)
SELECT * FROM unnest(%s::text[], %s::text[], %s::timestamptz[], %s::jsonb[])
ON CONFLICT (target, timestamp, server) DO UPDATE SET numbers = s.numbers || excluded.numbers
"""
_FIND = """
SELECT DISTINCT ON (target) target, latest, first
FROM (
    SELECT
        target, max(timestamp) AS last,
        (array_agg(numbers ORDER BY timestamp DESC))[1:2] AS latest,
        (array_agg(numbers ORDER BY timestamp))[1] AS first
    FROM target_state
    WHERE timestamp > %(at)s::timestamptz - %(window)s::interval - INTERVAL '1 hour'
        AND timestamp <= %(at)s
    GROUP BY target, server
) s
WHERE last > %(at)s::timestamptz - %(window)s::interval
ORDER BY target, last DESC
"""

StateKey = tuple[str, str, datetime]
"""Target, server and time of a row."""


class DecodedStates(NamedTuple):
    """The numbers of targets by row, and how many lines are not of targets or refused."""

    rows: dict[StateKey, dict[str, float]]
    ignored: int
    refused: list[RefusedRecord]


class TargetState(NamedTuple):
    """The state of a target.

    free: share of its space that users may still write, from 0 to 1. clients: connected clients and
    servers. latency: mean time of its operations in us, by the target itself. slower: the latency
    as a multiple of the hour before. Each is None if not known.
    """

    free: float | None = None
    clients: int | None = None
    locks: int | None = None
    latency: float | None = None
    slower: float | None = None


def decode_states(
    body: bytes, rights: SenderRights, latest: datetime, now: datetime
) -> DecodedStates:
    """Return the numbers of targets in lines of points. Lines of anything else are ignored.

    rights: of the sender. latest: maximum time. now: the time of lines without one. Raise
    RefusedArrayError if no line is valid.
    """
    rows: dict[StateKey, dict[str, float]] = {}
    refused: list[RefusedRecord] = []
    count = ignored = 0
    is_forbidden = False

    def complain(error: LineError) -> None:
        nonlocal count
        count += 1
        refused.append(RefusedRecord(count, str(error)))

    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise RefusedArrayError("not line protocol: not UTF-8") from None
    for line in decode_lines(text, complain=complain):
        count += 1
        name = _find_name(line)
        if name is None:
            ignored += 1
            continue
        try:
            key = _find_key(line, rights, latest, now)
        except RecordError as error:
            is_forbidden |= isinstance(error, SenderError)
            refused.append(RefusedRecord(count, str(error)))
        else:
            rows.setdefault(key, {})[name] = float(line.value)
    if refused and len(refused) == count:
        reason = f"none of {count} lines can be stored"
        raise RefusedArrayError(reason, refused, is_forbidden=is_forbidden)
    return DecodedStates(rows, ignored, refused)


def store_states(connection: Connection[Any], rows: dict[StateKey, dict[str, float]]) -> None:
    """Insert rows, or add their numbers to those of the same target, server and time."""
    if not rows:
        return
    # Sort the rows to avoid deadlocks between processes.
    found = [(*key, Jsonb(numbers)) for key, numbers in sorted(rows.items())]
    connection.execute(_STORE, [list(column) for column in zip(*found, strict=True)])


def find_states(
    connection: Connection[Any], at: datetime, window: timedelta
) -> dict[str, TargetState]:
    """Return the last state of each target before a time, not older than a window."""
    values = {"at": at, "window": window}
    return {
        target: _describe(latest, first)
        for target, latest, first in connection.execute(_FIND, values)
    }


def _describe(latest: list[dict[str, float]], first: dict[str, float]) -> TargetState:
    """Return the state by the two latest rows, last one first, and the first of an hour."""
    last, before = latest[0], latest[-1]
    size, clients, locks = (last.get(name) for name in ("capacity_total", "exports", "lock_count"))
    latency, usual = _mean_time(before, last), _mean_time(first, before)
    return TargetState(
        last.get("capacity_available", 0.0) / size if size else None,
        None if clients is None else int(clients),
        None if locks is None else int(locks),
        latency,
        latency / usual if latency and usual else None,
    )


def _mean_time(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Return the mean time in us of the operations between two rows; None if there were none."""
    spent = count = 0.0
    for name, value in after.items():
        operation = name.removesuffix("_usecs")
        if operation == name or operation not in after:
            continue
        samples = after[operation] - before.get(operation, after[operation])
        duration = value - before.get(name, value)
        # The counters are cleared by administrators, and by a restart of the target.
        if samples > 0 and duration >= 0:
            spent += duration
            count += samples
    return spent / count if count else None


def _find_name(line: Line) -> str | None:
    """Return the name of a number of a target; None for anything else."""
    found = _NAME.fullmatch(line.measurement)
    is_number = line.field == "value" and type(line.value) in {int, float}
    if found is None or not is_number or line.tags.get("stype") != "filesystem":
        return None
    return found[1] if kind_by_name(line.tags.get("stype-id", "")) else None


def _find_key(line: Line, rights: SenderRights, latest: datetime, now: datetime) -> StateKey:
    """Return the row of a line. Raise RecordError, SenderError."""
    target, server = line.tags["stype-id"], line.tags.get("hostname", "")
    if max(len(target), len(server)) > _LONGEST:
        raise RecordError(f"a tag is longer than {_LONGEST} characters")
    rights.require_server(server, "hostname")
    rights.require_target(target)
    try:
        moment = now if line.time is None else datetime.fromtimestamp(line.time / 1e9, UTC)
    except (OverflowError, ValueError):
        raise RecordError("the time is no time") from None
    if moment > latest:
        raise RecordError("the time is in the future; check the clocks")
    return target, server, moment
