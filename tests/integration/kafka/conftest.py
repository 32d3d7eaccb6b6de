"""A Kafka cluster for all tests of a worker, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_cluster import Cluster, Connections


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    shared_cluster.forget()
    return shared_cluster


@pytest.fixture
def connect() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()
