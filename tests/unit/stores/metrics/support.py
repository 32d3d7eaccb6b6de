"""Stores in memory with a clock that tests set."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ccagent.stores.metrics.api import ROUTES, StoreApi
from ccagent.stores.metrics.checkpoints import CheckpointFormat, write_slices
from ccagent.stores.metrics.groups import StoreLevel
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_events import JobEnvelope, JobEvents
from ccagent.stores.metrics.known_keys import PureScanner, make_scanner
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.query import QueryLimits, answer
from ccagent.stores.metrics.query_request import parse_request
from ccagent.stores.metrics.responses import StoreResponse
from ccagent.stores.metrics.store import MetricStore

NOW = 1_800_000_000
METRICS = {
    "load": StoredMetric(60, "avg"),
    "power": StoredMetric(60, "sum"),
    "clock": StoredMetric(60, None),
    "fast": StoredMetric(10, "avg"),
}


@pytest.fixture(autouse=True, params=[make_scanner, PureScanner])
def each_scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a module's tests with the compiled scanner, and with the one in Python."""
    monkeypatch.setattr("ccagent.stores.metrics.ingest.make_scanner", request.param)


def write_checkpoint(
    node: StoreLevel, directory: str, form: CheckpointFormat, start: int, end: int
) -> int:
    """Write a checkpoint without pauses. Return the number of its values."""
    return sum(write_slices(node, directory, form, start, end))


def write_envelope(events: JobEvents, text: bytes) -> int:
    """Write the jobs of an envelope at once. Return their number."""
    envelope = JobEnvelope("test")
    for _ in events.take_pieces(text, envelope):
        pass
    return envelope.jobs


def new_store(now: float = NOW) -> MetricStore:
    return MetricStore(MetricCatalogue(METRICS), lambda: now)


def new_ingest(store: MetricStore, **more: Any) -> LineIngest:
    return LineIngest(store, **more)


def post(
    api: StoreApi, body: bytes, path: bytes = b"/api/write", address: str = "192.0.2.1"
) -> StoreResponse:
    """Return the response of a store to a POST of an address."""
    answers: list[StoreResponse] = []

    async def send() -> None:
        api.respond(api.restrict(ROUTES[path], b"", address), path, body, False, answers.append)
        while not answers:  # noqa: ASYNC110 - the loop itself is what is tested
            await asyncio.sleep(0)

    asyncio.run(send())
    return answers[0]


def ask(
    store: MetricStore, start: int, end: int, *queries: dict[str, Any], **more: Any
) -> list[list[dict[str, Any]]]:
    limits = more.pop("limits", QueryLimits())
    body = {"cluster": "fox", "from": start, "to": end, "queries": list(queries), **more}
    text = b"".join(answer(store, parse_request(json.dumps(body).encode()), limits))
    results: list[list[dict[str, Any]]] = json.loads(text)["results"]
    return results


def data(store: MetricStore, start: int, end: int, metric: str = "load", host: str = "n1") -> Any:
    ((one,),) = ask(store, start, end, {"metric": metric, "host": host})
    return one.get("data", [])


def line(metric: str, value: object, time: object = NOW, tags: str = "") -> str:
    return f"{metric},cluster=fox,hostname=n1{tags or ',type=node'} value={value} {time}\n"
