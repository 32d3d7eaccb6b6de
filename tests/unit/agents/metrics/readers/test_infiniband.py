"""Ports of InfiniBand, Omni-Path and RoCE, and RDMA of jobs, also under the names of CEEMS."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import Count, Gauge, Scope
from ccagent.agents.metrics.readers.infiniband import (
    InfinibandReader,
    RdmaReader,
    parse_counter,
    parse_rate,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.exporter import job_io_metrics
from ccagent.exporter.job_io_metrics import CeemsRdmaCollector
from ccagent.exporter.own_metrics import ReaderCollector
from ccagent.machine import rdma
from ccagent.machine.infiniband_ports import parse_state
from ccagent.machine.node import Node
from ccagent.machine.rdma import RdmaPart, RdmaUse
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.scraped import collected, make
from tests.support.tree import StillClock

U32 = 0xFFFF_FFFF
DEVICES = "sys/class/infiniband"
NAMES = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets")
METRICS = ("ib_recv", "ib_xmit", "ib_recv_pkts", "ib_xmit_pkts")

PARTS: dict[RdmaPart, RdmaUse] = {
    RdmaPart(12, "mlx5_0", 1): {"queue_pairs": 16, "rx_write_requests": 41, "resp_cqe_error": 2},
    RdmaPart(12, "mlx5_0", 0): {"memory_regions": 2, "memory": 4194304},
}


class Machine:
    """A tree with /sys/class/infiniband."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = StillClock()
        self.node = Node(root=str(root), hostname="n1", cluster="c1", clock=self.clock)

    def write(self, path: str, content: str | int) -> None:
        file = self.root / DEVICES / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def port(
        self,
        port: str,
        *counters: str | int,
        directory: str = "counters",
        suffix: str = "",
        state: str = "4: ACTIVE",
        rate: str = "100 Gb/sec (4X EDR)",
        layer: str = "InfiniBand",
    ) -> None:
        """Write a port, `mlx5_0/1`: data and packets received and sent."""
        device, _, number = port.partition("/")
        path = f"{device}/ports/{number}"
        for name, value in zip(NAMES, counters, strict=True):
            self.write(f"{path}/{directory}/{name}{suffix}", value)
        self.write(f"{path}/state", state)
        self.write(f"{path}/rate", rate)
        self.write(f"{path}/link_layer", layer)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(reader: InfinibandReader, machine: Machine) -> dict[str, float]:
    return {each.metric: each.value for each in reader.read(machine.node)}


def test_a_port_without_standard_counters_has_those_of_its_hardware(machine: Machine) -> None:
    """As efa and bnxt_re: bytes instead of words. A port with both counts once."""
    machine.port("mlx5_0/1", 100, 200, 3, 4)
    for port in ("mlx5_0/ports/1", "rdmap0s6/ports/1"):
        for name, value in (("rx_bytes", 7), ("tx_bytes", 8), ("rx_pkts", 1), ("tx_pkts", 2)):
            machine.write(f"{port}/hw_counters/{name}", value)
    found = InfinibandReader().read_raw(machine.node)
    assert [(each.metric, each.value) for each in found if each.scope.stype_id == "rdmap0s6/1"] == [
        ("ib_recv", 7),
        ("ib_xmit", 8),
        ("ib_recv_pkts", 1),
        ("ib_xmit_pkts", 2),
    ]
    assert [(each.metric, each.value) for each in found if each.scope.stype_id == "mlx5_0/1"] == [
        ("ib_recv", 400),
        ("ib_xmit", 800),
        ("ib_recv_pkts", 3),
        ("ib_xmit_pkts", 4),
    ]


def traffic(reader: InfinibandReader, machine: Machine) -> list[float | None]:
    found = values(reader, machine)
    return [found.get(metric) for metric in METRICS]


@pytest.mark.parametrize(
    ("text", "value"), [(b"0\n", 0), (b"18446744073709551614\n", LARGEST_UINT - 1), (b" 7 ", 7)]
)
def test_counters_are_numbers(text: bytes, value: int) -> None:
    assert parse_counter(text) == value


def test_a_device_may_lack_a_counter() -> None:
    assert parse_counter(b"N/A (no PMA)\n") is None


@pytest.mark.parametrize("text", [b"", b"-1", b"1 2", b"0x10", b"18446744073709551616", b"\xff"])
def test_what_is_no_counter(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="not a counter"):
        parse_counter(text)


@pytest.mark.parametrize("text", [b"4294967295\n", b"18446744073709551615\n"])
def test_a_saturated_counter_tells_nothing(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="saturated"):
        parse_counter(text)


def test_states_and_rates() -> None:
    assert parse_state(b"4: ACTIVE\n") == 4
    assert parse_state(b"1: DOWN\n") == 1
    assert parse_rate(b"100 Gb/sec (4X EDR)\n") == 12.5e9
    assert parse_rate(b"2.5 Gb/sec (1X SDR)\n") == 312.5e6


