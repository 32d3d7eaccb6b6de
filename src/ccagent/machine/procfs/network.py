"""Parsers for network counters: netstat, snmp, snmp6, sockstat, softnet_stat, dev, arp.

Source: proc(5); net/ipv4/proc.c, net/core/net-procfs.c of Linux.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

_SNMP6 = re.compile(r"^((?:Icmp|Ip|Udp|UdpLite)6)(\w+)\s+([0-9]{1,20})$", re.MULTILINE | re.ASCII)
_SOCKETS = re.compile(rb"^(\w+):((?: \w+ -?[0-9]{1,19})+)\s*$", re.MULTILINE)


Field = tuple[str, str]
"""A protocol and one of its fields."""


@lru_cache(64)
def _split_names(line: str) -> tuple[str, list[Field]]:
    protocol, _, names = line.partition(":")
    return protocol, [(protocol, name) for name in names.split()]


def parse_netstat(content: bytes) -> dict[Field, int]:
    """Return the numbers of pairs of lines `Tcp: Field...` and `Tcp: 1...`.

    Raise UnparsableError for other lines.
    """
    lines = content.decode("ascii", "replace").split("\n")
    found: dict[Field, int] = {}
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        protocol, fields = _split_names(names)
        other, _, values = numbers.partition(":")
        words = values.split()
        if protocol != other or len(fields) != len(words):
            raise UnparsableError(f"not names and numbers: {names[:40]!r}, {numbers[:40]!r}")
        try:
            found.update(zip(fields, map(int, words), strict=True))
        except ValueError as error:
            raise UnparsableError(f"not a number: {numbers[:80]!r}") from error
    return found


def parse_snmp6(content: bytes) -> dict[Field, int]:
    """Return the numbers of lines `Ip6InReceives 1`."""
    return {
        (protocol, field): int(number)
        for protocol, field, number in _SNMP6.findall(content.decode("ascii", "replace"))
    }


def parse_sockstat(content: bytes) -> dict[str, dict[str, int]]:
    """Return the numbers by protocol and state: `TCP: inuse 34 orphan 1`."""
    found: dict[str, dict[str, int]] = {}
    for protocol, pairs in _SOCKETS.findall(content):
        words = pairs.decode("ascii").split()
        numbers = map(int, words[1::2])
        found[protocol.decode("ascii")] = dict(zip(words[::2], numbers, strict=True))
    return found


class Softnet(NamedTuple):
    """Counters of a cpu since boot.

    cpu: None before Linux 5.14: the lines then are in the order of online cpus. flow_limit, rps:
    None before Linux 3.11 and 2.6.35.
    """

    cpu: int | None
    processed: int
    dropped: int
    squeezed: int
    rps: int | None
    flow_limit: int | None
    backlog: int | None


def parse_softnet(content: bytes) -> list[Softnet]:
    """Parse lines of hexadecimal numbers, one line per cpu. Raise UnparsableError for others."""
    found: list[Softnet] = []
    for line in content.splitlines():
        words = line.split()
        try:
            numbers = [int(word, 16) for word in (*words[:3], *words[9:13])]
            processed, dropped, squeezed = numbers[:3]
        except ValueError as error:
            raise UnparsableError(f"not counters: {line[:80]!r}") from error
        cpu = numbers[6] if len(numbers) > 6 else None
        rps, flow_limit, backlog = [*numbers[3:6], None, None, None][:3]
        found.append(Softnet(cpu, processed, dropped, squeezed, rps, flow_limit, backlog))
    return found


def split_devices(content: bytes) -> dict[str, bytes]:
    """Return the unparsed counters of /proc/net/dev by interface."""
    interfaces: dict[str, bytes] = {}
    for line in content.split(b"\n"):
        name, colon, counters = line.rpartition(b":")
        if colon:
            interfaces[name.strip().decode("utf-8", "replace")] = counters
    return interfaces


def parse_device(counters: bytes) -> tuple[int, ...]:
    """Parse the 16 counters of an interface in /proc/net/dev. Raise UnparsableError if invalid.

    `bytes packets errs drop fifo frame compressed multicast` received, then sent
    `bytes packets errs drop fifo colls carrier compressed` (dev_seq_printf_stats()).
    """
    try:
        values = tuple(map(int, counters.split()))
    except ValueError as error:
        raise UnparsableError(f"not a number: {counters[:80]!r}") from error
    if len(values) != 16:
        raise UnparsableError(f"not 16 counters: {counters[:80]!r}")
    if min(values) < 0 or max(values) > LARGEST_UINT:
        raise UnparsableError(f"out of range: {counters[:80]!r}")
    return values


def parse_arp(content: bytes) -> dict[str, int]:
    """Parse /proc/net/arp: entries by interface."""
    found: dict[str, int] = {}
    for line in content.decode("utf-8", "replace").split("\n")[1:]:
        words = line.split()
        if len(words) >= 6:
            found[words[5]] = found.get(words[5], 0) + 1
    return found


def parse_udp_queues(content: bytes) -> tuple[int, int]:
    """Parse /proc/net/udp: B in send and receive queues, over all sockets."""
    sent = received = 0
    for line in content.split(b"\n")[1:]:
        words = line.split()
        if len(words) > 4:
            first, _, second = words[4].partition(b":")
            try:
                sent += int(first, 16)
                received += int(second, 16)
            except ValueError as error:
                raise UnparsableError(f"not two queues: {line[:80]!r}") from error
    return sent, received
