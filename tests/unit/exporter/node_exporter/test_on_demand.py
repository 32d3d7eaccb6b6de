"""interrupts, softirqs, tcpstat, and NFS: client, server, mounts."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.exporter.node_exporter.hardware import read_powersupplyclass
from ccagent.exporter.node_exporter.kernel import read_interrupts, read_softirqs
from ccagent.exporter.node_exporter.network import add_sockets, read_tcpstat
from ccagent.exporter.node_exporter.nfs import read_mountstats, read_nfs, read_nfsd
from ccagent.machine.node import Node
from ccagent.machine.procfs.system import parse_interrupts
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode

INTERRUPTS = """\
           CPU0       CPU3
  0:         18          1   IO-APIC   2-edge      timer
 16:          7          0   IR-IO-APIC-fasteoi   ehci_hcd:usb1, mmc0
LOC:   17432635   13577667   Local timer interrupts
ERR:          0
10:32870086673310445093     GICv3  27 Level     arch_timer
"""
SOFTIRQS = "                    CPU0       CPU1\n          HI:          7          1\n"
NFSD = """\
rc 1 6 18622
fh 5 0 0 0 0
io 157286400 72864
th 8 0 0.000 0.000
ra 32 0 0 0 0 0 0 0 0 0 0 9
net 972 55 917 1
rpc 18628 6 1 2 3
proc2 18 2 69 0 0 4410 0 0 0 0 0 0 0 0 0 0 0 99 2
proc3 22 2 112 0 2719 111 0 0 0 0 0 0 0 0 0 0 0 27 216 0 2 1 0
proc4 2 2 10853
proc4ops 12 0 0 0 1098 2 0 0 0 0 8179 5896 0
"""
MOUNT = """\
device {export} mounted on {point} with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.0,proto=tcp
\tage:\t13968
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 4 0 0 0 0 0 0 0 8
\tbytes:\t1207640230 0 0 0 1210214218 0 295483 0
\tRPC iostats version: 1.0  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6427 0 12154 3 24 26 5726
\tper-op statistics
\t        READ: 1298 1298 0 207680 1210292152 6 79386 79407

