"""Migrations as files."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.schema import COLUMNS, KINDS, MIGRATIONS, fill_migration, has_timescale
from ccagent.stores.jobstats.settings import SeriesTableSettings

SETTINGS = SeriesTableSettings()


def test_numbers_are_in_a_row_and_every_engine_has_each() -> None:
    found = MIGRATIONS.list_all()
    numbers = sorted({one.number for one in found})
    assert numbers == list(range(1, len(numbers) + 1))
    for _, group in groupby(found, lambda one: one.number):
        assert {one.engine for one in group} in ({""}, {"plain", "timescaledb"})


def test_tables_have_a_column_for_each_counter_and_its_delta() -> None:
    text = MIGRATIONS.list_all()[0].text
    for kind in KINDS:
        match = re.search(rf"CREATE TABLE {kind} \((.*?)\n\)", text, re.DOTALL)
        assert match is not None
        columns = re.findall(r"^    (\w+) numeric", match[1], re.MULTILINE)
        deltas = [f"{name}_delta" for name in COLUMNS[kind]]
        assert columns == [*deltas, *COLUMNS[kind]]


def test_partitions_are_for_databases_without_timescaledb() -> None:
    first = MIGRATIONS.list_all()[0]
    plain = fill_migration(first, SETTINGS, is_timescale=False)
    assert plain.count("\n) PARTITION BY RANGE (timestamp);") == 2
    assert fill_migration(first, SETTINGS, is_timescale=True).count("\n) ;") == 2


def test_hypertables_are_for_timescaledb() -> None:
    one, sums, last = [one for one in MIGRATIONS.list_all() if one.engine == "timescaledb"]
    text = fill_migration(one, SETTINGS, is_timescale=True)
    for kind in KINDS:
        assert (
            f"create_hypertable('{kind}', 'timestamp', "
            "chunk_time_interval => INTERVAL '86400 seconds')" in text
        )
        assert f"CREATE MATERIALIZED VIEW {kind}_hourly" in text
        assert all(f"sum({name}_delta) AS {name}" in text for name in COLUMNS[kind])
    assert last.text.count("timescaledb.compress_segmentby = ''") == 4
    text = fill_migration(sums, SETTINGS, is_timescale=True)
    assert text.count("_sums', 'timestamp', chunk_time_interval => INTERVAL '86400 seconds')") == 2


def test_sums_have_a_column_for_each_delta() -> None:
    (text,) = [one.text for one in MIGRATIONS.list_all() if one.name == "sums"]
    for kind in KINDS:
        match = re.search(rf"CREATE TABLE {kind}_sums \((.*?)\n\)", text, re.DOTALL)
        assert match is not None
        columns = re.findall(r"^    (\w+) numeric NOT NULL", match[1], re.MULTILINE)
        assert columns == [f"{name}_delta" for name in COLUMNS[kind]]


class Extensions:
    """A connection to a database that has an extension."""

    def __init__(self, *found: str) -> None:
        self.found = found

    def execute(self, _query: str) -> Extensions:
        return self

    def fetchone(self) -> tuple[str, ...] | None:
        return self.found or None


def with_extension(*found: str) -> Any:
    return Extensions(*found)


def test_timescaledb_counts_from_the_first_release_that_stores_late_rows() -> None:
    assert not has_timescale(with_extension())
    assert not has_timescale(with_extension("apache", "2.27.2"))
    assert has_timescale(with_extension("timescale", "2.11.0"))
    assert has_timescale(with_extension("timescale", "3.0.0-dev"))
    with pytest.raises(ConfigurationError, match="TimescaleDB 2.10.3 stores no late rows"):
        has_timescale(with_extension("timescale", "2.10.3"))
