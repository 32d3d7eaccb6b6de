"""An InfluxDB for all tests of a worker, with an empty database for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.influxdb import Influx, running_influxd


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Influx]:
    with running_influxd(tmp_path_factory.mktemp("influxdb")) as influx:
        yield influx


@pytest.fixture
def influx(running: Influx) -> Influx:
    running.query("DROP DATABASE x")
    running.query("CREATE DATABASE x")
    return running