@given(st.binary() | st.from_regex(rb"\s*[0-9.]{1,30}(:| Gb/sec|)", fullmatch=True))
def test_files_are_understood_or_unparsable(text: bytes) -> None:
    for parse, limit in ((parse_counter, LARGEST_UINT), (parse_state, 999), (parse_rate, 1.25e14)):
        try:
            value = parse(text)
        except UnparsableError:
            continue
        assert value is None or 0 <= value <= limit


def test_ports_are_summed_in_bytes(machine: Machine) -> None:
    machine.port("mlx5_0/1", 1000, 2000, 30, 40)
    machine.port("mlx5_1/1", 0, 0, 0, 0)
    machine.port("mlx4_0/2", 5, 5, 5, 5)
    reader = InfinibandReader()
    assert traffic(reader, machine) == [0, 0, 0, 0]
    machine.port("mlx5_0/1", 1001, 2010, 130, 1040)
    machine.port("mlx5_1/1", 1 << 40, 0, 2, 0)
    assert traffic(reader, machine) == [4 * (1 + (1 << 40)), 40, 102, 1000]
    assert set(values(reader, machine)) == set(reader.metrics)
    assert reader.errors == []


@pytest.mark.parametrize("device", ["hfi1_0", "opap5s0"])
def test_omni_path_counts_flits(machine: Machine, device: str) -> None:
    machine.port(f"{device}/1", 1, 1, 1, 1)
    reader = InfinibandReader()
    values(reader, machine)
    machine.port(f"{device}/1", 11, 3, 2, 2)
    assert traffic(reader, machine) == [80, 16, 1, 1]


def test_roce_is_counted(machine: Machine) -> None:
    machine.port("rocep1s0/1", 0, 0, 0, 0, layer="Ethernet")
    reader = InfinibandReader()
    values(reader, machine)
    machine.port("rocep1s0/1", 1, 2, 3, 4, layer="Ethernet")
    assert traffic(reader, machine) == [4, 8, 3, 4]


def test_wide_counters_are_read_instead_of_narrow_ones(machine: Machine) -> None:
    narrow = (U32, U32, U32, U32)
    machine.port("mlx4_0/1", *narrow)
    machine.port("mlx4_0/1", U32, 0, 0, 0, directory="counters_ext", suffix="_64")
    reader = InfinibandReader()
    values(reader, machine)
    machine.port("mlx4_0/1", U32 + 1, 1, 1, 1, directory="counters_ext", suffix="_64")
    values(reader, machine)
    machine.port("mlx4_0/1", U32 + 5, 1, 1, 1, directory="counters_ext", suffix="_64")
    assert traffic(reader, machine) == [16, 4, 1, 1]


def test_a_saturated_counter_costs_itself(machine: Machine) -> None:
    machine.port("mlx4_0/1", U32, 0, 0, 0)
    reader = InfinibandReader()
    assert traffic(reader, machine) == [None, 0, 0, 0]
    (error,) = reader.errors
    assert error.startswith(f"/{DEVICES}/mlx4_0/ports/1/counters/port_rcv_data: saturated at ")


def test_what_a_device_lacks_is_left_out(machine: Machine) -> None:
    machine.port("qib0/1", "N/A (no PMA)", 7, 7, 7)
    (machine.root / DEVICES / "qib0/ports/1/counters/port_xmit_packets").unlink()
    reader = InfinibandReader()
    assert traffic(reader, machine) == [None, 0, 0, None]
    assert reader.errors == []


def test_a_port_that_fails_for_a_while_costs_its_own_traffic(machine: Machine) -> None:
    machine.port("mlx5_0/1", 0, 0, 0, 0)
    machine.port("mlx5_1/1", 1000, 1000, 1000, 1000)
    reader = InfinibandReader()
    values(reader, machine)
    machine.port("mlx5_0/1", 1, 1, 1, 1)
    machine.port("mlx5_1/1", 2000, "?", 2000, 2000)
    assert traffic(reader, machine) == [4004, 4, 1001, 1001]
    assert len(reader.errors) == 1
    machine.port("mlx5_1/1", 2000, 9000, 2000, 2000)
    assert traffic(reader, machine) == [4004, 4, 1001, 1001]
    machine.port("mlx5_1/1", 2000, 9001, 2000, 2000)
    assert traffic(reader, machine) == [4004, 8, 1001, 1001]
    assert reader.errors == []


