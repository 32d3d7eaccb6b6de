"""Metrics of pressure stall information."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Gauge, Scope
from ccagent.agents.metrics.readers.kernel import PressureReader
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.counters import Rates
from ccagent.machine.node import Node
from ccagent.machine.procfs.system import Pressure, parse_pressure
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.tree import TreeNode

# As Linux 6.18 writes them.
CPU = """\
some avg10=0.87 avg60=1.00 avg300=1.62 total=918584897
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
IO = """\
some avg10=0.47 avg60=0.26 avg300=0.38 total=171469690
full avg10=0.26 avg60=0.18 avg300=0.28 total=147622506
"""
MEMORY = """\
some avg10=100.00 avg60=0.00 avg300=0.00 total=4409235
full avg10=0.00 avg60=0.00 avg300=0.00 total=1956374
"""
IRQ = "full avg10=1.25 avg60=0.00 avg300=0.00 total=77\n"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    for name, content in (("cpu", CPU), ("memory", MEMORY), ("io", IO), ("irq", IRQ)):
        node.write(f"pressure/{name}", content)
    return node


def test_each_resource_has_its_time_and_its_mean(node: TreeNode) -> None:
    assert list(PressureReader().read(node)) == [
        Count("pressure_cpu_some", 918584897),
        Gauge("pressure_cpu_some_avg10", 0.87),
        Count("pressure_cpu_full", 0),
        Gauge("pressure_cpu_full_avg10", 0.0),
        Count("pressure_memory_some", 4409235),
        Gauge("pressure_memory_some_avg10", 100.0),
        Count("pressure_memory_full", 1956374),
        Gauge("pressure_memory_full_avg10", 0.0),
        Count("pressure_io_some", 171469690),
        Gauge("pressure_io_some_avg10", 0.47),
        Count("pressure_io_full", 147622506),
        Gauge("pressure_io_full_avg10", 0.26),
        Count("pressure_irq_full", 77),
        Gauge("pressure_irq_full_avg10", 1.25),
    ]


def test_what_is_told_is_described(node: TreeNode) -> None:
    assert {each.metric for each in PressureReader().read(node)} == set(PressureReader.metrics)


def test_half_a_second_in_a_second_is_half_of_the_time(node: TreeNode) -> None:
    reader, rates = PressureReader(), Rates[Scope]()
    shares: dict[str, float] = {}
    for moment, total in ((100.0, 171469690), (110.0, 171469690 + 5_000_000)):
        node.write("pressure/io", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        counts = [each for each in reader.read(node) if isinstance(each, Count)]
        shares = {
            name: share
            for name, share, place in rates.of(counts, reader.metrics, moment)
            if place == NODE
        }
    assert shares["pressure_io_some"] == pytest.approx(50)
    assert shares["pressure_cpu_some"] == 0


def test_cpu_full_says_nothing_of_a_node_and_is_sent_only_on_demand() -> None:
    on_demand = {name for name, metric in PressureReader.metrics.items() if not metric.is_default}
    assert on_demand == {"pressure_cpu_full", "pressure_cpu_full_avg10"}


def test_older_kernels_tell_less(node: TreeNode) -> None:
    # Before 6.1 there is no irq, before 5.13 no `full` of the cpu.
    (node.path / "proc" / "pressure" / "irq").unlink()
    node.write("pressure/cpu", CPU.splitlines(keepends=True)[0])
    reader = PressureReader()
    told = {each.metric for each in reader.read(node)}
    assert "pressure_cpu_some" in told
    assert not {"pressure_cpu_full", "pressure_irq_full"} & told
    assert reader.errors == []


def test_a_line_that_no_kernel_writes_is_no_metric(node: TreeNode) -> None:
    node.write("pressure/irq", CPU)
    assert {each.metric for each in PressureReader().read(node)} <= set(PressureReader.metrics)


def test_a_broken_file_costs_only_its_own_values(node: TreeNode) -> None:
    reader = PressureReader()
    node.write("pressure/memory", "some much\n")
    told = {each.metric for each in reader.read(node)}
    assert told == {name for name in PressureReader.metrics if "memory" not in name}
    assert reader.errors == ["/proc/pressure/memory: neither some nor full: b'some much\\n'"]
    node.write("pressure/memory", MEMORY)
    assert {each.metric for each in reader.read(node)} == set(PressureReader.metrics)
    assert reader.errors == []


def test_a_kernel_without_pressure_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        PressureReader().read(TreeNode(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"some\n",
        b"some avg10=0.00 total=-1\n",
        b"some avg10=-0.10 total=1\n",
        b"some avg10=nan total=1\n",
        b"some avg10=100.01 avg60=0.00 total=1\n",
        b"some avg10=0.00 avg60=0.00 total=18446744073709551616\n",
        b"half avg10=0.00 avg60=0.00 total=1\n",
    ],
)
def test_what_is_no_pressure(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_pressure(content)


@given(
    st.binary()
    | st.lists(
        st.tuples(
            st.sampled_from(["some", "full"]), st.floats(-1, 101), st.integers(-1, 2**65)
        ).map(lambda line: "{} avg10={:.2f} avg60=0.00 avg300=0.00 total={}\n".format(*line))
    ).map(lambda lines: "".join(lines).encode())
)
def test_pressure_is_understood_or_unparsable(content: bytes) -> None:
    try:
        found = parse_pressure(content)
    except UnparsableError:
        return
    assert found.keys() <= {"some", "full"}
    for pressure in found.values():
        assert 0 <= pressure.avg10 <= 100
        assert 0 <= pressure.total <= LARGEST_UINT


@pytest.mark.skipif(
    not Path("/proc/pressure/cpu").exists(), reason="the kernel was started without psi=1"
)
def test_pressure_of_this_machine_is_that_of_proc() -> None:
    def some() -> Pressure:
        fields = dict(
            field.split("=")
            for field in Path("/proc/pressure/cpu").read_text().splitlines()[0].split()[1:]
        )
        return Pressure(float(fields["avg10"]), int(fields["total"]))

    before = some()
    found = {each.metric: each.value for each in PressureReader().read(Node())}
    assert before.total <= found["pressure_cpu_some"] <= some().total
