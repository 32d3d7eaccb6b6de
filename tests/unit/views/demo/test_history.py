"""The simulated cluster goes on where its past ends."""

from __future__ import annotations

import numpy as np

from ccagent.records.line_protocol.decoding import decode_lines
from ccagent.stores.metrics.catalogue import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.store import MetricStore
from ccagent.views.demo.history import CLUSTER, EVERY, SimulatedCluster

NOW = 1_800_000_000


def make() -> tuple[SimulatedCluster, MetricStore]:
    store = MetricStore(MetricCatalogue({"*": StoredMetric(10, "avg")}), lambda: NOW + 600)
    cluster = SimulatedCluster(NOW, 4)
    cluster.fill(store, 3600)
    return cluster, store


def test_the_next_values_join_the_series_of_the_past() -> None:
    cluster, store = make()
    before = store.series
    ingest = LineIngest(store)
    for name, body in cluster.lines(cluster.now):
        assert ingest.write(body, CLUSTER).bad_count == 0
        group, column = store.root.find((CLUSTER, name)).series["cpu_user"]  # type: ignore[union-attr]
        values = np.empty(2)
        group.read(column, group.slot(cluster.now) - 1, 2, values)
        assert group.frequency == EVERY
        assert not np.isnan(values).any()
    assert store.series == before


def test_its_lines_are_line_protocol() -> None:
    cluster, _ = make()
    for name, body in cluster.lines(cluster.now):
        for line in decode_lines(body.decode(), "s"):
            assert line.tags["hostname"] == name
