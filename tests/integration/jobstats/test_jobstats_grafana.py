"""The queries of Grafana's dashboard, with the macros as Grafana's PostgreSQL source fills them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.integration.jobstats.test_jobstats_live import at, fill
from tests.support.jobstats_store import RunningJobstatsStore
from tests.support.paths import ROOT
from tests.support.postgres import PostgresServer

DASHBOARD: Any = json.loads((ROOT / "packaging/examples/grafana-lustre-jobstats.json").read_text())
QUERIES = {panel["title"]: panel["targets"][0]["rawSql"] for panel in DASHBOARD["panels"]}

RATES = {
    "Bytes written": ("fs-OST0000", 1000),
    "Mean time of reads and writes": ("fs-OST0000", 500),
    "Metadata operations": ("fs-MDT0000", 753),
    "Metadata operations of the job": ("open", 502),
}
LARGEST = {"Jobs by bytes": "7", "Jobs by metadata operations": "42"}


def expand(query: str) -> str:
    """Return a query as Grafana sends it: pkg/tsdb/grafana-postgresql-datasource/macros.go."""
    query = re.sub(r"\$__timeFilter\((.*?)\)", rf"\1 BETWEEN '{at(0)}' AND '{at(122)}'", query)
    query = re.sub(
        r"\$__timeGroupAlias\((.*?), *\$__interval\)",
        r'floor(extract(epoch from \1)/120)*120 AS "time"',
        query,
    )
    for name, value in (("$__interval_ms", "120000"), ("${file_system}", "fs"), ("${job}", "42")):
        query = query.replace(name, value)
    assert "$" not in query.replace("-[^-]*$", "")
    return query


@pytest.fixture(scope="module")
def connection(
    server: PostgresServer, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[psycopg.Connection[Any]]:
    database = server.make_database(template)
    with RunningJobstatsStore(tmp_path_factory.mktemp("store"), "--database", database) as store:
        fill(store)
        with psycopg.connect(database, autocommit=True) as opened:
            yield opened


@pytest.mark.parametrize("title", QUERIES)
def test_a_panel_has_data(connection: psycopg.Connection[Any], title: str) -> None:
    rows = connection.execute(expand(QUERIES[title]).encode()).fetchall()
    if title in {"Bytes read", "Bytes of the job"}:
        assert {value for *_, value in rows} <= {0}
    elif title in RATES:
        assert RATES[title] in {(metric, round(value)) for _, metric, value in rows}
    else:
        assert rows[0][0] == LARGEST[title]


def test_the_variable_lists_file_systems(connection: psycopg.Connection[Any]) -> None:
    (query,) = (one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query")
    assert connection.execute(query.encode()).fetchall() == [("fs",)]
