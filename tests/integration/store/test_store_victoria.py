"""The same interface in front of VictoriaMetrics: writes go through, queries are translated."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.metric_store import RunningStore
from tests.support.running import until
from tests.support.victoria_metrics import VictoriaMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEGIN = int(time.time()) // 60 * 60 - 1800
LOAD = {"metric": "load", "host": "n1"}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[VictoriaMetrics]:
    running = VictoriaMetrics(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def gateway(directory: Path, engine: VictoriaMetrics) -> RunningStore:
    directory.mkdir()
    (directory / "store.toml").write_text(
        f'engine = "victoria-metrics"\nengine-url = "http://{engine.place}"\n'
    )
    return RunningStore(directory, "--config", str(directory / "store.toml"))


def test_two_gateways_answer_what_either_wrote(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as first, gateway(tmp_path / "b", engine) as second:
        for step in range(10):
            when = BEGIN + 60 * step
            store = (first, second)[step % 2]
            text = f"load,hostname=n1,type=node value={step}.25 {when}\n" + "".join(
                f"power,hostname=n|1,type=core,type-id={core} value={core + step} {when}\n"
                for core in range(4)
            )
            assert store.write(text).status == 200
        power = {"metric": "power", "host": "n|1"}
        queries = LOAD, power, power | {"type": "core", "type-ids": ["2"]}, LOAD | {"host": "n2"}

        def answers(store: RunningStore) -> list[list[float]]:
            found = store.query(BEGIN, BEGIN + 3600, *queries)
            return [one["data"] for each in found for one in each]

        expected = [
            [step + 0.25 for step in range(10)],
            [step + 1.5 for step in range(10)],
            [step + 2.0 for step in range(10)],
        ]

        def is_answered(store: RunningStore) -> bool:
            return answers(store) == expected

        for store in (first, second):
            until(partial(is_answered, store), 30)
        found = first.query(BEGIN, BEGIN + 60, **{"for-all-nodes": ["load", "power"]})
        assert sorted(len(one) for one in found) == [0, 0, 1, 1]
        health = {"cluster": "fox", "nodes": ["n1", "n9"], "metric-names": ["load"]}
        answer = first.ask("GET", "/api/healthcheck", json.dumps(health)).json()
        assert (answer["n1"]["State"], answer["n9"]["State"]) == ("failed", "failed")
        assert answer["n1"]["HealthMetrics"] != ""


def test_bad_lines_are_named_and_missing_parts_too(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        answer = store.write(f"load,hostname=n1 value=1 {BEGIN}\nbad\n")
        assert (answer.status, answer.json()["stored"]) == (400, 1)
        assert store.ask("POST", "/api/free/?to=1", "[]").status == 501
        assert store.ask("GET", "/api/query/", "{").status == 400


def test_an_engine_that_is_gone_is_an_error(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        assert store.write(f"load,hostname=n1 value=1 {BEGIN}\n").status == 200
        engine.stop()
        answer = store.write(f"load,hostname=n1 value=1 {BEGIN}\n")
        assert (answer.status, "engine does not answer" in answer.json()["error"]) == (503, True)
