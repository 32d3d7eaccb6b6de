"""metrics: tasks, paging, open files and the network's protocols, on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.metrics.readers.base import Count, Gauge
from ccagent.agents.metrics.readers.kernel import KernelReader
from ccagent.errors import NotHereError
from ccagent.machine.node import Node
from tests.support.tree import TreeNode


def test_it_reads_nothing_unless_a_metric_is_wanted(tmp_path: Path) -> None:
    reader = KernelReader()
    reader.wanted = frozenset({"cpu_load"})
    assert list(reader.read(Node(root=str(tmp_path), hostname="n", cluster="c"))) == []


def test_counters_and_gauges(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write("stat", "procs_running 3\nprocs_blocked 2\n")
    node.write("net/snmp", "Tcp: CurrEstab RetransSegs\nTcp: 7 8\n")
    values = list(KernelReader().read(node))
    assert Gauge("procs_blocked", 2) in values
    assert Gauge("tcp_connections", 7) in values
    assert Count("tcp_retransmits", 8) in values


def test_a_damaged_file_costs_its_own_metrics(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write("net/snmp", "Tcp: CurrEstab\nTcp: seven\n")
    node.write("vmstat", "pgpgin 1\n")
    reader = KernelReader()
    assert Count("page_in", 1024) in list(reader.read(node))
    assert any("/proc/net/snmp" in error for error in reader.errors)


def test_a_machine_without_proc_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        list(KernelReader().read(Node(root=str(tmp_path), hostname="n", cluster="c")))
