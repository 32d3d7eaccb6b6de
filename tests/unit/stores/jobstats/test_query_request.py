"""Parameters of queries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ccagent.stores.jobstats.export import parse_export
from ccagent.stores.jobstats.live import parse_live
from ccagent.stores.jobstats.query_request import QueryError, parse_job, parse_range, parse_top

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_an_hour_is_asked_for_without_a_time() -> None:
    assert parse_range({}, NOW) == (NOW - HOUR, NOW)
    assert parse_range({"last": "2d"}, NOW) == (NOW - 48 * HOUR, NOW)
    assert parse_range({"from": "2026-11-22T10:00", "to": "2026-11-22T12:00+01:00"}, NOW) == (
        NOW - 2 * HOUR,
        NOW - HOUR,
    )


def test_the_sorted_operation_is_shown() -> None:
    found = parse_top({"sort": "open", "by": "user", "node": "c1"}, NOW)
    assert (found.sort, found.columns, found.limit) == (
        "open", ("open", "read_bytes", "write_bytes"), 20,
    )  # fmt: skip
    assert (found.by, found.filters) == ("user", {"node": "c1"})
    assert parse_top({"columns": "write,open", "sort": "open"}, NOW).columns == ("write", "open")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"last": "1 year"}, "last: '1 year' is not a duration"),
        ({"last": "1h", "from": "2026-11-22"}, "last and from can't be combined"),
        ({"from": "2026-11-23"}, "from: expected a time before to"),
        ({"from": "noon"}, "from: 'noon' is not a time"),
        ({"to": "9999-12-31T23:59"}, "to: '9999-12-31T23:59' is not a time"),
        ({"from": "0001-01-01"}, "from: '0001-01-01' is not a time"),
        ({"last": "999999999d"}, "last: "),
        ({"by": "group"}, "by: 'group' is none of job, user"),
        ({"sort": "a; b"}, "'a; b' is not the name of an operation"),
        ({"limit": "0"}, "limit: expected a number from 1 to 100000"),
        ({"limit": "1e3"}, "limit: expected a number"),
        ({"user": "a\0"}, "is not a name"),
        ({"users": "a"}, "'users' is none of account, by, cluster"),
        ({"columns": ",".join(f"x{n}" for n in range(41))}, "columns: at most 40"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, str], reason: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_top(values, NOW)
    assert reason in str(caught.value)


@pytest.mark.parametrize("step", ["1s", "0s", "soon", "400000d"])
def test_steps_are_bounded(step: str) -> None:
    with pytest.raises(QueryError, match="step"):
        parse_job("5", {"step": step, "last": "1d"}, NOW)
    assert parse_job("5", {"step": "5m"}, NOW).step == timedelta(minutes=5)


@pytest.mark.parametrize("window", ["0s", "400000d", "99999999d"])
def test_a_window_has_both_ends_in_the_calendar(window: str) -> None:
    with pytest.raises(QueryError, match="window"):
        parse_live({"window": window}, NOW)


def test_parameters_of_an_export() -> None:
    assert parse_export({"anonymous": "true"}, NOW).is_anonymous
    assert not parse_export({}, NOW).is_anonymous
    for values in ({"anonymous": "yes"}, {"anonymus": "1"}):
        with pytest.raises(QueryError, match="anonym"):
            parse_export(values, NOW)
