"""Version 2 of the query: several metrics, all nodes, over nodes, CSV."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccagent.stores.metrics.query import QueryLimits
from ccagent.stores.metrics.query_request import BadRequestError, parse_table_request
from ccagent.stores.metrics.store import MetricStore
from ccagent.stores.metrics.table_query import table_parts
from tests.unit.stores.metrics.support import NOW, new_store

BASE = {"cluster": "fox", "from": NOW, "to": NOW + 240, "metrics": ["load"]}


@pytest.fixture
def store() -> MetricStore:
    store = new_store()
    for node, values in (("n1", (1, 2, 3)), ("n2", (5, None, 7, 8))):
        for step, value in enumerate(values):
            if value is not None:
                store.write(("fox", node), "load", NOW + 60 * step, value)
        store.write(("fox", node), "power", NOW, 0.12345678)
    return store


def ask(store: MetricStore, limit: int = 1000, **more: Any) -> bytes:
    request = parse_table_request(json.dumps(BASE | more).encode())
    return b"".join(table_parts(store, request, QueryLimits(limit)))


def test_several_metrics_of_all_nodes_with_all_digits(store: MetricStore) -> None:
    found = json.loads(ask(store, metrics=["load", "power"]))["series"]
    assert [(one["metric"], one["host"]) for one in found] == [
        ("load", "n1"), ("load", "n2"), ("power", "n1"), ("power", "n2"),
    ]  # fmt: skip
    assert found[1] == {
        "metric": "load", "host": "n2", "start": NOW, "step": 60, "count": 3, "min": 5, "max": 8,
        "mean": 20 / 3, "values": [5, None, 7, 8],
    }  # fmt: skip
    assert found[2]["values"] == [0.12345678]


def test_hosts_can_be_chosen(store: MetricStore) -> None:
    (one,) = json.loads(ask(store, hosts=["n2", "n9"]))["series"]
    assert one["host"] == "n2"


def test_minimum_mean_and_maximum_over_nodes(store: MetricStore) -> None:
    (one,) = json.loads(ask(store, over="nodes"))["series"]
    assert one == {
        "metric": "load", "nodes": 2, "start": NOW, "step": 60, "min": [1, 2, 3, 8],
        "mean": [3, 2, 5, 8], "max": [5, 2, 7, 8],
    }  # fmt: skip


def test_csv(store: MetricStore) -> None:
    assert ask(store, hosts=["n2"], format="csv").decode().splitlines() == [
        "time,metric,host,value", f"{NOW},load,n2,5.0", f"{NOW + 60},load,n2,",
        f"{NOW + 120},load,n2,7.0", f"{NOW + 180},load,n2,8.0",
    ]  # fmt: skip
    assert ask(store, over="nodes", format="csv").decode().splitlines()[1] == (
        f"{NOW},load,1.0,3.0,5.0"
    )


@pytest.mark.parametrize("more", [{"metrics": ["x"]}, {"from": NOW + 300}, {"other": 1},
                                  {"to": "x"}, {"format": "xml"}])  # fmt: skip
def test_what_can_not_be_answered_is_an_error(more: Any, store: MetricStore) -> None:
    with pytest.raises(BadRequestError):
        ask(store, **more)


def test_an_answer_has_a_largest_size(store: MetricStore) -> None:
    with pytest.raises(BadRequestError, match="exceed 2 values"):
        ask(store, limit=2)


def test_a_series_that_can_not_be_read_costs_only_itself(store: MetricStore) -> None:
    for core in range(2):
        store.write(("fox", "n1", f"core{core}"), "clock", NOW, 1.0)
    store.write(("fox", "n2"), "clock", NOW, 2.0)
    failed, found = json.loads(ask(store, metrics=["clock"]))["series"]
    assert (failed["host"], failed["error"]) == ("n1", "invalid aggregation")
    assert (found["host"], found["values"]) == ("n2", [2.0])
    lines = ask(store, metrics=["clock"], format="csv").decode().splitlines()
    assert lines[1:] == [f"{NOW},clock,n2,2.0"]
    (over,) = json.loads(ask(store, metrics=["clock"], over="nodes"))["series"]
    assert (over["nodes"], over["mean"]) == (1, [2.0])


def test_a_row_says_how_many_components_it_has(store: MetricStore) -> None:
    for core, values in enumerate(([1.0, 1.0, 1.0], [2.0])):
        for step, value in enumerate(values):
            store.write(("fox", "n3", f"core{core}"), "load", NOW + 60 * step, value)
    (row,) = json.loads(ask(store, hosts=["n3"]))["series"]
    assert (row["values"], row["coverage"]) == ([1.5, 1.0, 1.0], "1 of 2")
