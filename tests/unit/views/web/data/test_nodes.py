"""Use of a cluster over time: what was read before is the same as what is read anew."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.store import MetricStore
from ccagent.views.web.data.buckets import make_grid
from ccagent.views.web.data.nodes import (
    ClusterHistory,
    HistoryReader,
    NewestValues,
    SeriesFinder,
    shown_metrics,
)

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
        assert kept.coverage == fresh.coverage
        for one, other in zip(kept[:-1], fresh[:-1], strict=True):
            np.testing.assert_allclose(one, other)


def test_the_coverage_of_a_cluster_is_that_at_the_worst_time() -> None:
    site = Site()
    site.write(NOW - 7200, 120)
    assert site.read(site.reader).coverage == {}
    # Values of the last minutes may still arrive; of half an hour they are missing.
    for minutes, expected in ((2, {}), (28, {"cpu": "1 of 2", "power": "4 of 5"})):
        for _ in range(minutes):
            site.store.write(("fox", "n2"), "cpu_idle", site.now, 50.0)
            site.store.write(("fox", "n1", "socket0"), "cpu_power", site.now, 100.0)
            for socket in ("socket0", "socket1"):
                site.store.write(("fox", "n2", socket), "cpu_power", site.now, 100.0)
            site.store.write(("fox", "n2", "accelerator0"), "acc_power", site.now, 300.0)
            site.now += 60
        for reader in (site.reader, site.make_reader(), site.reader):
            assert site.read(reader).coverage == expected
    site.now += 7200
    assert site.read(site.reader, 9000).coverage == {"cpu": "1 of 2", "power": "4 of 5"}


def test_newest_values_say_which_parts_lack_one() -> None:
    site = Site()
    site.write(NOW - 600, 10)
    for minute in range(10):
        time = NOW + 60 * minute
        for core in range(4):
            if core < 3 or minute < 3:
                site.store.write(("fox", "n2", f"hwthread{core}"), "cpu_load", time, 1.0)
        site.store.write(("fox", "n2", "socket0"), "cpu_power", time, 100.0)
    values = NewestValues(site.store, METRICS, SeriesFinder(site.store))
    (first, second) = asyncio.run(values.of_cluster("fox"))
    assert first.coverage == {}
    assert second.coverage == {"load": "3 of 4 parts", "power": "1 of 3 parts"}
    assert (second.load, second.power) == (1.0, 100.0)


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