def test_links(machine: Machine) -> None:
    machine.port("mlx5_0/1", 0, 0, 0, 0, rate="200 Gb/sec (4X HDR)")
    machine.port("mlx5_1/1", 0, 0, 0, 0)
    machine.port("mlx5_2/1", 0, 0, 0, 0, state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    reader = InfinibandReader()
    found = values(reader, machine)
    assert (found["ib_ports_active"], found["ib_rate"]) == (2, 37.5e9)
    machine.port("mlx5_0/1", 0, 0, 0, 0, state="2: INIT")
    machine.clock.passed += 60
    found = values(reader, machine)
    assert (found["ib_ports_active"], found["ib_rate"]) == (1, 12.5e9)


def test_a_broken_link_costs_its_metric(machine: Machine) -> None:
    machine.port("mlx5_0/1", 0, 0, 0, 0, rate="fast")
    reader = InfinibandReader()
    found = values(reader, machine)
    assert found["ib_ports_active"] == 1
    assert "ib_rate" not in found
    assert reader.errors == [f"/{DEVICES}/mlx5_0/ports/1/rate: not a rate: b'fast\\n'"]


def test_ports_come_and_go(machine: Machine) -> None:
    machine.port("mlx5_0/1", 0, 0, 0, 0)
    reader = InfinibandReader()
    values(reader, machine)
    machine.port("mlx5_1/1", 1000, 1000, 1000, 1000)
    machine.clock.passed += 60
    assert traffic(reader, machine) == [0, 0, 0, 0]
    machine.port("mlx5_1/1", 1001, 1000, 1000, 1000)
    assert traffic(reader, machine) == [4, 0, 0, 0]
    (machine.root / DEVICES / "mlx5_1/ports/1").rename(machine.root / "gone")
    machine.port("mlx5_0/1", 1, 0, 0, 0)
    assert traffic(reader, machine) == [8, 0, 0, 0]
    assert reader.errors == []


def test_a_device_that_cannot_be_listed_costs_itself(machine: Machine) -> None:
    machine.port("mlx5_0/1", 0, 0, 0, 0)
    (machine.root / DEVICES / "mlx5_1").mkdir()
    (machine.root / DEVICES / "mlx5_1/ports").symlink_to("ports")
    reader = InfinibandReader()
    assert traffic(reader, machine) == [0, 0, 0, 0]
    assert reader.errors == [f"/{DEVICES}/mlx5_1/ports: Too many levels of symbolic links"]


def test_counters_since_boot_are_read_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A counter costs a question to the firmware.
    machine.port("mlx5_0/1", 1000, 10, 5, 3)
    machine.port("mlx5_1/1", "broken", 20, 6, 4)
    opened: list[str] = []
    read = machine.node.read

    def note(path: str, limit: int) -> bytes:
        opened.append(path)
        return read(path, limit)

    monkeypatch.setattr(machine.node, "read", note)
    reader = InfinibandReader()
    found = {
        (each.metric, each.scope.stype_id): each.value for each in reader.read_raw(machine.node)
    }
    assert found["ib_recv", "mlx5_0/1"] == 4000
    assert found["ib_xmit", "mlx5_1/1"] == 80
    assert ("ib_recv", "mlx5_1/1") not in found
    assert len(reader.errors) == 1
    assert len(opened) == len(set(opened))


def test_without_ports_there_is_nothing(machine: Machine) -> None:
    reader = InfinibandReader()
    with pytest.raises(NotHereError, match=f"/{DEVICES}: No such file"):
        reader.read(machine.node)
    # As irdma has it: other hw_counters alone.
    machine.write("rocep8s0f0/ports/1/hw_counters/ip4InOctets", 1)
    with pytest.raises(NotHereError, match="no port that counts"):
        reader.read(machine.node)
    machine.port("mlx5_0/1", 0, 0, 0, 0)
    assert traffic(reader, machine) == [0, 0, 0, 0]


@pytest.fixture
def rdma_node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine on which job 12 uses RDMA."""

    def read(_: Node) -> dict[RdmaPart, RdmaUse]:
        return PARTS

    monkeypatch.setattr(rdma, "read_job_rdma", read)
    monkeypatch.setattr(job_io_metrics, "read_job_rdma", read)
    return Node(hostname="n1", cluster="c")


def test_objects_are_gauges_and_requests_are_counters(rdma_node: Node) -> None:
    job = Scope("node", "", "job", "12")
    values = [*RdmaReader().read(rdma_node)]
    assert Gauge("job_rdma_queue_pairs", 16, job) in values
    assert Gauge("job_rdma_contexts", 0, job) in values
    assert Gauge("job_rdma_memory", 4194304, job) in values
    assert [each for each in values if isinstance(each, Count)] == [
        Count("job_rdma_write_requests", 41, job)
    ]


def test_the_endpoint_has_them_by_job(rdma_node: Node) -> None:
    collector = make(ReaderCollector)
    collector.name = "rdma"
    found = collected(collector, rdma_node)
    assert found['ccagent_job_rdma_queue_pairs{jobid="12"}'] == 16
    assert found['ccagent_job_rdma_memory_bytes{jobid="12"}'] == 4194304
    assert found['ccagent_job_rdma_write_requests_total{jobid="12"}'] == 41


def test_ceems_has_them_by_device_and_port(rdma_node: Node) -> None:
    found = collected(make(CeemsRdmaCollector), rdma_node)
    own = 'device="mlx5_0",hostname="n1",manager="slurm",port="{}",uuid="12"'
    assert found[f"ceems_rdma_qps_active{{{own.format(1)}}}"] == 16
    assert found[f"ceems_rdma_mrs_len_active{{{own.format('')}}}"] == 4194304
    assert found[f"ceems_rdma_rx_write_requests{{{own.format(1)}}}"] == 41
    assert found[f"ceems_rdma_resp_cqe_error{{{own.format(1)}}}"] == 2
