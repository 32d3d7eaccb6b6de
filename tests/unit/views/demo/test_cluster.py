"""The simulated cluster goes on where its past ends."""

from __future__ import annotations

import numpy as np

from ccagent.stores.metrics.catalogue import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.store import MetricStore
from ccagent.views.demo.cluster import CLUSTER, EVERY, SimulatedCluster

NOW = 1_800_000_000


def test_the_next_values_join_the_series_of_the_past() -> None:
    store = MetricStore(MetricCatalogue({"*": StoredMetric(10, "avg")}), lambda: NOW + 600)
    cluster = SimulatedCluster(NOW, 4)
    cluster.fill(store, 3600)
    before = store.series
    assert len(list(cluster.go_on(store, cluster.now))) == 4
    for node in cluster.nodes:
        group, column = store.root.find((CLUSTER, node.name)).series["cpu_user"]  # type: ignore[union-attr]
        values = np.empty(2)
        group.read(column, group.slot(cluster.now) - 1, 2, values)
        assert group.frequency == EVERY
        assert not np.isnan(values).any()
    assert store.series == before
