"""Parameters of queries, with the same parser for HTTP and the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ccagent.config.duration import Duration
from ccagent.errors import CcagentError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

TopGroup = Literal[
    "job", "user", "node", "target", "executable", "cluster", "account", "project", "partition"
]  # fmt: skip
GROUPS: tuple[TopGroup, ...] = get_args(TopGroup)

_GROUP_NAMES: dict[str, TopGroup] = {name: name for name in GROUPS}
_LONGEST = 1024
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_MOST_TIME = timedelta(days=365_250)
"""Ranges of times and durations whose sums and differences Python and PostgreSQL know."""

_MOST_STEPS = 10_000
_MOST_COLUMNS = 40
_COLUMNS = ("read_bytes", "write_bytes")
_RANGE = frozenset({"last", "from", "to"})
_TOP = _RANGE | {"by", "sort", "columns", "limit", *GROUPS}


class QueryError(CcagentError):
    """Invalid parameters. The message is sent to the client."""


class TimeRange(NamedTuple):
    """A time range: after `begins`, up to `ends`."""

    begins: datetime
    ends: datetime


class TopRequest(NamedTuple):
    """A request for the largest groups. columns: the operations of the result, including `sort`."""

    range: TimeRange
    by: TopGroup
    sort: str
    columns: tuple[str, ...]
    limit: int
    filters: dict[str, str]


class JobRequest(NamedTuple):
    """A request for one job. step: None for the intervals between observations."""

    range: TimeRange
    job: str
    step: timedelta | None


def check_names(values: Mapping[str, str], known: AbstractSet[str]) -> None:
    """Raise QueryError for an unknown parameter; ignoring it would change the query."""
    for name in sorted(values.keys() - known):
        raise QueryError(f"{printable(name[:40])!r} is none of {', '.join(sorted(known))}")


def parse_range(values: Mapping[str, str], now: datetime) -> TimeRange:
    """Parse `last`, or `from` and `to`. Raise QueryError."""
    last, begin, end = values.get("last"), values.get("from"), values.get("to")
    if last and begin:
        raise QueryError("last and from can't be combined")
    ends = parse_moment("to", end) if end else now
    try:
        begins = (
            parse_moment("from", begin)
            if begin
            else ends - timedelta(seconds=Duration(last or "1h").seconds)
        )
    except (ValueError, OverflowError) as error:
        raise QueryError(f"last: {error}") from None
    if begins >= ends:
        raise QueryError("from: expected a time before to")
    return TimeRange(begins, ends)


def parse_top(values: Mapping[str, str], now: datetime) -> TopRequest:
    """Parse the parameters of `top`. Raise QueryError."""
    check_names(values, _TOP)
    by = values.get("by", "job")
    group = _GROUP_NAMES.get(by)
    if group is None:
        raise QueryError(f"by: {printable(by[:40])!r} is none of {', '.join(GROUPS)}")
    sort = _operation(values.get("sort", "read_bytes"))
    columns = values.get("columns")
    names = [_operation(name) for name in columns.split(",")] if columns else [*_COLUMNS]
    shown = tuple(dict.fromkeys(names if sort in names else [sort, *names]))
    if len(shown) > _MOST_COLUMNS:
        raise QueryError(f"columns: at most {_MOST_COLUMNS} are permitted")
    return TopRequest(
        parse_range(values, now),
        group,
        sort,
        shown,
        parse_limit(values, 100_000),
        parse_filters(values),
    )


def parse_job(job: str, values: Mapping[str, str], now: datetime) -> JobRequest:
    """Parse the parameters of `job`. Raise QueryError."""
    if not job or len(job) > _LONGEST or not job.isprintable():
        raise QueryError("job: not a job id")
    check_names(values, _RANGE | {"step"})
    found = parse_range(values, now)
    step = parse_duration("step", values["step"]) if values.get("step") else None
    if step is not None and (found.ends - found.begins) / step > _MOST_STEPS:
        raise QueryError(f"step: too short: at most {_MOST_STEPS} steps are permitted")
    return JobRequest(found, job, step)


def _operation(text: str) -> str:
    name = text.strip()
    if not (name.isascii() and name.isidentifier() and len(name) <= 64):
        raise QueryError(f"{printable(name[:64])!r} is not the name of an operation")
    return name


def parse_filters(values: Mapping[str, str]) -> dict[str, str]:
    """Return the names to filter by. Raise QueryError."""
    filters: dict[str, str] = {name: values[name] for name in GROUPS if values.get(name)}
    for name, value in filters.items():
        if len(value) > _LONGEST or not value.isprintable():
            raise QueryError(f"{name}: {printable(value[:40])!r} is not a name")
    return filters


def parse_duration(key: str, text: str) -> timedelta:
    """Parse a duration above 0, up to 1000 years. Raise QueryError."""
    try:
        found = timedelta(seconds=Duration(text).seconds)
    except (ValueError, OverflowError) as error:
        raise QueryError(f"{key}: {error}") from None
    if not timedelta() < found <= _MOST_TIME:
        raise QueryError(f"{key}: expected more than 0 s, and at most 1000 years")
    return found


def parse_moment(key: str, text: str) -> datetime:
    """Parse a time from 1970 to 8999, UTC without an offset. Raise QueryError."""
    try:
        found = datetime.fromisoformat(text.strip())
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        found = _LAST
    if not _FIRST <= found < _LAST:
        raise QueryError(
            f"{key}: {printable(text[:40])!r} is not a time such as 2026-11-22T10:00 (UTC)"
        )
    return found


def parse_limit(values: Mapping[str, str], most: int) -> int:
    """Parse `limit`, a number from 1 to `most`; 20 without it. Raise QueryError."""
    text = values.get("limit") or "20"
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
        raise QueryError(f"limit: expected a number from 1 to {most}")
    return int(text)
