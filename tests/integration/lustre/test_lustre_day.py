"""A day of a file system on two servers: what its records add up to is what was really done."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import IS_NIGHTLY
from tests.support.lustre_day import BEGIN, HOURS, LustreDay, LustreServer
from tests.support.lustre_server import SimulatedTarget


@pytest.mark.parametrize("seed", range(1, 6) if IS_NIGHTLY else [1])
def test_records_add_up_to_what_was_done(tmp_path: Path, seed: int) -> None:
    day = LustreDay(tmp_path, seed)
    for _ in day.live():
        pass
    assert day.integrated() == day.truth()
    assert len(day.truth()) > 20 * HOURS
    # Little is lost between observations.
    assert sum(day.unseen.values()) < 0.1 * sum(day.truth().values())
    assert set(day.resets) >= {"start_time", "absent", "decreased"}
    assert {server for server, _ in day.records} == {"a", "b"}


def by_seeds_rule(records: list[dict[str, Any]]) -> dict[str, int]:
    """Add up the bytes of each entry as the seed does, whichever server sent them."""
    totals: Counter[str] = Counter()
    last: dict[str, int] = {}
    for record in sorted(records, key=lambda record: (record["timestamp"], record["server"])):
        entry, value = record["entry_id"], record["write_bytes"]
        before = last.get(entry, value)
        totals[entry] += value - before if value >= before else value
        last[entry] = value
    return totals


@pytest.mark.parametrize("layout", ["2.14", "2.15.0", "2.15.2", "2.17"])
def test_a_failover_within_an_interval_counts_nothing_twice(tmp_path: Path, layout: str) -> None:
    target = SimulatedTarget("fs-OST0000", "obdfilter", boot_time=BEGIN)
    one, other = LustreServer(tmp_path, "a"), LustreServer(tmp_path, "b")
    records: list[dict[str, Any]] = []

    def observe(server: LustreServer, now: float, *, has_target: bool) -> None:
        # A target elsewhere beside it, so that a server is never without one.
        texts: dict[str, bytes | None] = {"mdt/fs-MDT0000": b"job_stats:\n"}
        if has_target:
            texts["obdfilter/fs-OST0000"] = target.text(layout, now)
        records.extend(server.observe(now, texts))

    def write(size: int, now: float) -> None:
        target.do("5:1001:c1", "write_bytes", 1, size, now=now)

    observe(one, BEGIN, has_target=True)
    write(500, BEGIN + 10)
    observe(other, BEGIN + 15, has_target=False)
    write(400, BEGIN + 20)
    observe(one, BEGIN + 120, has_target=True)
    target.failover(BEGIN)
    write(10, BEGIN + 130)
    observe(other, BEGIN + 135, has_target=True)
    observe(one, BEGIN + 240, has_target=False)
    write(20, BEGIN + 245)
    observe(other, BEGIN + 255, has_target=True)
    target.failover(BEGIN)
    write(7, BEGIN + 260)
    observe(one, BEGIN + 360, has_target=True)
    assert by_seeds_rule(records) == {"5:1001:c1": 500 + 400 + 10 + 20 + 7}
    assert [record["server"] for record in records if record["snapshot_time"] is None] == [
        "a", "b", "a",
    ]  # fmt: skip
