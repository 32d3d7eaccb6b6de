"""Every collector on machines whose files hold anything: none fails otherwise than foreseen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import CcagentError
from ccagent.exporter.collector import Collector, make_collectors
from ccagent.exporter.exposition import SampleEncoder, join_text
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.machine.node import Node
from tests.support.exposition import parse
from tests.support.tree import TreeNode
from tests.unit.exporter.test_job_metrics import add_v1, add_v2

FILES = {
    "proc/stat": "cpu0 1 2 3 4 5 6 7 8 9 10\nintr 1 2\nctxt 3\nbtime 4\nprocs_running 1\n",
    "proc/meminfo": "MemTotal: 100 kB\nActive(anon): 5 kB\nHugePages_Total: 0\n",
    "proc/vmstat": "pgfault 5\noom_kill 0\npgpgin 3\n",
    "proc/diskstats": "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
    "proc/net/dev": "a|b\nc|d\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
    "proc/net/netstat": "TcpExt: ListenDrops TCPTimeouts\nTcpExt: 1 2\n",
    "proc/net/snmp": "Tcp: InSegs CurrEstab\nTcp: 3 -1\n",
    "proc/net/snmp6": "Ip6InOctets                    \t128\n",
    "proc/net/sockstat": "sockets: used 59\nTCP: inuse 34 orphan 1 tw 2 alloc 5 mem 6\n",
    "proc/net/softnet_stat": "0000000a 00000000 00000001 0 0 0 0 0 0 0 0 0 00000000\n",
    "proc/net/arp": "IP address HW\n192.0.2.1 0x1 0x2 02:fc:00:00:00:05 * eth0\n",
    "proc/net/udp": "sl local\n 0: 0100007F:1 00000000:0 07 00000001:00000002 00:0 0\n",
    "proc/schedstat": "version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 1 2 3\n",
    "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    "proc/sys/fs/file-nr": "2384\t0\t9223372036854775807\n",
    "proc/net/rpc/nfs": "net 0 0 0 0\nrpc 5 1 5\nproc3 22" + " 7" * 22 + "\n",
    "proc/self/mountinfo": "27 1 254:0 / / rw - ext4 /dev/vda rw\n",
    "proc/sys/net/netfilter/nf_conntrack_count": "1\n",
    "proc/sys/net/netfilter/nf_conntrack_max": "9\n",
    "proc/net/stat/nf_conntrack": "entries found drop\n0000000a 00000001 0000000f\n",
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
    "sys/class/net/eth0/mtu": "1500\n",
    "sys/class/net/eth0/speed": "-1\n",
    "sys/class/net/eth0/flags": "0x1003\n",
    "sys/class/net/bonding_masters": "eth0\n",
    "sys/class/hwmon/hwmon0/name": "coretemp\n",
    "sys/class/hwmon/hwmon0/temp1_input": "45000\n",
    "sys/class/hwmon/hwmon0/temp1_label": "Core 0\n",
    "sys/class/powercap/intel-rapl:0/name": "package-0\n",
    "sys/class/powercap/intel-rapl:0/energy_uj": "123\n",
    "sys/class/thermal/thermal_zone0/temp": "40000\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "5\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "1\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
    "sys/class/power_supply/PS1/online": "1\n",
}  # fmt: skip


def write(root: Path, name: str, content: bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    for name, content in FILES.items():
        write(tmp_path, name, content.encode())
    add_v2(node, 12, 100)
    return node


def collectors() -> list[Collector]:
    settings = ExporterSettings(
        names=("ccagent", "node_exporter", "cgroup_exporter", "ceems"), gpu_vendors=()
    )
    sources = NodeSources(settings)
    return [each for group in make_collectors(settings, sources).values() for each in group]


def read_all(node: Node) -> set[str]:
    """Read with every collector; return the names of the series."""
    found: set[str] = set()
    for collector in collectors():
        try:
            blocks = SampleEncoder().encode(collector.collect(node))
        except CcagentError:
            continue
        found |= {name for name, _ in parse(join_text(blocks).decode())}
    return found


def test_undamaged_it_has_series_of_all_of_them(node: TreeNode) -> None:
    found = read_all(node)
    for name in (
        "node_disk_flush_requests_time_seconds_total", "node_network_speed_bytes",
        "node_hwmon_temp_celsius", "node_rapl_package_joules_total", "node_nfs_requests_total",
        "node_infiniband_rate_bytes_per_second", "node_edac_correctable_errors_total",
        "node_nf_conntrack_stat_drop", "node_bonding_slaves", "node_filefd_maximum",
        "node_power_supply_online", "node_memory_Active_anon_bytes", "node_udp_queues",
        "ccagent_job_cpu_seconds_total", "cgroup_cpu_user_seconds", "ceems_compute_units",
    ):  # fmt: skip
        assert name in found, name


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_damage_costs_no_more_than_the_collector(node: TreeNode, seed: int) -> None:
    chance = random.Random(seed)
    add_v1(node, 7, 101)
    for name, content in FILES.items():
        damaged = bytearray(content.encode())
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(damaged) + 1)
            match chance.randrange(4):
                case 0:
                    damaged[place:place] = bytes([chance.randrange(256)])
                case 1:
                    del damaged[place : place + chance.randrange(9)]
                case 2:
                    damaged[place:place] = b"9" * 25
                case _:
                    damaged[place : place + 1] = b"\xff\0\n"
        write(node.path, name, bytes(damaged))
    read_all(node)
