"""What the store makes of records: deltas, repeats, failover, skipped entries, ids, metadata."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from ccagent.stores.jobstats.admission import RefusedArrayError
from ccagent.stores.jobstats.ingest import StoredArray
from ccagent.stores.jobstats.queries import find_job
from ccagent.stores.jobstats.query_request import parse_job
from ccagent.stores.jobstats.service import JobstatsService
from ccagent.stores.jobstats.settings import JobstatsStoreSettings
from tests.support.jobstats_store import record, zeros

LARGEST = 2**64 - 1
Rows = list[tuple[Any, ...]]


class IngestedStore:
    """The store without HTTP, which other tests have."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.service = JobstatsService(JobstatsStoreSettings(database=url, **settings), url)
        self.service.prepare()

    def post(self, records: Sequence[dict[str, Any]]) -> StoredArray:
        return self.service.store_array(json.dumps(records).encode())


@pytest.fixture
def store(database: str) -> Iterator[IngestedStore]:
    made = IngestedStore(database)
    yield made
    made.service.close()


def query(database: str, statement: str, *values: Any) -> Rows:
    with psycopg.connect(database) as connection:
        return connection.execute(statement.encode(), values or None).fetchall()


def total(database: str, operation: str = "write_bytes") -> int:
    statement = "SELECT coalesce(sum(delta), 0) FROM deltas WHERE operation = %s"
    return int(query(database, statement, operation)[0][0])


def stored(store: IngestedStore, *records: dict[str, Any]) -> int:
    return store.post(records).stored


def test_a_counter_counts_from_its_zeros(store: IngestedStore, database: str) -> None:
    stored(store, zeros(0), record(120, {"write_bytes": 500}), record(240, {"write_bytes": 700}))
    rows = query(
        database,
        "SELECT write_bytes, write_bytes_delta, extract(epoch FROM timestamp - since)::int "
        "FROM ost ORDER BY timestamp",
    )
    assert rows == [(0, 0, None), (500, 500, 120), (700, 200, 120)]
    rates = query(database, "SELECT write_bytes FROM ost_rates ORDER BY timestamp")
    assert [float(rate) for (rate,) in rates] == pytest.approx([500 / 120, 200 / 120])


def test_without_a_beginning_the_first_record_counts_nothing(
    store: IngestedStore, database: str
) -> None:
    stored(store, record(0, {"write_bytes": 500}), record(120, {"write_bytes": 501}))
    assert total(database) == 1


def test_recorded_dumps_may_count_from_the_start(database: str) -> None:
    store = IngestedStore(database, first="count")
    began = record(0)["snapshot_time"] - 95
    stored(store, record(0, {"write_bytes": 500}, start_time=began))
    stored(store, record(120, {"write_bytes": 501}, start_time=began), record(0, entry_id="x.1"))
    assert total(database) == 501
    rates = query(database, "SELECT seconds, write_bytes FROM ost_rates ORDER BY timestamp")
    assert rates == [(100, 5), (120, pytest.approx(Decimal(1) / 120))]
    store.service.close()


def test_a_start_at_the_observation_has_no_rate(database: str) -> None:
    store = IngestedStore(database, first="count")
    moment = datetime.fromisoformat(record(0)["timestamp"])
    stored(store, record(0, {"write_bytes": 500}, start_time=moment.timestamp()))
    values = {"to": (moment + timedelta(minutes=30)).isoformat()}
    for wanted in (values, values | {"step": "5m"}):
        answer = store.service.ask(find_job, parse_job("5", wanted, datetime.now(UTC)))
        assert answer is not None
        assert [(one.total, one.peak) for one in answer.totals] == [(500, 0)]
    store.service.close()


def test_the_longest_texts_fit_the_indexes(store: IngestedStore) -> None:
    chance = random.Random(1)

    def text(count: int) -> str:
        return "".join(chr(chance.randrange(0x20000, 0x2A000)) for _ in range(count))

    names = {name: text(256) for name in ("entry_id", "job_id", "user", "nodename", "executable")}
    assert stored(store, record(0, **names, server=text(63), target=text(63))) == 1
    with pytest.raises(RefusedArrayError):
        store.post([record(0, entry_id=text(257))])


@pytest.mark.parametrize(
    ("reset", "grown"),
    [("start_time", 600), ("absent", 600), ("decreased", 600), ("snapshot_gap", 100), (..., 100)],
)
def test_a_reset_counts_the_whole_counter(
    store: IngestedStore, database: str, reset: Any, grown: int
) -> None:
    stored(store, zeros(0), record(120, {"write_bytes": 500}))
    between = [zeros(240)] if reset == "absent" else []
    stored(store, *between, record(360, {"write_bytes": 600}, reset=reset))
    assert total(database) == 500 + grown


