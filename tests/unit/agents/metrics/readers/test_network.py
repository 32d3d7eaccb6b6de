"""Network interfaces: which count, and what they have counted."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Scope
from ccagent.agents.metrics.readers.network import (
    NetworkReader,
    NetworkReaderSettings,
    choose_interfaces,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.counters import Rates, Sums, compute_deltas
from ccagent.machine.node import Node
from ccagent.machine.procfs.network import parse_device, split_devices
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.tree import StillClock

# As Linux 6.18 writes it.
HEAD = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\
 colls carrier compressed
"""
LINE = (
    "    lo: 8688614690 7587016    0    0    0     0          0         0 8688614690 7587016    0 \
   0    0     0       0          0\n"
)
U32 = 0xFFFF_FFFF


class Machine:
    """A tree with /proc/net/dev and the directories of /sys/class/net."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = StillClock()
        self.node = Node(root=str(root), hostname="n1", cluster="c1", clock=self.clock)
        (root / "proc/net").mkdir(parents=True)

    def interface(self, name: str, *files: str) -> None:
        directory = self.root / "sys/class/net" / name
        directory.mkdir(parents=True, exist_ok=True)
        for file in (*files, "statistics", "uevent"):
            (directory / file).mkdir(exist_ok=True)

    def counts(self, **lines: str | tuple[int, ...]) -> None:
        """Write a line of eight counters, or another text, for each interface.

        The counters are bytes, packets, errs and drop, received and then sent.
        """
        text = HEAD
        for name, line in lines.items():
            if isinstance(line, tuple):
                numbers = (*line[:4], 0, 0, 0, 0, *line[4:], 0, 0, 0, 0)
                text += f"{name:>6}: {' '.join(map(str, numbers))}\n"
            else:
                text += f"{name:>6}: {line}\n"
        (self.root / "proc/net/dev").write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(reader: NetworkReader, machine: Machine) -> dict[str, float]:
    return {each.metric: each.value for each in reader.read(machine.node) if each.scope == NODE}


def test_names_are_before_the_last_colon() -> None:
    text = (HEAD + LINE + "eth0:12 3\nib0.8001:\n").encode()
    found = split_devices(text)
    assert list(found) == ["lo", "eth0", "ib0.8001"]
    assert found["eth0"] == b"12 3"


@pytest.mark.parametrize(
    "text",
    [b"", b"1 2 3", b"x" + b" 1" * 15, b"-1" + b" 1" * 15, b"18446744073709551616" + b" 1" * 15],
)
def test_what_is_no_traffic(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_device(text)


@given(st.binary() | st.lists(st.integers(-1, 1 << 65)).map(lambda n: f"e:{n}".encode()))
def test_interfaces_are_understood_or_unparsable(text: bytes) -> None:
    for counters in split_devices(text).values():
        try:
            traffic = parse_device(counters)
        except UnparsableError:
            continue
        assert all(0 <= value <= LARGEST_UINT for value in traffic)


@given(st.lists(st.integers(0, LARGEST_UINT), min_size=16, max_size=16))
def test_any_sixteen_numbers_are_traffic(numbers: list[int]) -> None:
    traffic = parse_device(" ".join(map(str, numbers)).encode())
    assert traffic == tuple(numbers)


NONE: set[str] = set()
CARD = {"device"}
BOND = {"bonding", "lower_eth0", "lower_eth1"}


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        # A virtual machine's card; dummy, veth, tunnels.
        ({"eth0": CARD, "lo": NONE, "veth1": NONE, "wg0": NONE}, {"eth0"}),
        # IPoIB: the child has queues of its own.
        ({"ib0": CARD, "ib0.8001": {"device", "parent"}}, {"ib0", "ib0.8001"}),
        ({"eth0": CARD, "eth0.5": {"lower_eth0"}}, {"eth0"}),
        ({"eth0": {"device", "master"}, "br0": {"bridge", "lower_eth0"}}, {"eth0"}),
        ({"eth0": {"device", "master"}, "ovs-system": {"lower_eth0"}}, {"eth0"}),
        # A team doesn't tell that it is one.
        ({"eth0": {"device", "master"}, "team0": {"lower_eth0"}}, {"eth0"}),
        ({"eth0": {"device", "master"}, "eth1": {"device", "master"}, "bond0": BOND}, {"bond0"}),
        (
            {
                "eth0": {"device", "master"},
                "eth1": {"device", "master"},
                "bond0": BOND | {"master"},
                "br0": {"bridge", "lower_bond0"},
                "bond0.7": {"lower_bond0"},
            },
            {"bond0"},
        ),
        ({"eth0": CARD, "bond0": {"bonding"}}, {"eth0"}),
        (
            {
                "eth0": CARD,
                "eth0.5": {"lower_eth0", "master"},
                "bond0": {"bonding", "lower_eth0.5"},
            },
            {"eth0"},
        ),
        # A virtual function below hv_netvsc or net_failover.
        ({"eth0": {"device", "lower_eth1"}, "eth1": {"device", "master"}}, {"eth0"}),
        ({"lo": {"device"}}, NONE),
    ],
)
def test_no_traffic_counts_twice(interfaces: dict[str, set[str]], expected: set[str]) -> None:
    assert choose_interfaces(interfaces) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ((), (), {"bond0", "usb0"}),
        ((), ("usb*",), {"bond0"}),
        # Without the bond its traffic isn't wanted either.
        ((), ("bond0",), {"usb0"}),
        (("br0",), (), {"br0", "usb0"}),
        (("*",), (), {"br0", "usb0", "veth1"}),
    ],
)
def test_interfaces_are_included_and_excluded(
    include: tuple[str, ...], exclude: tuple[str, ...], expected: set[str]
) -> None:
    interfaces = {
        "lo": NONE,
        "usb0": CARD,
        "eth0": {"device", "master"},
        "eth1": {"device", "master"},
        "bond0": BOND | {"master"},
        "br0": {"bridge", "lower_bond0"},
        "veth1": NONE,
    }
    assert choose_interfaces(interfaces, include, exclude) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([5, 7], [6, 10], [1, 3]),
        ([U32 - 9, 7], [10, 7], [20, 0]),
        # Begun anew: several fell, the largest value is far, or it can't wrap.
        ([U32 - 9, 7], [10, 1], [10, 1]),
        ([1 << 30, 7], [10, 7], [10, 0]),
        ([1 << 40, 7], [10, 7], [10, 0]),
        # Faltered.
        ([1 << 40, 7], [(1 << 40) - 3, 8], [0, 1]),
        ([], [], []),
    ],
)  # fmt: skip
def test_growth(old: list[int], new: list[int], expected: list[int]) -> None:
    assert compute_deltas(old, new, U32) == expected


def test_a_counter_that_is_wide_enough_does_not_wrap() -> None:
    assert compute_deltas([U32 - 9], [10]) == [10]


NUMBERS = st.integers(0, LARGEST_UINT)


@given(st.lists(st.tuples(NUMBERS, NUMBERS)), st.sampled_from([0, U32]))
def test_growth_is_never_negative_nor_more_than_what_is_counted(
    pairs: list[tuple[int, int]], wraps_at: int
) -> None:
    delta = compute_deltas([old for old, _ in pairs], [new for _, new in pairs], wraps_at)
    for (_, new), each in zip(pairs, delta, strict=True):
        assert 0 <= each <= max(new, wraps_at)


@given(st.integers(0, U32), st.integers(0, U32 // 2))
def test_a_counter_of_32_bits_grows_over_its_end(old: int, delta: int) -> None:
    assert compute_deltas([old], [(old + delta) & U32], U32) == [delta]


def test_parts_that_come_and_go_are_no_growth() -> None:
    sums = Sums(1)
    assert sums.add({"a": (100,)}) == {}
    assert sums.add({"a": (101,), "b": (5000,)}) == {"a": [1]}
    assert sums.add({"b": (5010,)}) == {"b": [10]}
    assert sums.add({"a": (105,), "b": (5010,)}) == {"b": [0]}
    assert sums.add({"a": (107,), "b": (5010,)}) == {"a": [2], "b": [0]}
    assert sums.total == [13]
    assert sums.parts == {"a": [2], "b": [10]}


def test_metrics_of_the_node(machine: Machine) -> None:
    machine.interface("lo")
    machine.interface("eth0", "device")
    machine.interface("ib0", "device")
    reader = NetworkReader()
    machine.counts(lo=(9,) * 8, eth0=(10, 20, 30, 40, 50, 60, 70, 80), ib0=(0,) * 8)
    assert set(values(reader, machine).values()) == {0}
    machine.counts(lo=(99,) * 8, eth0=(11, 22, 33, 44, 55, 66, 77, 88), ib0=(1000,) * 8)
    assert values(reader, machine) == {
        "net_bytes_in": 1001,
        "net_pkts_in": 1002,
        "net_errors_in": 1003,
        "net_drops_in": 1004,
        "net_bytes_out": 1005,
        "net_pkts_out": 1006,
        "net_errors_out": 1007,
        "net_drops_out": 1008,
        "net_bw": 2006,
    }
    assert set(values(reader, machine)) == set(reader.metrics)
    assert reader.errors == []


def test_a_damaged_interface_costs_itself_since_boot_too(machine: Machine) -> None:
    machine.interface("eth0", "device")
    machine.interface("eth1", "device")
    machine.counts(eth0=(1, 2, 3, 4, 5, 6, 7, 8), eth1=" 1 2 many")
    reader = NetworkReader()
    found = list(reader.read_raw(machine.node))
    assert {each.scope.stype_id for each in found} == {"eth0"}
    assert len(reader.errors) == 1


def test_rates_are_those_of_the_interval(machine: Machine) -> None:
    machine.interface("eth0", "device")
    reader, rates = NetworkReader(), Rates[Scope]()
    found: dict[str, float] = {}
    for moment, received in ((0.0, U32 - 999), (10.0, 1_000_000_000), (15.0, 6_000_000_000)):
        machine.counts(eth0=(received, 0, 0, 0, 7, 0, 0, 0))
        counts = [each for each in reader.read(machine.node) if isinstance(each, Count)]
        found = {metric: rate for metric, rate, _ in rates.of(counts, reader.metrics, moment)}
        if moment == 10.0:
            assert found["net_bytes_in"] == 100_000_100
    assert (found["net_bytes_in"], found["net_bytes_out"]) == (1e9, 0)


def test_interfaces_come_before_the_node(machine: Machine) -> None:
    machine.interface("eth0", "device")
    machine.interface("eth1", "device")
    reader = NetworkReader(NetworkReaderSettings(per_interface=True))
    machine.counts(eth1=(0,) * 8, eth0=(0,) * 8)
    values(reader, machine)
    machine.counts(eth1=(100,) * 8, eth0=(1,) * 8)
    found = [
        (each.scope, each.value) for each in reader.read(machine.node) if each.metric == "net_bw"
    ]
    assert found == [
        (("node", "", "network", "eth0"), 2),
        (("node", "", "network", "eth1"), 200),
        (NODE, 202),
    ]


def test_a_broken_line_costs_its_interface(machine: Machine) -> None:
    machine.interface("eth0", "device")
    machine.interface("eth1", "device")
    reader = NetworkReader()
    machine.counts(eth0=(0,) * 8, eth1=(0,) * 8)
    values(reader, machine)
    machine.counts(eth0=(1,) * 8, eth1="1 2 3")
    assert values(reader, machine)["net_bytes_in"] == 1
    assert reader.errors == ["/proc/net/dev: 'eth1': not 16 counters: b' 1 2 3'"]
    machine.counts(eth0="1 2 3", eth1="1 2 3")
    assert values(reader, machine) == {}
    assert len(reader.errors) == 2


def test_an_interface_that_cannot_be_listed_costs_itself(machine: Machine) -> None:
    machine.interface("eth0", "device")
    (machine.root / "sys/class/net/eth1").symlink_to("eth1")
    machine.counts(eth0=(1,) * 8, eth1=(1,) * 8)
    reader = NetworkReader()
    assert values(reader, machine)["net_bw"] == 0
    assert reader.errors == ["/sys/class/net/eth1: Too many levels of symbolic links"]


def test_a_bond_that_is_made_is_noticed(machine: Machine) -> None:
    machine.interface("eth0", "device")
    machine.interface("eth1", "device")
    machine.interface("bond0", "bonding")
    reader = NetworkReader(NetworkReaderSettings(per_interface=True))
    machine.counts(eth0=(5,) * 8, eth1=(5,) * 8, bond0=(0,) * 8)
    values(reader, machine)
    machine.interface("eth0", "master")
    machine.interface("eth1", "master")
    machine.interface("bond0", "lower_eth0", "lower_eth1")
    machine.clock.passed += 60
    machine.counts(eth0=(6,) * 8, eth1=(6,) * 8, bond0=(2,) * 8)
    assert values(reader, machine)["net_bytes_in"] == 0
    machine.counts(eth0=(7,) * 8, eth1=(7,) * 8, bond0=(4,) * 8)
    found = list(reader.read(machine.node))
    assert {each.scope.stype_id for each in found} == {"", "bond0"}
    assert found[-1].value == 4


def test_an_interface_that_comes_is_noticed_at_once(machine: Machine) -> None:
    machine.interface("eth0", "device")
    reader = NetworkReader(NetworkReaderSettings(per_interface=True))
    machine.counts(eth0=(5,) * 8)
    values(reader, machine)
    machine.interface("eth1", "device")
    machine.counts(eth0=(5,) * 8, eth1=(5000,) * 8)
    found = list(reader.read(machine.node))
    assert {each.scope.stype_id for each in found} == {"", "eth0", "eth1"}
    assert found[-1].value == 0


def test_without_hardware_there_is_nothing(machine: Machine) -> None:
    with pytest.raises(NotHereError, match="/proc/net/dev"):
        NetworkReader().read(machine.node)
    machine.counts(lo=(1,) * 8, veth1=(1,) * 8)
    with pytest.raises(NotHereError, match=r"no hardware .* \['lo', 'veth1'\]"):
        NetworkReader().read(machine.node)
    machine.interface("veth1")
    assert values(NetworkReader(NetworkReaderSettings(include=("veth*",))), machine)["net_bw"] == 0


def test_interfaces_of_this_machine_are_those_of_psutil() -> None:
    before = psutil.net_io_counters(pernic=True, nowrap=False)
    interfaces = split_devices(Path("/proc/net/dev").read_bytes())
    after = psutil.net_io_counters(pernic=True, nowrap=False)
    assert set(interfaces) == set(before)
    for name, counters in interfaces.items():
        traffic = parse_device(counters)
        first, last = before[name], after[name]
        for field, value in (
            ("bytes_recv", traffic[0]), ("packets_recv", traffic[1]), ("errin", traffic[2]),
            ("dropin", traffic[3]), ("bytes_sent", traffic[8]), ("packets_sent", traffic[9]),
            ("errout", traffic[10]), ("dropout", traffic[11]),
        ):  # fmt: skip
            assert getattr(first, field) <= value <= getattr(last, field)


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["lo"], [], {"eth0", "lo"}),
        (["*"], [], {"eth0"}),
        (["l?"], [], {"eth0"}),
        (["lo"], ["lo"], {"eth0"}),
    ],
)
def test_the_loopback_counts_where_it_is_named(
    include: list[str], exclude: list[str], expected: set[str]
) -> None:
    assert choose_interfaces({"lo": set(), "eth0": {"device"}}, include, exclude) == expected
