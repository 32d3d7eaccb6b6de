"""A day of 5 nodes, or 20: random queries are answered as the specification says."""

from __future__ import annotations

import http.client
import random
import time
from typing import TYPE_CHECKING

from tests.support.effort import IS_NIGHTLY
from tests.support.metric_store import RunningStore
from tests.support.store_oracle import Oracle, OracleMetric, same

if TYPE_CHECKING:
    from pathlib import Path

NODES, QUERIES = (20, 2000) if IS_NIGHTLY else (2, 200)
METRICS, STEPS = 80, 1440
BEGIN = int(time.time()) // 60 * 60 - 86400
AGGREGATIONS = ("avg", "sum", None)


def path(node: int, metric: int) -> tuple[str, ...]:
    """The first 48 metrics are those of a node, the others of its components."""
    host = ("fox", f"n{node}")
    return host if metric < 48 else (*host, f"core{metric % 4}")


def name(metric: int) -> str:
    return f"m{metric if metric < 48 else 48 + (metric - 48) // 4}"


def tags(metric: int) -> str:
    return "type=node" if metric < 48 else f"type=core,type-id={metric % 4}"


def test_random_queries_of_a_recorded_day(tmp_path: Path) -> None:
    random.seed(20)
    metrics = {f"m{n}": OracleMetric(60, AGGREGATIONS[n % 3]) for n in range(56)}
    (tmp_path / "store.toml").write_text(
        'strict = "reference"\n'
        + "".join(
            f'[metrics.{metric}]\nfrequency = "60s"\n'
            + (f'aggregation = "{one.aggregation}"\n' if one.aggregation else "")
            for metric, one in metrics.items()
        )
    )
    oracle = Oracle(metrics)
    with RunningStore(tmp_path / "store", "--config", str(tmp_path / "store.toml")) as store:
        connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=60)
        # Nodes lie idle for a while, tick a little early or late, and some messages come late.
        for node in range(NODES):
            begin = BEGIN + random.randrange(30)
            steps = [step for step in range(STEPS) if not 300 <= step < 300 + 5 * node]
            late = steps.pop(100), steps.pop(700)
            lines = [f"{name(n)},cluster=fox,hostname=n{node},{tags(n)}" for n in range(METRICS)]
            for step in (*steps, *late):
                when = begin + 60 * step + random.choice((0, 0, 0, -7, 9))
                values = [round(random.uniform(0, 1e4), 3) for _ in range(METRICS)]
                body = "".join(
                    f"{line} value={value} {when}\n"
                    for line, value in zip(lines, values, strict=True)
                )
                connection.request("POST", "/api/write", body)
                assert connection.getresponse().read() == b""
                for n, value in enumerate(values):
                    oracle.write(path(node, n), name(n), when, value)
        connection.close()
        for _ in range(QUERIES // 20):
            start = BEGIN + random.randrange(-7200, 86400)
            end = start + random.choice((60, 3600, 20_000, 90_000))
            queries = [
                {"metric": f"m{random.randrange(56)}", "host": f"n{random.randrange(NODES)}"}
                for _ in range(20)
            ]
            for query, found in zip(queries, store.query(start, end, *queries), strict=True):
                expected = oracle.query([("fox", query["host"])], query["metric"], start, end)
                assert same(expected, found), (query, start, end)
