"""Answers: padding, rounding, aggregation, resampling, errors."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.stores.metrics.blocks import CAPACITY
from ccagent.stores.metrics.groups import StoredSeries
from ccagent.stores.metrics.query import QueryLimits, choose_values, find_choice, resample, rounded
from ccagent.stores.metrics.query_request import BadRequestError, parse_request
from ccagent.stores.metrics.reading import SeriesValues, read_all, read_series
from ccagent.stores.metrics.store import MetricStore
from tests.unit.stores.metrics.support import METRICS, NOW, ask, new_store

if TYPE_CHECKING:
    from ccagent.stores.metrics.query import Choice

BEGIN = NOW - NOW % 60
LOAD = {"metric": "load", "host": "n1"}


@pytest.fixture
def store() -> MetricStore:
    return new_store()


def fill(
    store: MetricStore, metric: str, values: list[float], *path: str, begin: int = BEGIN
) -> None:
    for step, value in enumerate(values):
        if not math.isnan(value):
            store.write(("fox", "n1", *path), metric, begin + 60 * step, value)


def test_data_cover_the_half_open_range(store: MetricStore) -> None:
    fill(store, "load", [1, 2, 3, 4])
    ((one,),) = ask(store, BEGIN + 60, BEGIN + 180, LOAD)
    assert one == {
        "data": [2, 3], "from": BEGIN + 60, "to": BEGIN + 180, "resolution": 60,
        "avg": 2.5, "min": 2, "max": 3,
    }  # fmt: skip


def test_padding_fills_up_from_the_asked_time(store: MetricStore) -> None:
    fill(store, "load", [1, 2])
    ((one,),) = ask(store, BEGIN - 120, BEGIN + 600, LOAD)
    assert (one["data"], one["from"], one["to"]) == ([None, None, 1, 2], BEGIN, BEGIN + 120)
    ((one,),) = ask(store, BEGIN - 120, BEGIN + 600, LOAD, **{"with-padding": False})
    assert (one["data"], one["from"]) == ([1, 2], BEGIN)


def test_data_have_three_decimals_and_statistics_two(store: MetricStore) -> None:
    fill(store, "load", [0.12345, 2.0006])
    ((one,),) = ask(store, BEGIN, BEGIN + 120, LOAD)
    assert (one["data"], one["avg"], one["min"], one["max"]) == ([0.123, 2.001], 1.06, 0.12, 2.0)


def test_a_half_is_rounded_to_the_even_digit(store: MetricStore) -> None:
    fill(store, "load", [14.0005, 14.0015])
    ((one,),) = ask(store, BEGIN, BEGIN + 120, LOAD)
    assert one["data"] == [14.0, 14.002]
    fill(store, "load", [14.005], begin=BEGIN + 120)
    ((one,),) = ask(store, BEGIN + 120, BEGIN + 180, LOAD)
    assert (one["data"], one["avg"]) == ([14.005], 14.0)


def test_statistics_leave_missing_values_out(store: MetricStore) -> None:
    fill(store, "load", [1, math.nan, 4])
    ((one,),) = ask(store, BEGIN, BEGIN + 180, LOAD)
    assert (one["data"], one["avg"]) == ([1, None, 4], 2.5)
    ((one,),) = ask(store, BEGIN + 60, BEGIN + 120, LOAD)
    assert (one["data"], one["avg"], one["min"], one["max"]) == ([None], None, None, None)


def test_data_or_statistics_can_be_left_out(store: MetricStore) -> None:
    fill(store, "load", [1, 3])
    ((one,),) = ask(store, BEGIN, BEGIN + 120, LOAD, **{"with-data": False})
    assert ("data" in one, one["avg"]) == (False, 2.0)
    ((one,),) = ask(store, BEGIN, BEGIN + 120, LOAD, **{"with-stats": False})
    assert (one["data"], one["avg"], one["max"]) == ([1, 3], 0, 0)


@pytest.mark.slow
@given(st.data())
def test_statistics_alone_equal_those_with_data(drawn: st.DataObject) -> None:
    store = new_store()
    group = store.add([(("fox", "n1"), name) for name in ("load", "power", "clock")], BEGIN, 60)
    chosen = random.Random(drawn.draw(st.integers(0, 2**32)))
    length = chosen.choice([3, 3 * CAPACITY + 40])
    queries = [{"metric": name, "host": "n1"} for name in ("load", "power", "clock")]

    def number() -> float:
        return math.nan if chosen.random() < 0.1 else chosen.randrange(1000) / 4

    for step in range(length):  # quarters: their sums are exact
        row = np.array([number() for _ in range(3)])
        group.write_run(store.pool, BEGIN + 60 * step, 0, row.tobytes())
    for _ in range(30):  # also late ones, into blocks whose statistics are known
        late = BEGIN + 60 * chosen.randrange(-700, length)
        write = chosen.randrange(4)
        if write == 0:
            group.write_value(store.pool, late, chosen.randrange(3), number())
        elif write == 1:
            group.write_run(store.pool, late, 1, np.array([number()]).tobytes())
        elif write == 2:
            group.open_row(store.pool, late)[2] = number()
        else:
            slots = np.unique([chosen.randrange(length) for _ in range(5)])
            group.write_column(store.pool, 0, slots, np.array([number() for _ in slots]))
        begin = BEGIN + 60 * chosen.randrange(-800, length + 100)
        end = begin + 60 * chosen.randrange(length + 900)
        full = ask(store, begin, end, *queries)
        alone = ask(store, begin, end, *queries, **{"with-data": False})
        for objects in full:
            for one in objects:
                one.pop("data", None)
        assert alone == full


def test_scaling_changes_data_and_statistics(store: MetricStore) -> None:
    fill(store, "load", [1, 3])
    ((one,),) = ask(store, BEGIN, BEGIN + 120, LOAD | {"scale-by": 0.5})
    assert (one["data"], one["avg"], one["min"], one["max"]) == ([0.5, 1.5], 1.0, 0.5, 1.5)


def test_what_is_not_there_is_left_out(store: MetricStore) -> None:
    fill(store, "load", [1])
    found = ask(
        store, BEGIN, BEGIN + 60, LOAD | {"host": "n2"}, {"metric": "power", "host": "n1"}, LOAD
    )
    assert [len(one) for one in found] == [0, 0, 1]


def test_errors_are_objects_with_zeros(store: MetricStore) -> None:
    fill(store, "load", [1])
    ((one,),) = ask(store, BEGIN, BEGIN + 60, LOAD | {"metric": "other"})
    assert one.pop("error") == "no metric called: 'other'"
    assert one == {"from": 0, "to": 0, "resolution": 0, "avg": 0, "min": 0, "max": 0}
    ((one,),) = ask(store, BEGIN + 60, BEGIN, LOAD)
    assert one["error"] == "invalid time range"


@pytest.mark.parametrize(("metric", "expected"), [("power", [4, 6]), ("load", [2, 3])])
def test_components_make_the_value_of_a_node(
    metric: str, expected: list[float], store: MetricStore
) -> None:
    fill(store, metric, [1, 2], "core0")
    fill(store, metric, [3, 4], "core1")
    ((one,),) = ask(store, BEGIN, BEGIN + 120, {"metric": metric, "host": "n1"})
    assert one["data"] == expected


def test_a_metric_without_aggregation_can_not_be_aggregated(store: MetricStore) -> None:
    fill(store, "clock", [1], "core0")
    query = {"metric": "clock", "host": "n1"}
    assert ask(store, BEGIN, BEGIN + 60, query)[0][0]["data"] == [1]
    fill(store, "clock", [1], "core1")
    assert "aggregation" in ask(store, BEGIN, BEGIN + 60, query)[0][0]["error"]


def test_an_own_value_hides_the_components(store: MetricStore) -> None:
    fill(store, "power", [1], "core0")
    fill(store, "power", [7])
    assert ask(store, BEGIN, BEGIN + 60, {"metric": "power", "host": "n1"})[0][0]["data"] == [7]


def test_a_missing_value_of_one_component_makes_the_sum_missing(store: MetricStore) -> None:
    fill(store, "power", [1, 2, 3], "core0")
    fill(store, "power", [1, math.nan, 3], "core1")
    ((one,),) = ask(store, BEGIN, BEGIN + 180, {"metric": "power", "host": "n1"})
    assert one["data"] == [2, None, 6]


def test_components_that_begin_apart_do_not_align(store: MetricStore) -> None:
    fill(store, "power", [1, 2, 3], "core0")
    fill(store, "power", [1, 2], "core1", begin=BEGIN + 60)
    query, strict = {"metric": "power", "host": "n1"}, QueryLimits(is_strict=True)
    ((one,),) = ask(store, BEGIN, BEGIN + 180, query, limits=strict)
    assert "align" in one["error"]
    ((one,),) = ask(store, BEGIN + 60, BEGIN + 180, query, limits=strict)
    assert (one["data"], "coverage" in one) == ([3, 5], False)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("power", [6, 6, 10, 10, 7, 4]), ("load", [2, 2, 2.5, 2.5, 3.5, 4])],
)
def test_a_node_has_the_values_of_its_present_components(
    metric: str, expected: list[float], store: MetricStore
) -> None:
    """One card starts late, and two end early, one after the other."""
    for card, (values, late) in enumerate(
        [([1.0] * 4, 0), ([2.0] * 4, 0), ([3.0] * 5, 0), ([4.0] * 4, 2)]
    ):
        fill(store, metric, values, f"accelerator{card}", begin=BEGIN + 60 * late)
    ((one,),) = ask(store, BEGIN - 60, BEGIN + 600, {"metric": metric, "host": "n1"})
    assert (one["data"], one["coverage"]) == ([None, *expected], "1 of 4")
    assert (one["from"], one["to"]) == (BEGIN, BEGIN + 360)


def test_a_hole_in_a_component_that_ends_early_is_missing(store: MetricStore) -> None:
    fill(store, "power", [1, math.nan, 1, 1], "core0")
    fill(store, "power", [2, 2], "core1")
    fill(store, "power", [5], "core2", begin=BEGIN + 420)
    ((one,),) = ask(store, BEGIN, BEGIN + 600, {"metric": "power", "host": "n1"})
    assert one["data"] == [3, None, 1, 1, None, None, None, 5]
    assert (one["coverage"], one["max"]) == ("1 of 3", 5)


def test_types_and_subtypes_select_components(store: MetricStore) -> None:
    for socket in (0, 1):
        for core in (0, 1):
            fill(store, "power", [10 * socket + core], f"socket{socket}", f"core{core}")
    query = {"metric": "power", "host": "n1", "type": "socket", "type-ids": ["0", "1", "9"]}
    assert [one["data"] for one in ask(store, BEGIN, BEGIN + 60, query)[0]] == [[1], [21]]
    parts = query | {"subtype": "core", "subtype-ids": ["1"]}
    assert [one["data"] for one in ask(store, BEGIN, BEGIN + 60, parts)[0]] == [[1], [11]]
    assert [one["data"] for one in ask(store, BEGIN, BEGIN + 60, parts | {"aggreg": True})[0]] == [
        [12]
    ]


def test_for_all_nodes_adds_queries_and_repeats_them(store: MetricStore) -> None:
    from ccagent.stores.metrics.query import answer

    for host in ("n1", "n2"):
        store.write(("fox", host), "load", BEGIN, 1.0)
    body = {"cluster": "fox", "from": BEGIN, "to": BEGIN + 60, "for-all-nodes": ["load", "power"]}
    text = b"".join(answer(store, parse_request(json.dumps(body).encode()), QueryLimits()))
    found = json.loads(text)
    assert [(one["host"], one["metric"]) for one in found["queries"]] == [
        ("n1", "load"), ("n1", "power"), ("n2", "load"), ("n2", "power"),
    ]  # fmt: skip
    assert [len(one) for one in found["results"]] == [1, 0, 1, 0]


def test_many_queries_come_in_parts_of_one_json(store: MetricStore) -> None:
    fill(store, "load", [1])
    assert len(ask(store, BEGIN, BEGIN + 60, *[LOAD] * 1000)) == 1000
    assert ask(store, BEGIN, BEGIN + 60) == []


def test_few_values_are_not_resampled(store: MetricStore) -> None:
    fill(store, "load", list(range(999)))
    ((one,),) = ask(store, BEGIN, BEGIN + 60 * 999, LOAD | {"resolution": 600})
    assert (len(one["data"]), one["resolution"]) == (999, 60)


def test_many_values_are_resampled(store: MetricStore) -> None:
    random.seed(3)
    fill(store, "load", [random.random() for _ in range(1440)])
    ((one,),) = ask(store, BEGIN, BEGIN + 86400, LOAD | {"resolution": 600})
    assert (len(one["data"]), one["resolution"]) == (144, 600)
    assert "multiple" in ask(store, BEGIN, BEGIN + 86400, LOAD | {"resolution": 61})[0][0]["error"]
    both = ask(store, BEGIN, BEGIN + 86400, *[LOAD | {"resolution": 600}] * 2)
    assert [found["data"] for (found,) in both] == [one["data"]] * 2


def lttb(data: list[float], step: int) -> list[float]:
    """One value after the other, as the reference's rule is written down."""
    wanted = len(data) // step
    if wanted <= 2:
        return [data[0], data[-1]]
    size = (len(data) - 2) / (wanted - 2)
    result, chosen, low, middle = [data[0]], 0, 1, math.floor(size) + 1
    for number in range(wanted - 2):
        high = min(math.floor((number + 2) * size) + 1, len(data) - 2)
        following = data[middle : high + 1]
        x, y = (middle + high) / 2, sum(following) / len(following) if following else math.nan
        best, largest = 0, -1.0
        for place in range(low, middle):
            a = data[chosen]
            area = abs((chosen - x) * (data[place] - a) - (chosen - place) * (y - a))
            if area > largest:
                best, largest = place, area
        result.append(math.nan if math.isnan(y) else data[best])
        chosen, low, middle = best, middle, high
    return [*result, data[-1]]


