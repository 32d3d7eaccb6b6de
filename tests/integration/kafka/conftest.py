"""A Kafka cluster for all tests of a worker, emptied before each."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.support.kafka_cluster import Cluster, Connections


@functools.cache
def _open_cluster() -> Cluster:
    # Never destroyed: librdkafka crashes now and then when it destroys a mock cluster whose
    # clients have just left. The cluster ends with the process.
    return Cluster()


@pytest.fixture(scope="session")
def shared_cluster() -> Cluster:
    return _open_cluster()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.forget()
    return shared_cluster


@pytest.fixture
def connect() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()
