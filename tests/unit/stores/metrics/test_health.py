"""The health check: requests as cc-backend writes them."""

from __future__ import annotations

import json

import pytest

from ccagent.stores.metrics.query_answers import check_health, parse_health_request
from tests.unit.stores.metrics.support import NOW, new_store


@pytest.mark.parametrize(
    ("request_text", "states"),
    [
        ('{"cluster": "fox", "nodes": ["n1"], "metric-names": ["load"]}', {"n1": "full"}),
        ('{"cluster": "fox", "nodes": ["n1"], "metric-names": null}', {"n1": "full"}),
        ('{"cluster": "fox", "nodes": null, "metric-names": ["load"]}', {}),
    ],
)
def test_an_empty_list_may_be_null(request_text: str, states: dict[str, str]) -> None:
    store = new_store()
    store.write(("fox", "n1"), "load", NOW, 1.0)
    text = b"".join(check_health(store, parse_health_request(request_text.encode())))
    assert {node: found["State"] for node, found in json.loads(text).items()} == states