"""


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def test_interrupts_by_cpu_controller_and_device(node: TreeNode) -> None:
    node.write("interrupts", INTERRUPTS)
    found = collected(make(read_interrupts), node)
    labels = 'cpu="0",devices="ehci_hcd:usb1, mmc0",info="IR-IO-APIC-fasteoi",type="16"'
    assert found[f"node_interrupts_total{{{labels}}}"] == 7
    labels = 'cpu="3",devices="",info="Local timer interrupts",type="LOC"'
    assert found[f"node_interrupts_total{{{labels}}}"] == 13577667
    assert not [name for name in found if 'type="ERR"' in name]
    node.write("softirqs", SOFTIRQS)
    soft = collected(make(read_softirqs), node)
    assert soft['node_softirqs_functions_total{cpu="1",type="HI"}'] == 1


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b" CPU0\n 1: 5 " + tail))
def test_any_bytes_are_counts_or_an_error(content: bytes) -> None:
    try:
        cpus, found = parse_interrupts(content)
    except UnparsableError:
        return
    assert found
    assert all(len(each.counts) == len(cpus) for each in found)


def test_an_nfs_server_by_version_and_method(node: TreeNode) -> None:
    node.write("net/rpc/nfsd", NFSD)
    found = collected(make(read_nfsd), node)
    expected = {
        "node_nfsd_reply_cache_misses_total": 6,
        "node_nfsd_server_threads": 8,
        "node_nfsd_read_ahead_cache_not_found_total": 9,
        'node_nfsd_packets_total{proto="tcp"}': 917,
        'node_nfsd_rpc_errors_total{error="cInt"}': 3,
        'node_nfsd_requests_total{method="ReadDir",proto="2"}': 99,
        'node_nfsd_requests_total{method="ReadDirPlus",proto="3"}': 216,
        'node_nfsd_requests_total{method="GetFH",proto="4"}': 5896,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert not [name for name in found if "Null" in name]


def test_operations_of_version_2_of_an_nfs_client(node: TreeNode) -> None:
    node.write("net/rpc/nfs", "net 1 0 1 1\nrpc 5 0 0\nproc2 18 " + "0 " * 7 + "86 " + "0 " * 10)
    found = collected(make(read_nfs), node)
    assert found['node_nfs_requests_total{method="WrCache",proto="2"}'] == 86


def test_mounts_of_an_export_share_their_series(node: TreeNode) -> None:
    node.write(
        "self/mountstats",
        "device proc mounted on /proc with fstype proc\n"
        + MOUNT.format(export="s:/x", point="/a") + MOUNT.format(export="s:/x", point="/b")
        + MOUNT.format(export="s:/y", point="/c").replace("\tage:", "\tedge:"),
    )  # fmt: skip
    node.write(
        "self/mountinfo",
        "1 1 0:5 / /a rw - nfs4 s:/x rw,addr=10.0.0.1\n"
        "2 1 0:5 / /b rw - nfs4 s:/x rw,addr=10.0.0.1\n",
    )
    found = collected(make(read_mountstats), node)
    mount, labels = 'export="s:/x",mountaddr="10.0.0.1"', 'protocol="tcp"'
    info = "node_mountstats_nfs_mountpoint_info"
    assert [name for name in found if name.startswith(info)] == [
        f'{info}{{{mount},mountpoint="/a",{labels}}}', f'{info}{{{mount},mountpoint="/b",{labels}}}'
    ]  # fmt: skip
    expected: dict[str, float] = {
        f"node_mountstats_nfs_age_seconds_total{{{mount},{labels}}}": 13968,
        f"node_mountstats_nfs_total_read_bytes_total{{{mount},{labels}}}": 1210214218,
        f"node_mountstats_nfs_event_pnfs_write_total{{{mount},{labels}}}": 8,
        f"node_mountstats_nfs_event_truncation_total{{{mount},{labels}}}": 0,
        f'node_mountstats_nfs_transport_receives_total{{{mount},{labels},transport="0"}}': 6427,
    }
    of_reads = f'{{{mount},operation="READ",{labels}}}'
    expected[f"node_mountstats_nfs_operations_request_time_seconds_total{of_reads}"] = 79.407
    assert {name: found.get(name) for name in expected} == expected


def test_tcp_sockets_of_this_machine_by_state() -> None:
    node = Node()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(b"x" * 1000)
        found = collected(make(read_tcpstat), node)
    assert found['node_tcp_connection_states{state="listen"}'] >= 1
    assert found['node_tcp_connection_states{state="established"}'] >= 2
    assert found['node_tcp_connection_states{state="rx_queued_bytes"}'] >= 1000


@given(st.binary(max_size=300))
def test_any_answer_of_the_kernel_ends(answer: bytes) -> None:
    states: Counter[str] = Counter()
    whole = struct.pack("=IHHII", 88, 20, 2, 1, 0) + bytes([2, 1]) + bytes(70)
    add_sockets(whole + answer, states)
    assert states["established"] >= 1


def test_batteries_and_mains(node: TreeNode) -> None:
    place = node.path / "sys/class/power_supply"
    for supply, files in (
        ("AC", {"online": "0", "type": "Mains"}),
        ("BAT0", {"capacity": "81", "cycle_count": "0", "energy_now": "36580000", "present": "1",
                  "temp": "301", "manufacturer": "LGC", "status": "Discharging",
                  "type": "Battery", "voltage_now": "broken"}),
    ):  # fmt: skip
        (place / supply).mkdir(parents=True)
        for name, text in files.items():
            (place / supply / name).write_text(f"{text}\n")
    found = collected(make(read_powersupplyclass), node)
    assert found['node_power_supply_online{power_supply="AC"}'] == 0
    assert found['node_power_supply_capacity{power_supply="BAT0"}'] == 81
    assert found['node_power_supply_cyclecount{power_supply="BAT0"}'] == 0
    assert found['node_power_supply_energy_watthour{power_supply="BAT0"}'] == 36.58
    assert found['node_power_supply_temp_celsius{power_supply="BAT0"}'] == 30.1
    assert not [name for name in found if "volt" in name]
    (battery,) = [name for name in found if "info" in name and "BAT0" in name]
    assert 'manufacturer="LGC"' in battery
    assert 'status="Discharging"' in battery
