"""Large bodies are written piece by piece, with the line numbers of the whole."""

from __future__ import annotations

import asyncio
import json

import pytest

from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.responses import StoreResponse
from tests.unit.stores.metrics.support import NOW, new_ingest, new_store


def test_another_method_is_refused_without_a_body() -> None:
    store = new_store()
    api = StoreApi(store, new_ingest(store), GroupCommit(None, "write"))
    for path, method in ((b"/api/write/", b"POST"), (b"/api/debug", b"GET")):
        found = api.route(b"PUT", path)
        assert found == StoreResponse(405, b"", more=b"Allow: %b\r\n" % method)


@pytest.mark.parametrize(("is_strict", "stored"), [(False, 29_999), (True, 25_000)])
def test_a_large_body_is_written_in_pieces(is_strict: bool, stored: int) -> None:
    lines = [
        f"load,cluster=fox,hostname=n{n % 50:020},type=node value=1 {NOW}" for n in range(30_000)
    ]
    lines[25_000] = "load"
    store = new_store()
    answers: list[StoreResponse] = []

    async def write() -> None:
        api = StoreApi(store, new_ingest(store, is_strict=is_strict), GroupCommit(None, "write"))
        route = ROUTES[b"/api/write"]
        is_answered = asyncio.Event()

        def done(response: StoreResponse) -> None:
            answers.append(response)
            is_answered.set()

        api.respond(route, b"/api/write", "\n".join(lines).encode(), False, done)
        assert answers == []
        await is_answered.wait()

    asyncio.run(write())
    (answer,) = answers
    assert isinstance(answer.body, bytes)
    found = json.loads(answer.body)
    assert (found["stored"], found["bad"], found["lines"][0]["line"]) == (stored, 1, 25_001)
    assert store.series == 50
