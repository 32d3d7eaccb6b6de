"""Readers of the agent `metrics` as collectors: names, base units, counters since boot."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from ccagent.agents.metrics.readers.base import NODE, Metric, Scope
from ccagent.agents.metrics.settings import READERS
from ccagent.errors import NotHereError
from ccagent.exporter import own_metrics
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Family
from ccagent.exporter.own_metrics import (
    ReaderCollector,
    make_family,
    name_labels,
    scale,
)
from ccagent.exporter.settings import list_collectors
from tests.machines.metrics import MACHINES
from tests.machines.metrics.machine import MachineNode
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode


def reader(name: str) -> Collector:
    collector = make(ReaderCollector)
    collector.name = name
    return collector


def test_cpu_has_seconds_by_hwthread_and_no_shares(tmp_path: Path) -> None:
    found = collected(reader("cpu"), TreeNode(tmp_path))
    assert found["ccagent_cpu_load"] == 0.5
    assert found["ccagent_threads"] == 345
    assert found['ccagent_cpu_user_seconds_total{hwthread="0"}'] == 10.0
    assert not [name for name in found if "ratio" in name]


def test_the_first_reading_has_all_counters_since_boot(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    numbers = " ".join(str(n) for n in (10, 1, 2048, 3, 20, 4, 4096, 5, 0, 1230, 7))
    node.write("diskstats", f"   8  0 sda {numbers}\n   8  1 sda1 {numbers}\n")
    (tmp_path / "sys/block/sda/device").mkdir(parents=True)
    assert collected(reader("disk"), node) == {
        'ccagent_disk_read_bytes_total{device="sda"}': 2048 * 512,
        'ccagent_disk_write_bytes_total{device="sda"}': 4096 * 512,
        'ccagent_disk_reads_total{device="sda"}': 10,
        'ccagent_disk_writes_total{device="sda"}': 20,
        'ccagent_disk_busy_seconds_total{device="sda"}': 1.23,
    }


def test_the_help_of_a_counter_speaks_of_no_share_and_no_sum() -> None:
    for reader_name, metric, labels, expected in (
        ("cpu", "cpu_user", ("hwthread",), "Time in user mode, including guests."),
        ("disk", "disk_busy", ("device",), "Time in which the disk had requests."),
        ("disk", "disk_read", ("device",), "Bytes read."),
        ("network", "net_bytes_in", ("device",), "Bytes received."),
    ):
        known = READERS[reader_name].metrics[metric]
        family = make_family(metric, known, labels, is_counter=True)
        assert family is not None
        assert family.help.startswith(expected)


def test_traffic_is_by_interface(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    line = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"
    node.write("net/dev", f"a\nb\n  eth0: {line}\n    lo: {line}\n")
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/lo").mkdir()
    found = collected(reader("network"), node)
    assert found['ccagent_net_in_bytes_total{device="eth0"}'] == 1
    assert found['ccagent_net_drops_out_total{device="eth0"}'] == 12
    assert not any("lo" in name.partition("{")[2] for name in found)


def test_what_the_kernel_counts(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write("stat", "ctxt 1\nprocs_running 3\nprocs_blocked 2\n")
    node.write("vmstat", "pgpgin 4\npgpgout 5\n")
    node.write("sys/fs/file-nr", "2384\t0\t9223372036854775807\n")
    node.write("net/sockstat", "sockets: used 59\n")
    node.write("net/snmp", "Tcp: CurrEstab RetransSegs InErrs\nTcp: 7 8 9\nUdp: InErrors\nUdp: 1\n")
    node.write("net/netstat", "TcpExt: ListenDrops TCPTimeouts\nTcpExt: 10 11\n")
    assert collected(reader("kernel"), node) == {
        "ccagent_procs_running": 3, "ccagent_procs_blocked": 2,
        "ccagent_page_in_bytes_total": 4096, "ccagent_page_out_bytes_total": 5120,
        "ccagent_open_files": 2384, "ccagent_sockets": 59, "ccagent_tcp_connections": 7,
        "ccagent_tcp_retransmits_total": 8, "ccagent_tcp_errors_total": 9,
        "ccagent_udp_errors_total": 1, "ccagent_tcp_listen_drops_total": 10,
        "ccagent_tcp_timeouts_total": 11,
    }  # fmt: skip


def test_a_machine_without_the_subject_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        collected(reader("pressure"), TreeNode(tmp_path))


@pytest.mark.parametrize(
    ("scope", "labels"),
    [
        (NODE, ()),
        (Scope("hwthread", "0"), ("hwthread",)),
        (Scope("memoryDomain", "1"), ("memory_domain",)),
        (Scope(stype="disk", stype_id="sda"), ("device",)),
        (Scope("socket", "0", "core", "1"), ("socket", "core")),
        (Scope(stype="a-b", stype_id="x"), ("part",)),
    ],
)
def test_labels_of_scopes(scope: Scope, labels: tuple[str, ...]) -> None:
    assert name_labels(scope)[0] == labels


def test_every_metric_of_every_reader_has_a_name_that_can_be() -> None:
    own = {family.name for family in vars(own_metrics).values() if isinstance(family, Family)}
    for name, reader_class in READERS.items():
        for metric, known in reader_class.metrics.items():
            for is_counter in (False, True):
                family = make_family(metric, known, (), is_counter=is_counter)
                if family is not None:
                    # The rules of `promtool check metrics`.
                    assert family.name.endswith("_total") == is_counter, (name, metric)
                    assert family.help, (name, metric)
                    assert not re.search("_(min|ms|us|kb|mb|percent)$|__", family.name), metric
                    assert family.name not in own


def test_every_reader_is_a_collector() -> None:
    assert list_collectors("ccagent").keys() >= READERS.keys()


@pytest.mark.parametrize("name", MACHINES)
def test_all_readers_of_a_machine_make_one_page(name: str, tmp_path: Path) -> None:
    node = MachineNode(MACHINES[name], tmp_path)
    owners: dict[str, str] = {}
    readings = 0
    for reader_name in READERS:
        collector = reader(reader_name)
        with contextlib.suppress(NotHereError):
            series = collected(collector, node)
            readings += bool(series)
            families = {one.partition("{")[0] for one in series}
            assert {owners.setdefault(family, reader_name) for family in families} <= {reader_name}
        collector.close()
    assert readings > 5


def test_units() -> None:
    def name(unit: str, *, is_counter: bool) -> str | None:
        metric = Metric(unit=unit, type="node", description="x", source="y")
        family = make_family("a", metric, (), is_counter=is_counter)
        return family.name if family else None

    assert name("%", is_counter=True) == "ccagent_a_seconds_total"
    assert name("%", is_counter=False) == "ccagent_a_ratio"
    assert name("W", is_counter=True) == "ccagent_a_joules_total"
    assert name("degC", is_counter=False) == "ccagent_a_celsius"
    assert name("1/s", is_counter=False) is None
    assert scale([64205], 0.01) == [642.05]
    assert scale([3], 1e-6) == [0.000003]
