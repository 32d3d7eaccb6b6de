"""Use of a cluster over time: what was read before is the same as what is read anew."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ccagent.stores.metrics.catalogue import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.store import MetricStore
from ccagent.views.web.data.buckets import make_grid
from ccagent.views.web.data.nodes import ClusterHistory, HistoryReader, SeriesFinder, shown_metrics

NOW = 1_800_000_000
METRICS = shown_metrics("clustercockpit")


class Site:
    def __init__(self) -> None:
        self.now = NOW
        self.store = MetricStore(MetricCatalogue({"*": StoredMetric(60, "avg")}), lambda: self.now)
        self.reader = self.make_reader()

    def make_reader(self) -> HistoryReader:
        return HistoryReader(self.store, METRICS, SeriesFinder(self.store))

    def write(self, begin: int, minutes: int) -> None:
        for time in range(begin, begin + 60 * minutes, 60):
            for node, idle in (("n1", 20.0), ("n2", 60.0)):
                self.store.write(("fox", node), "cpu_idle", time, idle + time % 7)
                self.store.write(("fox", node), "mem_used", time, 2.0)
                self.store.write(("fox", node, "socket0"), "cpu_power", time, 100.0)
                self.store.write(("fox", node, "socket1"), "cpu_power", time, 50.0)
            card = ("fox", "n2", "accelerator0")
            self.store.write(card, "acc_utilization", time, 30.0)
            self.store.write(card, "acc_power", time, 300.0)

    def read(self, reader: HistoryReader, seconds: int = 7200) -> ClusterHistory:
        grid = make_grid(self.now - seconds, self.now, 60, 30)
        return asyncio.run(reader.read("fox", grid))


def test_sums_and_means_of_a_cluster() -> None:
    site = Site()
    site.write(NOW - 7200, 120)
    found = site.read(site.reader)
    assert found.memory[5] == pytest.approx(4e9)
    assert found.power[5] == pytest.approx(600.0)
    assert found.gpu[5] == 30.0
    assert 50 < found.cpu[5] < 62


def test_what_was_kept_is_what_is_read_again() -> None:
    site = Site()
    site.write(NOW - 7200, 120)
    site.read(site.reader)
    for _ in range(8):
        site.write(site.now, 1)
        site.now += 60
        kept, fresh = site.read(site.reader), site.read(site.make_reader())
        for one, other in zip(kept, fresh, strict=True):
            np.testing.assert_allclose(one, other)


def test_late_values_are_seen_after_a_while() -> None:
    site = Site()
    site.write(NOW - 3600, 60)
    assert np.isnan(site.read(site.reader).memory[3])
    site.write(NOW - 7200, 60)
    site.now += 60
    assert np.isnan(site.read(site.reader).memory[3])
    site.now += 600
    assert site.read(site.reader).memory[3] == pytest.approx(4e9)


def test_another_time_is_read_whole() -> None:
    site = Site()
    site.write(NOW - 7200, 120)
    site.read(site.reader)
    earlier = make_grid(NOW - 14400, NOW - 7200, 60, 30)
    assert np.isnan(asyncio.run(site.reader.read("fox", earlier)).cpu).all()
    assert not np.isnan(site.read(site.reader).cpu[2:-2]).any()


def test_a_cluster_without_nodes_has_no_values() -> None:
    site = Site()
    assert np.isnan(site.read(site.reader).cpu).all()
