"""energy, perf: 64-bit counters of the PMU `power`, one cpu a package."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.sources.rapl import (
    PerfEnergySource,
    PowercapSource,
    RaplSource,
    as_microjoules,
    parse_scale,
)
from ccagent.agents.metrics.perf.call import PerfEvent
from ccagent.errors import NotHereError, NotPermittedError, UnparsableError
from tests.support.energy_tree import AMD_RANGE, INTEL_RANGE, EnergyNode
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


@contextlib.contextmanager
def unprivileged() -> Generator[None]:
    """Root may read everything, so be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def for_all() -> Generator[EnergyNode]:
    """A node whose directories everybody may enter, which tmp_path isn't."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        node = EnergyNode(Path(directory))
        node.zones()
        yield node


def energies(source: PowercapSource, node: EnergyNode) -> dict[EnergyDomain, int | str]:
    node.still.sleep(10)
    found = source.read(node)
    return {domain: each.flaw or each.energy for domain, each in found.items()}


def test_dies_make_up_a_package(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), PowercapSource()
    node.zone("0", "package-0-die-0", INTEL_RANGE)
    node.zone("1", "package-0-die-1", INTEL_RANGE, energy=INTEL_RANGE - 5)
    assert energies(source, node) == {}
    node.spend("0", 100)
    node.spend("1", 50)
    assert energies(source, node) == {P0: 150_000_000}


def test_a_zone_that_appears_is_unknown_at_first(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), PowercapSource()
    node.zone("0", "package-0", INTEL_RANGE)
    energies(source, node)
    node.zone("0:0", "dram", INTEL_RANGE, energy=77_000_000)
    node.spend("0", 100)
    # Were it missing, a node's meter would have its energy as other energy.
    assert energies(source, node) == {P0: 100_000_000, D0: "it was read for the first time"}
    node.spend("0:0", 9)
    assert energies(source, node) == {P0: 0, D0: 9_000_000}


def test_a_counter_of_unknown_range_is_taken_for_one_that_never_wraps(tmp_path: Path) -> None:
    node, source = EnergyNode(tmp_path), PowercapSource()
    node.zone("0", "package-0", AMD_RANGE)
    node.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "\n")
    energies(source, node)
    assert source.poll_interval == 0
    node.write("sys/class/powercap/intel-rapl:0/energy_uj", "1\n")
    assert energies(source, node) == {P0: "the counter was reset"}


def test_who_may_read_nothing_is_shown_the_remedy(for_all: EnergyNode) -> None:
    files = list((for_all.path / "sys/class/powercap").glob("*/energy_uj"))
    for file in files:
        file.chmod(0)
    source = PowercapSource()
    with unprivileged(), pytest.raises(NotPermittedError) as caught:
        source.read(for_all)
    assert "Permission denied: only root may read the counters" in str(caught.value)
    assert 'SUBSYSTEM=="powercap"' in str(caught.value)
    for file in files:
        file.chmod(0o444)
    energies(source, for_all)
    for_all.spend("0", 7)
    assert energies(source, for_all)[P0] == 7_000_000


def test_some_zones_that_cannot_be_read_cost_their_domains(for_all: EnergyNode) -> None:
    (for_all.path / "sys/class/powercap/intel-rapl:1/energy_uj").chmod(0)
    source = PowercapSource()
    with unprivileged():
        source.read(for_all)
        for_all.still.sleep(10)
        found = source.read(for_all)
    assert found[P0].flaw == ""
    assert found[EnergyDomain("package", 1)].flaw == "it could not be read"
    assert len(source.errors) == 1


def test_without_zones_it_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        PowercapSource().read(EnergyNode(tmp_path))
