"""Slots, buffers, release and reuse."""

from __future__ import annotations

import math
import random

from ccagent.stores.metrics.blocks import CAPACITY
from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.store import MetricStore
from tests.support.store_oracle import Oracle, OracleMetric
from tests.unit.stores.metrics.support import METRICS, NOW, ask, data, new_store

LOAD = ("fox", "n1")


def write(store: MetricStore, time: int, value: float, metric: str = "load") -> None:
    store.write(LOAD, metric, time, value)


def test_a_slot_begins_half_a_step_before_the_first_value() -> None:
    store = new_store()
    write(store, 1000, 1.0)
    write(store, 1029, 2.0)
    assert data(store, 1000, 1060) == [2.0]
    write(store, 1030, 3.0)
    assert data(store, 1000, 1120) == [2.0, 3.0]


def test_the_last_value_of_a_slot_wins() -> None:
    store = new_store()
    for value in (1.0, 5.0, 4.0):
        write(store, 1000, value)
    assert data(store, 1000, 1060) == [4.0]


def test_skipped_steps_are_missing() -> None:
    store = new_store()
    write(store, 1000, 1.0)
    write(store, 1180, 2.0)
    assert data(store, 1000, 1240) == [1.0, None, None, 2.0]


def test_late_values_are_kept_before_the_first_one() -> None:
    store = new_store()
    write(store, NOW, 1.0)
    write(store, NOW - 60 * 2000, 2.0)
    write(store, NOW - 60, 3.0)
    found = data(store, NOW - 60 * 2000, NOW + 60)
    assert (found[0], found[-2:], len(found)) == (2.0, [3.0, 1.0], 2001)
    assert set(found[1:-2]) == {None}


def test_times_between_distant_values_take_no_memory() -> None:
    store = new_store()
    write(store, 60, 1.0)
    write(store, NOW, 2.0)
    assert store.buffers() == 2


def test_a_full_buffer_is_followed_by_another() -> None:
    store = new_store()
    for step in range(3 * CAPACITY):
        write(store, 1000 + 60 * step, step)
    assert store.buffers() == 3
    assert data(store, 1000, 1000 + 60 * 3 * CAPACITY) == [float(n) for n in range(3 * CAPACITY)]


def test_released_buffers_are_used_again() -> None:
    store = new_store()
    for step in range(2 * CAPACITY):
        write(store, 1000 + 60 * step, step)
    assert store.release_before(1000 + 60 * (CAPACITY + 1)) == 1
    for step in range(2 * CAPACITY, 3 * CAPACITY):
        write(store, 1000 + 60 * step, step)
    assert store.pool.reused == 1
    begin = 1000 + 60 * CAPACITY
    ((one,),) = ask(
        store, 0, begin + 120, {"metric": "load", "host": "n1"}, **{"with-padding": False}
    )
    assert (one["from"], one["data"]) == (begin, [512.0, 513.0])


def test_a_node_without_values_disappears() -> None:
    store = new_store()
    write(store, 1000, 1.0)
    store.release_before(NOW)
    assert (store.root.children, store.series, store.groups) == ({}, 0, {})


def test_spared_nodes_keep_their_values() -> None:
    store = new_store()
    write(store, 1000, 1.0)
    assert store.release_before(NOW, frozenset({("fox", "n1")})) == 0
    assert data(store, 1000, 1060) == [1.0]


def test_freeing_a_component_keeps_its_neighbours() -> None:
    store = new_store()
    paths = [((*LOAD, f"core{n}"), "load") for n in (0, 1)]
    group = store.add(paths, 1000, 60)
    for column in (0, 1):
        group.write_value(store.pool, 1000, column, float(column))
    assert store.free(["fox", "n1", "core0"], NOW) == 1
    queries = [{"metric": "load", "host": "n1", "type": "core", "type-ids": [n]} for n in "01"]
    first, second = ask(store, 1000, 1060, *queries)
    assert first == []
    assert second[0]["data"] == [1.0]


def test_random_writes_read_as_the_specification_says() -> None:
    random.seed(7)
    store = new_store()
    oracle = Oracle(
        {name: OracleMetric(one.frequency, one.aggregation) for name, one in METRICS.items()}
    )
    cores = [("fox", host, core) for host in ("n2", "n3") for core in ("core0", "core1")]
    paths = [LOAD, ("fox", "n2"), *cores]
    begin = NOW - 60 * 3000
    for _ in range(4000):
        path, metric = random.choice(paths), random.choice(["load", "power", "clock"])
        time = begin + 60 * random.randrange(3000) + random.randrange(-20, 20)
        value = round(random.uniform(-1e3, 1e3), 3)
        store.write(path, metric, time, value)
        oracle.write(path, metric, time, value)
    from tests.support.store_oracle import same

    for _ in range(300):
        host, metric = random.choice(["n1", "n2", "n3", "n4"]), random.choice([*METRICS, "other"])
        start = begin + random.randrange(-10_000, 180_000)
        end = start + random.randrange(-100, 100_000)
        query, strict = {"metric": metric, "host": host}, QueryLimits(is_strict=True)
        (found,) = ask(store, start, end, query, limits=strict)
        expected = oracle.query([("fox", host)], metric, start, end)
        assert same(expected, found), (host, metric, start, end)


def test_nothing_is_nan_that_was_written() -> None:
    store = new_store()
    group = store.add([(LOAD, "load"), (LOAD, "power")], 1000, 60)
    for step in range(2 * CAPACITY):
        group.write_value(store.pool, 1000 + 60 * step, step % 2, 1.0)
    for metric, first in (("load", 0), ("power", 1)):
        found = data(store, 1000, 1000 + 60 * 2 * CAPACITY, metric)
        assert not any(value is None or math.isnan(value) for value in found[first::2])
