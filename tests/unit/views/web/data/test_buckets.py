"""Buckets: at most so many, with minimum, mean and maximum of what lies in each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.stores.metrics.groups import StoredSeries
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.store import MetricStore
from ccagent.views.web.data.buckets import make_grid, read_buckets

NOW = 1_800_000_000


def make_series(values: dict[int, float], frequency: int = 60) -> StoredSeries:
    """Return a series; values by seconds after NOW."""
    store = MetricStore(MetricCatalogue({"*": StoredMetric(frequency, "avg")}), lambda: NOW)
    for after, value in values.items():
        store.write(("fox", "n1"), "load", NOW + after, value)
    found = store.find(("fox", "n1"), "load")
    assert found is not None
    return found


@given(
    st.integers(0, 2 * 10**9), st.integers(-10, 10**9), st.sampled_from([1, 7, 10, 15, 60, 300]),
    st.sampled_from([60, 240, 600]),
)  # fmt: skip
def test_a_grid_has_at_most_so_many_buckets_and_holds_its_time(
    start: int, span: int, frequency: int, points: int
) -> None:
    grid = make_grid(start, start + span, frequency, points)
    assert 1 <= grid.size <= points
    assert grid.step % frequency == 0
    assert grid.start % grid.step == 0
    assert grid.end >= start + max(1, span)
    if span <= 300 * 86400:
        assert grid.start <= start < grid.start + max(grid.step, 1) or span <= 0


def test_a_bucket_has_the_extremes_of_its_values() -> None:
    series = make_series({60 * n: float(n % 7) for n in range(40)})
    (found,) = read_buckets([series], make_grid(NOW, NOW + 2400, 60, 8))
    assert found.low.tolist()[0] == 0.0
    assert found.high.tolist()[1] == 6.0
    assert found.mean.tolist()[0] == pytest.approx(np.mean([n % 7 for n in range(5)]))


def test_a_value_late_in_its_step_is_in_the_right_bucket() -> None:
    series = make_series({13: 1.0, 73: 2.0, 193: 4.0})
    grid = make_grid(NOW, NOW + 240, 60, 100)
    (found,) = read_buckets([series], grid)
    assert [one for one in found.mean.tolist() if one == one] == [1.0, 2.0, 4.0]  # noqa: PLR0124
    assert np.isnan(found.mean).sum() == grid.size - 3


def test_series_of_another_step_share_a_grid() -> None:
    quick = make_series({10 * n: float(n) for n in range(60)}, 10)
    (found,) = read_buckets([quick], make_grid(NOW, NOW + 600, 60, 100))
    assert found.mean[0] == pytest.approx(2.5)
    assert (found.low[0], found.high[0]) == (0.0, 5.0)


def test_a_time_without_values_is_missing() -> None:
    series = make_series({0: 1.0})
    (found,) = read_buckets([series], make_grid(NOW - 86400, NOW - 3600, 60, 100))
    assert np.isnan(found.mean).all()
    assert read_buckets([], make_grid(NOW, NOW + 60, 60, 100)) == []
