"""Answers of a store: values that no machine can have are missing."""

from __future__ import annotations

import pytest

from ccagent.views.job.store_client import StoreClient, _in_base_unit
from ccagent.views.settings import ViewSettings


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.5, 1.5e9), (None, None), (1e300, None), (float("nan"), None), (float("inf"), None)],
)
def test_values_are_in_base_units(value: float | None, expected: float | None) -> None:
    assert _in_base_unit(value, 1e-9) == pytest.approx(expected)


def test_the_place_of_a_store_has_no_query() -> None:
    client = StoreClient(ViewSettings(store="https://store/metrics?token=secret"))
    assert client.place == "https://store:443/metrics"
