"""Answers of a store: values that no machine can have are missing."""

from __future__ import annotations

import pytest

from ccagent.errors import ConfigurationError
from ccagent.views.job.commands import _format, _make_report
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


def test_an_impossible_number_is_a_sentence_about_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_client: StoreClient, path: str, body: bytes | None = None) -> bytes:
        del body
        if path.startswith("/api/job/"):
            return b'[{"job":"5","stop":9,"nodes":["n1"]}]'
        one = f'[{{"from":{"9" * 400},"resolution":60,"data":[1.0,2.0]}}]'
        return f'{{"results":[{",".join([one] * 50)}]}}'.encode()

    monkeypatch.setattr(StoreClient, "_ask", ask)
    settings = ViewSettings(store="http://store/metrics")
    with pytest.raises(ConfigurationError, match="job 5: a number of http://store:80/metrics"):
        _make_report("5", "", settings, is_local=False)


@pytest.mark.parametrize("form", [None, "json"])
def test_an_impossible_number_of_details_is_one_too(
    monkeypatch: pytest.MonkeyPatch, form: str | None
) -> None:
    def ask(_client: StoreClient, path: str, body: bytes | None = None) -> bytes:
        if path.startswith("/api/job/"):
            cpus = f'{{"n1":{"9" * 400}}}'
            return f'[{{"job":"5","stop":99,"nodes":["n1"],"details":{{"cpus":{cpus}}}}}]'.encode()
        one = '[{"from":9,"resolution":9,"data":[1.0,2.0]}]'
        return f'{{"results":[{",".join([one] * (body or b"").count(b"metric"))}]}}'.encode()

    monkeypatch.setattr(StoreClient, "_ask", ask)
    settings = ViewSettings(store="http://store/metrics")
    report, mounts = _make_report("5", "", settings, is_local=False)
    with pytest.raises(ConfigurationError, match="job 5: a number is impossible"):
        _format("5", report, form, mounts)