def test_a_counter_that_falls_is_reset(store: IngestedStore, database: str) -> None:
    stored(store, zeros(0), record(120, {"write_bytes": 500}), record(240, {"write_bytes": 30}))
    assert total(database) == 530


def test_a_failover_within_an_interval_counts_nothing_twice(
    store: IngestedStore, database: str
) -> None:
    """Trap 1: the new server's zeros lie before the old one's last record."""
    stored(store, zeros(0), record(120, {"write_bytes": 900}))
    stored(store, zeros(15, server="b"), record(135, {"write_bytes": 10}, server="b"))
    stored(store, record(255, {"write_bytes": 30}, server="b"))
    stored(store, zeros(240), record(360, {"write_bytes": 7}, reset="absent"))
    assert total(database) == 900 + 30 + 7
    ids = query(database, "SELECT count(DISTINCT time_series_id), count(*) FROM ost")
    assert ids == [(1, 7)]


def test_an_entry_twice_in_an_array_counts_once(store: IngestedStore, database: str) -> None:
    """Trap 2."""
    twice = [record(120, {"write_bytes": 500}), record(120, {"write_bytes": 510})]
    assert stored(store, zeros(0), *twice) == 2
    stored(store, record(240, {"write_bytes": 600}))
    assert total(database) == 600


@pytest.mark.parametrize("start", [..., 1_795_300_000.5])
def test_an_entry_that_one_reading_skipped_is_no_reset(
    store: IngestedStore, database: str, start: Any
) -> None:
    """Trap 3: snapshot_time and counters of before come back after zeros."""
    before = record(120, {"write_bytes": 500, "write": 5}, start_time=start)
    again = {**before, "timestamp": record(360)["timestamp"], "reset": "absent"}
    stored(store, zeros(0), before, zeros(240), again)
    assert total(database) == 500
    stored(store, record(480, {"write_bytes": 510, "write": 6}, start_time=start))
    assert total(database) == 510


def test_what_began_anew_after_a_reading_is_a_reset(store: IngestedStore, database: str) -> None:
    stored(store, zeros(0), record(120, {"write_bytes": 500}))
    stored(store, zeros(240), record(360, {"write_bytes": 900}, reset="absent"))
    assert total(database) == 500 + 900


def test_a_repeated_array_changes_nothing(store: IngestedStore, database: str) -> None:
    """Trap 4."""
    array = [zeros(0), record(120, {"write_bytes": 500}), record(240, {"write_bytes": 700})]
    assert [stored(store, *array), stored(store, *array), stored(store, *array[1:])] == [3, 0, 0]
    assert total(database) == 700


def test_counters_beyond_2_53_are_exact(store: IngestedStore, database: str) -> None:
    """Trap 5."""
    stored(store, zeros(0), record(120, {"write_bytes": 2**53 + 1, "prealloc": LARGEST}))
    stored(store, record(240, {"write_bytes": LARGEST, "prealloc": LARGEST}))
    assert total(database) == LARGEST
    assert total(database, "prealloc") == LARGEST
    assert query(database, "SELECT max(write_bytes) FROM ost") == [(Decimal(LARGEST),)]


def test_records_may_come_in_any_order(store: IngestedStore, database: str) -> None:
    counters = [0, 10, 25, 5, 40, 90, 100]
    array = [zeros(0)]
    array += [record(120 * n, {"write_bytes": v}) for n, v in enumerate(counters) if n]
    expected = sum(b - a if b >= a else b for a, b in pairwise(counters))
    for seed in range(6):
        entry = f"{100 + seed}:1:c1"
        shuffled = [{**one, "entry_id": entry} for one in array]
        random.Random(seed).shuffle(shuffled)
        for one in shuffled:
            stored(store, one)
        statement = "SELECT sum(delta) FROM deltas WHERE entry_id = %s"
        assert query(database, statement, entry) == [(expected,)]


def test_a_sender_that_repeats_a_reset_counts_it_once(store: IngestedStore, database: str) -> None:
    """It was killed after it had queued the record, and before it had saved its state."""
    first = {"start_time": 1_795_300_000.25}
    second = {"start_time": 1_795_341_700.25, "reset": "start_time"}
    stored(store, zeros(0), record(120, {"write_bytes": 500}, **first))
    stored(store, record(240, {"write_bytes": 10}, **second))
    stored(store, record(241, {"write_bytes": 12}, **second))
    assert total(database) == 512


def test_a_later_start_is_a_reset_whatever_was_lost(store: IngestedStore, database: str) -> None:
    first = {"start_time": 1_795_341_600.25, "snapshot_time": 1_795_341_719.5}
    second = {"start_time": 1_795_341_720.25}
    stored(store, zeros(0), record(120, {"write_bytes": 500}, **first))
    stored(store, record(240, {"write_bytes": 600}, **second))
    stored(store, record(360, {"write_bytes": 610}, start_time=1_795_341_720.75))
    assert total(database) == 500 + 610


