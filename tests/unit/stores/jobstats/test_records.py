"""Checks of records, before the database is asked."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.stores.jobstats.admission import RefusedArrayError, SenderRights
from ccagent.stores.jobstats.records import (
    RecordCheck,
    check_array,
    check_records,
    decode_records,
    move_counters,
)
from ccagent.stores.jobstats.schema import OST

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def record(**fields: Any) -> dict[str, Any]:
    return {
        "target": "fs-OST0001", "entry_id": "5:1001:c1", "server": "a",
        "timestamp": "2026-11-22T11:00:00.250+01:00", **fields,
    }  # fmt: skip


def check(*records: dict[str, Any], sender: str | None = None) -> Any:
    """Return the observations of an array, which are the same in any spelling of its JSON."""
    latest = NOW + timedelta(hours=1)
    body = json.dumps(records).encode()
    decoded, refused = decode_records(body, 100)
    slow = check_records(decoded, RecordCheck(SenderRights(sender), latest))
    found = check_array(body, 100, SenderRights(sender), latest)
    assert found == slow._replace(refused=refused + slow.refused)
    return found.observations


def test_a_record_becomes_an_observation() -> None:
    (found,) = check(
        record(snapshot_time=1_795_341_595.123456, reset="absent", read=7, user_id=3, job_id="0123")
    )
    assert found.timestamp == datetime(2026, 11, 22, 10, 0, 0, 250_000, tzinfo=UTC)
    assert found.snapshot_time == 1_795_341_595_123_456
    assert (found.reset, found.others, found.start_time) == ("absent", None, None)
    assert dict(zip(OST, found.values, strict=True))["read"] == 7
    assert found.parts == ("0123", 3, None, None, None, None, None)
    assert found.kind == "ost"


def test_a_record_without_a_server_is_the_senders() -> None:
    bare = record()
    del bare["server"]
    assert check(bare, sender="oss1")[0].server == "oss1"
    assert not check(bare)[0].server


def test_records_of_another_server_are_forbidden() -> None:
    decoded, _ = decode_records(json.dumps([record(), record(server="b")]).encode(), 100)
    found = check_records(decoded, RecordCheck(SenderRights("a"), NOW + timedelta(hours=1)))
    assert found.is_forbidden
    assert [one.number for one in found.observations] == [1]
    assert [one.number for one in found.refused] == [2]


def test_too_many_records_are_refused_before_they_are_checked() -> None:
    with pytest.raises(RefusedArrayError, match="more than 100 records"):
        decode_records(b"[" + b",".join([b"{}"] * 101) + b"]", 100)


@pytest.mark.parametrize("element", ["{}", "[]", "1", '{"a":1}', '{"a":{}}', '"{"', "{}{"])
def test_a_body_of_tiny_elements_takes_little_memory(element: str) -> None:
    body = ("[" + ",".join([element] * (4_000_000 // len(element))) + "]").encode()
    tracemalloc.start()
    with pytest.raises(RefusedArrayError):
        decode_records(body, 20_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def test_braces_in_names_are_no_records() -> None:
    entry = "{" * 50
    found, _ = decode_records(json.dumps([record(entry_id=entry)] * 90).encode(), 100)
    assert [one["entry_id"] for _, one in found] == [entry] * 90


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text("ab0-:\0\n'\u00e9", max_size=8),
)  # fmt: skip
NAMES = st.sampled_from([
    "target", "entry_id", "server", "timestamp", "snapshot_time", "start_time", "reset", "read",
    "user_id", "job_id", "malformed", "time_series_id", "nodename", "other", "clock_step", "open",
    "write_usecs", "user",
])  # fmt: skip


@given(st.lists(st.tuples(NAMES, SCALARS), max_size=4))
def test_no_value_raises_anything_else(changes: list[tuple[str, Any]]) -> None:
    for found in check(record(**dict(changes))):
        assert all(0 <= value < 2**64 for value in found.values)
        assert "\0" not in found.target + found.entry_id + found.server


@given(st.binary(max_size=60))
def test_no_body_raises_anything_else(body: bytes) -> None:
    with suppress(RefusedArrayError):
        assert isinstance(decode_records(body, 100), tuple)


@pytest.mark.parametrize(
    ("target", "fields", "kind"),
    [
        ("scratch-OST000f", {"open": 1}, "ost"), ("scratch-MDT0000", {"read_bytes": 1}, "mdt"),
        ("odd", {"open": 1, "setattr": 1}, "mdt"), ("odd", {"read_bytes": 1, "sync": 1}, "ost"),
        ("odd", {"getattr": 1}, "ost"), ("odd", {}, "ost"),
    ],
)  # fmt: skip
def test_the_name_of_a_target_shows_its_kind(
    target: str, fields: dict[str, int], kind: str
) -> None:
    assert check(record(target=target, **fields))[0].kind == kind


def test_counters_without_a_column_are_others() -> None:
    (one,) = check(record(read=5, create=2, write_bytes=9, statfs=0))
    assert one.values == (0, 9, 5, 0, 0, 0, 0, 0, 0, 0)
    assert one.others == {"create": 2}
    assert move_counters(one, "mdt") == (
        (0,) * 16, {"write_bytes": 9, "read": 5, "create": 2},
    )  # fmt: skip