@pytest.mark.parametrize("choice", [find_choice(), choose_values])
@pytest.mark.parametrize("step", [2, 3, 10, 24, 333, 600])
@pytest.mark.parametrize("gaps", [0, 5])
def test_resampling_follows_the_rule(
    step: int, gaps: int, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.stores.metrics.query.choose", choice)
    generator = np.random.default_rng(step)
    rows = generator.random((3, 1000)).round(4)
    rows[:, generator.integers(1, 999, gaps)] = np.nan
    found = resample(list(rows), step)
    for row, values in zip(rows.tolist(), found.tolist(), strict=True):
        assert np.array_equal(np.array(lttb(row, step)), np.array(values), equal_nan=True)


FLOATS = st.floats(-1e100, 1e100) | st.just(math.nan) | st.integers(-3, 3).map(float)


@given(st.integers(6, 40), st.data())
def test_both_choices_are_the_same(count: int, drawn: st.DataObject) -> None:
    rows = drawn.draw(st.lists(st.lists(FLOATS, min_size=count, max_size=count), max_size=3))
    wanted = drawn.draw(st.integers(3, count // 2))
    found: list[list[list[float]]] = []
    for choice in (find_choice(), choose_values) if rows else (find_choice(),):
        results = np.empty((len(rows), wanted))
        choice([np.array(row) for row in rows], results)
        found.append(results.tolist())
    assert repr(found[0]) == repr(found[-1])


def test_the_compiled_choice_refuses_other_arrays() -> None:
    choice, rows = find_choice(), [np.zeros(9)]
    for wrong, results in (
        ([np.zeros(9, np.int64)], np.empty((1, 3))),
        ([np.zeros(18)[::2]], np.empty((1, 3))),
        ([np.zeros(5)], np.empty((1, 3))),
        ([*rows, np.zeros(3)], np.empty((2, 4))),
        (rows, np.empty((1, 2))),
        (rows * 2, np.empty((1, 7))),
        (tuple(rows), np.empty((1, 3))),
        (rows, bytes(24)),
    ):
        with pytest.raises((TypeError, ValueError, BufferError)):
            choice(wrong, results)  # type: ignore[arg-type]


def test_series_of_a_group_are_read_as_each_alone(store: MetricStore) -> None:
    """With blocks that are ordered by series, a hole between blocks, and other starts and ends."""
    random.seed(5)
    bounds = [(0, 1500), (0, 1500), (7, 1500), (0, 600), (0, 0)]
    group = store.add([(("fox", "n1", f"core{n}"), "load") for n in range(5)], BEGIN, 60)
    for column, (first, last) in enumerate(bounds):
        for step in (*range(first, min(last, 520)), *range(1100, last)):
            group.write_value(store.pool, BEGIN + 60 * step, column, random.random())
    found = [StoredSeries(group, column) for column in (3, 0, 2, 4, 1)]
    for times in ((0, 1500), (3, 700), (500, 1200), (600, 900), (1499, 2000), (1600, 1700)):
        start, end = (BEGIN + 60 * step for step in times)
        together = read_all([([one], METRICS["load"]) for one in found], (start, end))
        for one, of_group in zip(found, together, strict=True):
            alone = read_series(one, start, end)
            assert alone is None or isinstance(of_group, SeriesValues)
            if alone is None or not isinstance(of_group, SeriesValues):
                assert of_group is None
                continue
            assert np.array_equal(of_group.values, alone.values, equal_nan=True)
            assert of_group[1:] == alone[1:]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), max_size=20))
def test_rounding_is_that_of_decimals(values: list[float]) -> None:
    found = rounded(np.array(values), 1000.0)
    for value, one in zip(values, found.tolist(), strict=True):
        assert math.isnan(one) if math.isnan(value) else abs(one - value) <= 0.00051


def test_an_answer_has_a_largest_size(store: MetricStore) -> None:
    fill(store, "load", [1])
    with pytest.raises(BadRequestError, match="exceed 100 values"):
        ask(store, 0, BEGIN, LOAD, limits=QueryLimits(100))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"from": "x"}', b'{"to": 1e300}', b'{"from": 99999999999999}',
             b'{"queries": [1]}', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_request(body)


@pytest.mark.parametrize(
    "value", ["1", "null", "[1]", "[[]]", '[{"host": 1}]', '[{"type-ids": "x"}]']
)
def test_queries_of_another_form_are_refused_or_nothing(value: str) -> None:
    try:
        request = parse_request(f'{{"queries": {value}}}'.encode())
    except BadRequestError:
        return
    assert request.queries is None