def test_other_operations_are_kept(store: IngestedStore, database: str) -> None:
    mdt = {"target": "fs-MDT0000"}
    stored(store, zeros(0), record(120, {"write_bytes": 1, "create": 3, "statfs": 4}))
    stored(store, record(240, {"write_bytes": 1, "create": 5, "statfs": 4}))
    stored(store, zeros(0, **mdt), record(120, {"open": 2, "read_bytes": 4096}, **mdt))
    found = query(
        database, "SELECT target, operation, sum(delta) FROM deltas GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert found == [
        ("fs-MDT0000", "open", 2), ("fs-MDT0000", "read_bytes", 4096),
        ("fs-OST0000", "create", 5), ("fs-OST0000", "statfs", 4), ("fs-OST0000", "write_bytes", 1),
    ]  # fmt: skip
    assert query(database, "SELECT others FROM mdt WHERE open > 0") == [({"read_bytes": 4096},)]


def test_times_keep_their_fractions(store: IngestedStore, database: str) -> None:
    stored(store, record(0, snapshot_time=1_795_341_595.123456, start_time=1_795_341_000))
    found = query(
        database,
        "SELECT extract(epoch FROM snapshot_time), extract(epoch FROM start_time) FROM ost",
    )
    assert found == [(Decimal("1795341595.123456"), Decimal("1795341000.000000"))]


def test_metadata_are_written_once(store: IngestedStore, database: str) -> None:
    sent = {"job_id": 5, "user_id": 1001, "nodename": "c1", "user": "ada"}
    stored(store, zeros(0, **sent), record(120, **sent))
    stored(store, record(0, entry_id="rsync.1002"), record(0, entry_id="a b", malformed=True))
    stored(store, record(0, entry_id="0123:7:c2", job_id="0123", user_id=7, nodename="c2"))
    columns = 'entry_id, job_id, job, user_id, "user", nodename, executable, format, malformed'
    assert query(database, f"SELECT {columns} FROM metadata ORDER BY entry_id") == [
        ("0123:7:c2", None, "0123", 7, None, "c2", None, "%j:%u:%H", False),
        ("5:1001:c1", 5, "5", 1001, "ada", "c1", None, "%j:%u:%H", False),
        ("a b", None, None, None, None, None, None, None, True),
        ("rsync.1002", None, None, 1002, None, None, "rsync", "%e.%u", False),
    ]


def test_ids_are_made_in_secret_namespaces(store: IngestedStore, database: str) -> None:
    stored(store, record(0), record(0, entry_id="rsync.1002"), record(0, entry_id="a b"))
    found = query(database, "SELECT time_series_id FROM metadata")
    assert len(found) == 3
    assert all(isinstance(one, UUID) and one.version == 5 for (one,) in found)
    namespaces = query(database, "SELECT format FROM namespaces ORDER BY 1")
    assert namespaces == [("",), ("%e.%u",), ("%j",), ("%j:%u:%H",), ("%j:%u:%h",)]


def test_ids_of_the_sender_are_taken(store: IngestedStore, database: str) -> None:
    series = "af854063-c381-585f-b551-ce0b6c4440a3"
    own = {"entry_id": "11317854:17627127:r01c01", "target": "scratch-OST0001"}
    stored(store, record(0, time_series_id=series, **own))
    assert query(database, "SELECT time_series_id::text FROM ost") == [(series,)]
    with pytest.raises(RefusedArrayError, match="record 1: .* belongs to another target or entry"):
        store.post([record(120, {"write_bytes": 9}, time_series_id=series)])
    assert query(database, "SELECT count(*) FROM ost") == [(1,)]


def test_the_vector_of_the_specification(tmp_path: Path, database: str) -> None:
    secret = tmp_path / "namespaces"
    secret.touch(mode=0o600)
    secret.write_text("# format, namespace\n%j:%u:%H 2e79b8a1-c4fc-45ba-9023-d16fdce6e3fe\n")
    store = IngestedStore(database, namespaces_file=str(secret))
    stored(store, record(0, target="scratch-OST0001", entry_id="11317854:17627127:r01c01"))
    assert query(database, "SELECT time_series_id::text FROM ost") == [
        ("af854063-c381-585f-b551-ce0b6c4440a3",)
    ]
    assert query(database, "SELECT count(*) FROM namespaces WHERE format = '%j:%u:%H'") == [(0,)]
    store.service.close()


def test_records_of_the_future_and_of_long_ago(store: IngestedStore, database: str) -> None:
    with pytest.raises(RefusedArrayError, match="in the future; check the clocks"):
        store.post([record(0, timestamp="2090-01-01T00:00:00+00:00")])
    answer = store.post([record(0, timestamp="2020-01-01T00:00:00+00:00")])
    assert answer == StoredArray(records=1, stored=0, repeated=0, expired=1, late=0)
    assert query(database, "SELECT count(*) FROM ost") == [(0,)]
