"""Parsers for statistics of LNet, Lustre's network: messages, errors, and state of interfaces.

Source: lnetctl(8), lustre_lnet_show_stats() and lustre_lnet_show_net() in liblnetconfig.c. For the
line in /sys/kernel/debug/lnet/stats: __proc_lnet_stats() in router_proc.c.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from ccagent.agents.lustre.metric import (
    Measurement,
    MetricGroup,
    TargetScope,
    number,
    show_text,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.metric import Complain


class Block:
    """A block: keys with a word, and keys with one nested block, or one per item."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.blocks: defaultdict[str, list[Block]] = defaultdict(list)
        self._last = ""

    def add(self, key: str, value: str) -> None:
        """Parse a line. Deeper indented next lines belong to its key."""
        self._last = key
        if value:
            self.fields[key] = value

    def open(self) -> Block:
        """Start a block below the key of the last line."""
        block = Block()
        self.blocks[self._last].append(block)
        return block


def parse_indented(content: bytes) -> Block:
    """Return the outermost block of lnetctl's text, a small subset of YAML.

        net:
            - net type: tcp
              local NI(s):
                - nid: 172.16.0.24@tcp
                  statistics:
                      send_count: 464970

    Skip lines without a colon. Never raises.
    """
    root = Block()
    opened = [(0, root)]
    for line in content.decode("utf-8", "backslashreplace").split("\n"):
        rest = line.lstrip(" ")
        is_item = rest.startswith("- ")
        if is_item:
            rest = rest[2:].lstrip(" ")
        column = len(line) - len(rest)
        key, colon, value = rest.partition(":")
        if not colon:
            continue
        # An item closes the previous item, whose keys are in the same column.
        while opened[-1][0] > column or (is_item and opened[-1][0] == column):
            opened.pop()
        if opened[-1][0] < column:
            opened.append((column, opened[-1][1].open()))
        opened[-1][1].add(key.strip(), value.strip())
    return root


STATISTICS = ("lnetctl", "stats", "show")
NETWORKS = ("lnetctl", "net", "show", "-v", "4")
KERNEL_STATISTICS = "sys/kernel/debug/lnet/stats"

_KERNEL_ORDER = (
    "msgs_alloc", "msgs_max", "errors", "send_count", "recv_count", "route_count", "drop_count",
    "send_length", "recv_length", "route_length", "drop_length",
)  # fmt: skip

_COUNTER = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_NETWORK = re.compile(r"[a-z][a-z0-9]{0,15}", re.ASCII)
_LOOPBACK = "lo"


def read_lnet(_owner: str, leaf: str, value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the measurements of the text that `leaf` names: one of three formats."""
    if leaf == " ".join(NETWORKS):
        return read_networks(value, complain)
    if leaf == " ".join(STATISTICS):
        return read_statistics(value, complain)
    return read_kernel_statistics(value, complain)


def read_statistics(value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the counters of the node from `lnetctl stats show`."""
    blocks = parse_indented(value).blocks.get("statistics")
    if not blocks:
        raise UnparsableError(f"no statistics in {show_text(value)}")
    for counter, count in _numbers(blocks[0].fields, complain):
        yield Measurement(f"lustre_lnet_{counter}", count)


def read_kernel_statistics(value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield the counters of the node from the kernel's line of eleven numbers."""
    words = value.decode("ascii", "backslashreplace").split(None, len(_KERNEL_ORDER))
    if len(words) != len(_KERNEL_ORDER):
        raise UnparsableError(f"{show_text(value)} are not {len(_KERNEL_ORDER)} numbers")
    for counter, count in _numbers(dict(zip(_KERNEL_ORDER, words, strict=True)), complain):
        yield Measurement(f"lustre_lnet_{counter}", count)


def read_networks(value: bytes, complain: Complain) -> Iterator[Measurement]:
    """Yield counters and health of each network, over its interfaces, from `lnetctl net show`.

    Names and tags contain no NIDs. The network `lo` is the node's traffic with itself. It counts in
    the sum of the networks, as in the statistics of the node, but has no health.
    """
    networks = parse_indented(value).blocks.get("net")
    if not networks:
        raise UnparsableError(f"no networks in {show_text(value)}")
    for network in networks:
        name = network.fields.get("net type", "")
        if _NETWORK.fullmatch(name) is None:
            complain(f"{show_text(name)} is no network")
            continue
        scope = TargetScope("network", name)
        for interface in network.blocks["local NI(s)"]:
            yield from _interface(interface, scope, complain)


def _interface(interface: Block, scope: TargetScope, complain: Complain) -> Iterator[Measurement]:
    prefix = "lustre_lnet_network_"
    yield Measurement(f"{prefix}interfaces", 1, scope)
    is_up = interface.fields.get("status") == "up"
    yield Measurement(f"{prefix}interfaces_up", int(is_up), scope)
    for block in interface.blocks["statistics"]:
        for counter, count in _numbers(block.fields, complain):
            if counter.endswith("_count"):
                yield Measurement(prefix + counter, count, scope)
    for way in ("sent", "received", "dropped"):
        for block in interface.blocks[f"{way}_stats"]:
            for kind, count in _numbers(block.fields, complain):
                yield Measurement(f"{prefix}{way}_{kind}", count, scope)
    for block in interface.blocks["health stats"]:
        for event, count in _numbers(block.fields, complain):
            name = event if event == "health_value" else f"health_{event}"
            # Many releases never set the health of `lo`: it is 0, the worst value.
            if event == "next_ping" or (event == "health_value" and scope.stype_id == _LOOPBACK):
                continue
            yield Measurement(prefix + name, count, scope)


def _numbers(fields: dict[str, str], complain: Complain) -> Iterator[tuple[str, int]]:
    """Yield the fields as parts of names (`no route` as `no_route`) with their numbers."""
    for key, text in fields.items():
        counter = key.replace(" ", "_")
        if _COUNTER.fullmatch(counter) is None:
            complain(f"{show_text(key)} is no counter")
            continue
        try:
            yield counter, number(text.encode())
        except UnparsableError as error:
            complain(f"{counter}: {error}")


GROUPS = {
    "lnet": MetricGroup(
        re.compile(
            "(?P<leaf>"
            + "|".join(
                re.escape(name)
                for name in (" ".join(STATISTICS), " ".join(NETWORKS), KERNEL_STATISTICS, "stats")
            )
            + ")"
        ),
        read_lnet,
        # lctl's parameter `stats` is the kernel's line. With lnetctl it adds nothing.
        ("stats",),
        (STATISTICS, NETWORKS),
        (KERNEL_STATISTICS,),
    )
}
