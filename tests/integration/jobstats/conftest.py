"""A PostgreSQL for all tests of a worker, with an empty database for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ccagent.stores.jobstats.schema import migrate
from ccagent.stores.jobstats.settings import SeriesTableSettings
from tests.support.jobstats_store import RunningJobstatsStore
from tests.support.postgres import PostgresServer, has_timescale

_SUMMED = """
INSERT INTO summed_times
SELECT generate_series(last - INTERVAL '8 days', last, INTERVAL '15 minutes')
FROM date_bin('15 minutes', now(), TIMESTAMPTZ 'epoch') AS last
"""


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture(scope="session")
def template(server: PostgresServer) -> str:
    """The name of a database with the schema.

    The sums of the last week are there, all of nothing: each store would make 672 quarters of them.
    """
    url = server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, SeriesTableSettings())
        connection.execute(_SUMMED)
        name: str = connection.info.dbname
    return name


@pytest.fixture
def database(server: PostgresServer, template: str) -> str:
    return server.make_database(template)


@pytest.fixture(scope="session")
def timescale_server() -> Iterator[PostgresServer]:
    """A separate server: TimescaleDB's workers would disturb copies of databases."""
    if not has_timescale():
        pytest.skip("TimescaleDB is not installed for this PostgreSQL")
    with PostgresServer(has_timescale=True) as running:
        yield running


@pytest.fixture
def timescale_database(timescale_server: PostgresServer) -> str:
    url = timescale_server.make_database("template0")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION timescaledb")
    return url


@pytest.fixture
def store(tmp_path: Path, database: str) -> Iterator[RunningJobstatsStore]:
    with RunningJobstatsStore(tmp_path / "store", "--database", database) as running:
        yield running
