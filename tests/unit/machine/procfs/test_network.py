"""Parsers of the network's counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.procfs.network import (
    Softnet,
    parse_arp,
    parse_device,
    parse_netstat,
    parse_snmp6,
    parse_sockstat,
    parse_softnet,
    parse_udp_queues,
    split_devices,
)
from ccagent.machine.procfs.system import parse_kernel_stat, parse_vmstat


def test_netstat() -> None:
    content = b"TcpExt: A B\nTcpExt: 1 -1\nIpExt: C\nIpExt: 3\n"
    assert parse_netstat(content) == {("TcpExt", "A"): 1, ("TcpExt", "B"): -1, ("IpExt", "C"): 3}
    for damaged in (b"A: x\nB: 1\n", b"A: x y\nA: 1\n", b"A: x\nA: one\n"):
        with pytest.raises(UnparsableError):
            parse_netstat(damaged)


def test_snmp6() -> None:
    content = b"Ip6InReceives  \t1\nIcmp6InMsgs\t2\nUdpLite6InErrors 0\nnonsense\n"
    assert parse_snmp6(content) == {
        ("Ip6", "InReceives"): 1, ("Icmp6", "InMsgs"): 2, ("UdpLite6", "InErrors"): 0,
    }  # fmt: skip


def test_sockets() -> None:
    assert parse_sockstat(b"sockets: used 5\nTCP: inuse 1 mem 2\nbad\n") == {
        "sockets": {"used": 5}, "TCP": {"inuse": 1, "mem": 2},
    }  # fmt: skip


def test_softnet_of_old_and_new_kernels() -> None:
    old, new = b"0000000a 00000001 00000002\n", b"0a 0 0 0 0 0 0 0 0 3 4 5 7 0 0\n"
    assert parse_softnet(old * 2)[1] == Softnet(None, 10, 1, 2, None, None, None)
    assert parse_softnet(new) == [Softnet(7, 10, 0, 0, 3, 4, 5)]
    with pytest.raises(UnparsableError):
        parse_softnet(b"xyz\n")


def test_devices_and_queues() -> None:
    line = b"eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
    assert parse_device(split_devices(b"head|\n" + line)["eth0"]) == (*range(1, 17),)
    with pytest.raises(UnparsableError):
        parse_device(b"1 2")
    assert parse_udp_queues(b"head\n 0: a b 07 00000010:00000002 x\n") == (16, 2)
    assert parse_arp(b"head\n192.0.2.1 1 2 m * eth0\n192.0.2.2 1 2 m * eth0\n") == {"eth0": 2}


@given(st.binary(max_size=120))
def test_no_content_raises_anything_else(content: bytes) -> None:
    for parse in (
        parse_netstat, parse_snmp6, parse_sockstat, parse_softnet,
        parse_device, parse_arp, parse_udp_queues, parse_kernel_stat, parse_vmstat,
    ):  # fmt: skip
        try:
            parse(content)
        except UnparsableError:
            continue
