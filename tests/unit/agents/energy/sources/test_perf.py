"""energy, perf: 64-bit counters of the PMU `power`, one cpu a package."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.sources.rapl import (
    PerfEnergySource,
    RaplSource,
    as_microjoules,
    parse_scale,
)
from ccagent.agents.metrics.perf.call import PerfEvent
from ccagent.errors import NotHereError, NotPermittedError, UnparsableError
from tests.support.energy_tree import EnergyNode
from tests.support.perf_counters import StandIn

PACKAGE, MEMORY = PerfEvent(21, 2), PerfEvent(21, 3)
JOULE = 1 << 32
P0, P1 = EnergyDomain("package", 0), EnergyDomain("package", 1)
D0, D1 = EnergyDomain("dram", 0), EnergyDomain("dram", 1)


@pytest.fixture
def node(tmp_path: Path) -> EnergyNode:
    """A node whose PMU `power` counts packages and memory, on cpus 0 and 4."""
    found = EnergyNode(tmp_path)
    pmu = "sys/bus/event_source/devices/power"
    found.write(f"{pmu}/type", "21\n")
    found.write(f"{pmu}/cpumask", "0,4\n")
    found.write(f"{pmu}/format/event", "config:0-7\n")
    for name, number in (("energy-pkg", 2), ("energy-ram", 3), ("energy-psys", 5)):
        found.write(f"{pmu}/events/{name}", f"event=0x{number:02x}\n")
        found.write(f"{pmu}/events/{name}.scale", "2.3283064365386962890625e-10\n")
    return found


@pytest.fixture
def counters() -> StandIn:
    """100 W in a package, 10 W in its memory."""
    return StandIn({PACKAGE: 100 * JOULE, MEMORY: 10 * JOULE})


def pass_time(node: EnergyNode, counters: StandIn, seconds: int = 10) -> None:
    counters.let_pass(seconds)
    node.still.sleep(seconds)


def test_the_kernels_unit_is_exact() -> None:
    scale = parse_scale(b"2.3283064365386962890625e-10\n")
    assert as_microjoules(JOULE, scale) == 1_000_000
    assert as_microjoules((1 << 63) + JOULE, scale) - as_microjoules(1 << 63, scale) == 1_000_000
    assert as_microjoules(1_000_000, 1e-6) == 1_000_000


@pytest.mark.parametrize("text", [b"", b"nan", b"0", b"-1e-9", b"1", b"2e999", b"x", b"1e-9 J"])
def test_what_is_no_scale(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_scale(text)


def test_packages_and_memory_are_counted(node: EnergyNode, counters: StandIn) -> None:
    source = PerfEnergySource(counters)
    assert source.read(node) == {}
    pass_time(node, counters)
    found = source.read(node)
    assert {domain: each.energy for domain, each in found.items()} == {
        P0: 1_000_000_000, P1: 1_000_000_000, D0: 100_000_000, D1: 100_000_000,
    }  # fmt: skip
    source.close()
    assert not counters.descriptors


def test_an_hour_without_a_reading_is_no_gap(node: EnergyNode, counters: StandIn) -> None:
    source = PerfEnergySource(counters)
    source.read(node)
    pass_time(node, counters, 36_000)
    assert source.read(node)[P0].energy == 3_600_000_000_000
    assert source.poll_interval == 0


def test_a_package_that_goes_offline_has_the_others_opened_again(
    node: EnergyNode, counters: StandIn
) -> None:
    source = PerfEnergySource(counters)
    source.read(node)
    node.write("sys/bus/event_source/devices/power/cpumask", "0\n")
    pass_time(node, counters)
    assert source.read(node) == {}
    pass_time(node, counters)
    assert {*source.read(node)} == {P0, D0}


def test_a_broken_counter_costs_its_domain(node: EnergyNode, counters: StandIn) -> None:
    source = PerfEnergySource(counters)
    source.read(node)
    counters.broken = {4}
    pass_time(node, counters)
    found = source.read(node)
    assert found[P1].flaw == found[D1].flaw == "it could not be read"
    assert found[P0].energy == 1_000_000_000
    assert len(source.errors) == 1


def test_who_may_not_open_them_is_told_and_powercap_is_read(
    node: EnergyNode, counters: StandIn
) -> None:
    counters.denied = errno.EACCES
    with pytest.raises(NotPermittedError, match="CAP_PERFMON"):
        PerfEnergySource(counters).read(node)
    node.zones()
    source = RaplSource("auto", PerfEnergySource(counters))
    source.read(node)
    node.spend("0", 500)
    node.still.sleep(10)
    assert source.read(node)[P0].energy == 500_000_000
    assert source.poll_interval > 0
    counters.denied = 0
    for seconds, expected in ((10, 700_000_000), (10, 1_000_000_000)):
        node.spend("0", 700)
        pass_time(node, counters, seconds)
        assert source.read(node)[P0].energy == expected
    assert source.poll_interval == 0
    source.close()


@pytest.mark.parametrize(
    ("vendor", "is_estimate"), [("GenuineIntel", False), ("AuthenticAMD", True), ("", False)]
)
def test_a_model_in_the_processor_makes_estimates(
    node: EnergyNode, counters: StandIn, vendor: str, *, is_estimate: bool
) -> None:
    node.write("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {vendor}\n\n")
    source = RaplSource("perf", PerfEnergySource(counters))
    source.read(node)
    pass_time(node, counters)
    assert {each.is_estimate for each in source.read(node).values()} == {is_estimate}


def test_without_the_pmu_it_is_not_here(tmp_path: Path, counters: StandIn) -> None:
    bare = EnergyNode(tmp_path)
    with pytest.raises(NotHereError):
        PerfEnergySource(counters).read(bare)
    with pytest.raises(NotHereError):
        RaplSource("auto", PerfEnergySource(counters)).read(bare)


def test_a_recorded_machine_has_no_counters(node: EnergyNode) -> None:
    with pytest.raises(NotHereError, match="only the machine itself"):
        PerfEnergySource().read(node)
