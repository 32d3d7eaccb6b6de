"""The same interface in front of VictoriaMetrics: writes go through, queries are translated."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from tests.support.metric_store import RunningStore
from tests.support.nats_server import NatsServer
from tests.support.running import until
from tests.support.upgrades import PREFACE, ask_for_upgrades, ask_with_curl, statuses
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


def gateway(directory: Path, engine: VictoriaMetrics, text: str | None = None) -> RunningStore:
    """Start a gateway; with a text of its configuration it has a table of jobs."""
    directory.mkdir()
    (directory / "store.toml").write_text(
        f'engine = "victoria-metrics"\nengine-url = "http://{engine.place}"\n{text or ""}'
    )
    data = () if text is not None else ("--data", "")
    return RunningStore(directory, "--config", str(directory / "store.toml"), *data)


def test_the_gateway_ignores_upgrades(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        url = f"http://127.0.0.1:{store.port}/api/write?cluster=fox"
        text = f"load,hostname=n1 value=3 {BEGIN}"
        assert ask_with_curl(url, "--data-binary", text) == 200
        found = ask_for_upgrades(store.port, b"POST /api/write?cluster=fox HTTP/1.1", text.encode())
        assert found == [[200, 404]] * 8
        assert statuses(store.port, PREFACE) == [400]
        until(lambda: store.query(BEGIN, BEGIN + 60, LOAD)[0][0].get("data") == [3.0], 30)
        assert b"\nccagent_store_points_total 9\n" in store.ask("GET", "/metrics").body


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


def test_a_range_before_the_values_is_padded_as_from_memory(
    tmp_path: Path, engine: VictoriaMetrics
) -> None:
    with gateway(tmp_path / "a", engine) as store, RunningStore(tmp_path / "b") as embedded:
        lines = "".join(
            f"load,cluster=fox,hostname=n1,type=core,type-id={core} value=1 {BEGIN + 60 * step}\n"
            for core in range(2)
            for step in range(5)
        )
        assert (store.write(lines).status, embedded.write(lines).status) == (200, 200)
        core = LOAD | {"type": "core", "type-ids": ["1", "9"]}
        until(lambda: store.query(BEGIN, BEGIN + 60, LOAD)[0] != [], 60)
        for begin, end in ((BEGIN - 7200, BEGIN - 3600), (BEGIN - 600, BEGIN)):
            expected = embedded.query(begin, end, LOAD, core)
            assert [len(found) for found in expected] == [1, 1]
            until(lambda: store.query(begin, end, LOAD, core) == expected, 60)  # noqa: B023


def test_components_present_for_a_part_are_counted_as_in_memory(
    tmp_path: Path, engine: VictoriaMetrics
) -> None:
    """One card starts late, another ends early; without a rule no node can be aggregated."""
    text = '[metrics.load]\nfrequency = "60s"\naggregation = "sum"\n'
    text += '[metrics.clock]\nfrequency = "60s"\n'
    lines = "".join(
        f"{metric},cluster=fox,hostname={host},type=accelerator,type-id={card} value={card + 1}"
        f" {BEGIN + 60 * step}\n"
        for metric, host in (("load", "n1"), ("load", "n2"), ("clock", "n1"))
        for card, steps in enumerate((range(6), range(6), range(2, 6), range(4)))
        for step in steps
        if host == "n1" or card < 2
    )
    table = {"cluster": "fox", "from": BEGIN, "to": BEGIN + 360, "metrics": ["load", "clock"]}
    queries = [LOAD, LOAD | {"host": "n2"}, LOAD | {"metric": "clock"}]

    def answers(store: RunningStore) -> Any:
        rows = store.ask("GET", "/api/query/?version=2", json.dumps(table)).json()
        return store.query(BEGIN, BEGIN + 360, *queries), rows

    (tmp_path / "memory.toml").write_text(text)
    memory = "--config", str(tmp_path / "memory.toml")
    with (
        gateway(tmp_path / "a", engine, text) as store,
        gateway(tmp_path / "b", engine, f'strict = "reference"\n{text}') as strict,
        RunningStore(tmp_path / "c", *memory) as embedded,
    ):
        assert (store.write(lines).status, embedded.write(lines).status) == (200, 200)
        expected = answers(embedded)
        until(lambda: answers(store) == expected, 60)
        ((card,), (whole,), (clock,)), rows = answers(store)
        assert (card["data"], card["coverage"]) == ([7, 7, 10, 10, 6, 6], "3 of 4")
        assert ("coverage" in whole, clock["error"]) == (False, "invalid aggregation")
        said = {(one["metric"], one["host"]): one for one in rows["series"]}
        assert said["load", "n1"]["coverage"] == "3 of 4"
        assert said["clock", "n1"]["error"] == "invalid aggregation"
        assert said["load", "n2"]["values"] == [3] * 6
        ((card,), (whole,), _), _ = answers(strict)
        assert "align" in card["error"]
        assert whole["data"] == [3] * 6


def test_mounts_of_a_job_stay_apart(tmp_path: Path, engine: VictoriaMetrics) -> None:
    tags = "hostname=n1,type=node,stype=job,stype-id=7,fstype=nfs4"
    labels = 'cluster="fox",hostname="n1",type="node",stype="job",stype_id="7",fstype="nfs4"'
    query = {"metric": "job_fs_read", "host": "n1", "type": "job", "type-ids": ["7"]}
    ids = [f"/{name},fstype=nfs4" for name in "abc"]
    with gateway(tmp_path / "a", engine) as store:
        lines = [
            f"job_fs_read,{tags},mountpoint=/{name} value={n} {BEGIN}"
            for n, name in enumerate("ab")
        ]
        assert store.write("\n".join(lines)).status == 200
        # An agent may also send to the engine itself.
        text = f'job_fs_read{{{labels},mountpoint="/c"}} 2 {BEGIN}000\n'
        url = f"http://{engine.place}/api/v1/import/prometheus"
        urlopen(url, text.encode(), timeout=60).close()

        def answers() -> list[list[float]]:
            parts = {"subtype": "mountpoint", "subtype-ids": ids}
            (found,) = store.query(BEGIN, BEGIN + 60, query | parts)
            return [one["data"] for one in found]

        until(lambda: answers() == [[0.0], [1.0], [2.0]], 30)


def test_bad_lines_are_named_and_missing_parts_too(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        answer = store.write(f"load,hostname=n1 value=1 {BEGIN}\nbad\n")
        assert (answer.status, answer.json()["stored"]) == (400, 1)
        for method, path, reason in (
            ("POST", "/api/free/?to=1", "releases values by its own retention"),
            ("GET", "/api/debug/", "has no buffers"),
            ("POST", "/api/jobs/", "no table of jobs"),
            ("GET", "/api/job/?job=1", "no table of jobs"),
        ):
            answer = store.ask(method, path, "[]")
            assert (answer.status, reason in answer.json()["error"]) == (501, True), path
        assert b"ccagent_store_points_total 1\n" in store.ask("GET", "/metrics").body
        assert store.ask("GET", "/api/query/", "{").status == 400


def test_an_engine_that_is_gone_is_an_error(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        assert store.write(f"load,hostname=n1 value=1 {BEGIN}\n").status == 200
        engine.stop()
        answer = store.write(f"load,hostname=n1 value=1 {BEGIN}\n")
        assert (answer.status, "engine does not answer" in answer.json()["error"]) == (503, True)


def test_names_that_prometheus_does_not_know(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        lines = [f'{metric},hostname=n"1\\\\x value=1.5 {BEGIN}' for metric in ("a.b-c", "load")]
        assert store.write("\n".join(lines)).status == 200
        queries = [{"metric": metric, "host": 'n"1\\\\x'} for metric in ("a.b-c", "load")]

        def answers() -> list[list[float]]:
            return [
                one["data"] for each in store.query(BEGIN, BEGIN + 60, *queries) for one in each
            ]

        until(lambda: answers() == [[1.5], [1.5]], 30)


def test_tables_of_the_engine(tmp_path: Path, engine: VictoriaMetrics) -> None:
    with gateway(tmp_path / "a", engine) as store:
        for node in range(3):
            store.write(f"load,hostname=n{node} value={node} {BEGIN}\n")
        body = {"cluster": "fox", "from": BEGIN, "to": BEGIN + 60, "metrics": ["load"]}

        def ask(**more: object) -> str:
            text = json.dumps(body | {"format": "csv"} | more)
            return store.ask("POST", "/api/query?version=2", text).body.decode()

        until(lambda: ask().count("\n") == 4, 30)
        assert ask(over="nodes") == f"time,metric,min,mean,max\n{BEGIN},load,0.0,1.0,2.0\n"
        assert ask(hosts=["n2"]).splitlines()[1:] == [f"{BEGIN},load,n2,2.0"]


def test_streams_and_jobs_come_through_a_gateway(tmp_path: Path, engine: VictoriaMetrics) -> None:
    server = NatsServer(tmp_path / "nats")
    try:
        server.ask(add_stream)
        text = (
            f'[nats]\nurl = "{server.url}"\n[[nats.subscriptions]]\ncluster = "fox"\n'
            'subject = "fox"\nstream = "fox"\n'
        )
        with gateway(tmp_path / "a", engine, text) as store:
            event = {"jobId": 7, "cluster": "fox", "startTime": BEGIN, "user": "u",
                     "resources": [{"hostname": "n1"}]}  # fmt: skip
            quoted = json.dumps(event).replace('"', '\\"')
            bodies = [f"load,hostname=n1 value={step} {BEGIN + 60 * step}\n" for step in range(5)]
            bodies.append(f'job,function=start_job event="{quoted}" {BEGIN}\n')
            server.ask(partial(publish, bodies))
            body = json.dumps({"cluster": "fox", "job": 7, "queries": [{"metric": "load"}]})

            def values() -> list[float]:
                answer = store.ask("GET", "/api/query/", body)
                results = answer.json().get("results") if answer.status == 200 else None
                return results[0][0]["data"] if results and results[0] else []

            until(lambda: values() == [0.0, 1.0, 2.0, 3.0, 4.0], 30)
            until(lambda: server.ask(count_unacknowledged) == 0, 30)
            # A footprint is read out of the engine some time after the end.
            stop = {"jobId": 7, "cluster": "fox", "startTime": BEGIN, "stopTime": BEGIN + 300}
            quoted = json.dumps(stop).replace('"', '\\"')
            store.write(f'job,function=stop_job event="{quoted}" {BEGIN}\n')

            def footprint() -> object:
                (job,) = store.ask("GET", "/api/job?job=7").json()
                return job["footprint"]

            until(lambda: footprint() == {"load": {"avg": 2.0, "min": 0.0, "max": 4.0}}, 30)
    finally:
        server.kill()


async def add_stream(client: Any, stream: Any) -> None:
    del client
    await stream.add_stream(name="fox", subjects=["fox"])


async def publish(bodies: list[str], client: Any, stream: Any) -> None:
    del client
    for body in bodies:
        await stream.publish("fox", body.encode())


async def count_unacknowledged(client: Any, stream: Any) -> int:
    del client
    found = await stream.consumer_info("fox", "ccagent-store")
    return int(found.num_ack_pending) + int(found.num_pending)
