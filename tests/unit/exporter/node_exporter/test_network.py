"""netclass."""

from __future__ import annotations

from pathlib import Path

from ccagent.exporter.node_exporter.network import NetclassCollector, read_softnet
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode


def test_exchanged_names_exchange_the_values(tmp_path: Path) -> None:
    """The files of interfaces stay open, and an open file is not that of a path any more."""
    devices = tmp_path / "sys/class/net"
    for name, mtu in (("eth0", 1500), ("eth1", 9000)):
        (devices / name).mkdir(parents=True)
        (devices / name / "mtu").write_text(f"{mtu}\n")
    node, collector = TreeNode(tmp_path), make(NetclassCollector)
    assert _mtu(collected(collector, node)) == {"eth0": 1500, "eth1": 9000}
    (devices / "eth0").rename(devices / "kept")
    (devices / "eth1").rename(devices / "eth0")
    (devices / "kept").rename(devices / "eth1")
    assert _mtu(collected(collector, node)) == {"eth0": 9000, "eth1": 1500}


def test_an_interface_that_is_switched_off(tmp_path: Path) -> None:
    place = tmp_path / "sys/class/net/eth0"
    place.mkdir(parents=True)
    (place / "mtu").write_text("1500\n")
    for flags, state in (("0x1003", "up"), ("0x1002", "down")):
        (place / "flags").write_text(f"{flags}\n")
        found = collected(make(NetclassCollector), TreeNode(tmp_path))
        assert [name for name in found if f'adminstate="{state}"' in name]


def _mtu(found: dict[str, float]) -> dict[str, float]:
    prefix = 'node_network_mtu_bytes{device="'
    return {
        series.removeprefix(prefix).removesuffix('"}'): value
        for series, value in found.items()
        if series.startswith(prefix)
    }


def test_softnet_of_an_old_kernel_has_the_online_cpus(tmp_path: Path) -> None:
    """As with SMT switched off on POWER9, which leaves every fourth hwthread online."""
    node = TreeNode(tmp_path)
    lines = [f"{number:08x}" + " 00000000" * 10 + "\n" for number in (10, 20, 30)]
    node.write("net/softnet_stat", "".join(lines))
    node.write("../sys/devices/system/cpu/online", "0,4,8\n")
    found = collected(make(read_softnet), node)
    name = "node_softnet_processed_total"
    assert [found[f'{name}{{cpu="{cpu}"}}'] for cpu in (0, 4, 8)] == [10, 20, 30]
    node.write("../sys/devices/system/cpu/online", "0-9\n")
    assert f'{name}{{cpu="2"}}' in collected(make(read_softnet), node)
