"""energy, pm_counters: lines of HPE Cray's controller; scans that are no new ones, new starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import NODE_METER, EnergyDomain
from ccagent.agents.energy.sources.meters import (
    PM_COUNTERS,
    PmCountersSource,
    find_domain,
    parse_joules,
    parse_scan,
)
from ccagent.errors import NotHereError, UnparsableError
from tests.support.energy_tree import EnergyNode

CPU, MEMORY = EnergyDomain("package", -1), EnergyDomain("dram", -1)


class Cray:
    """A blade: energies in J by name, and a number of the scan."""

    def __init__(self, root: Path, *names: str) -> None:
        self.node = EnergyNode(root)
        self.source = PmCountersSource()
        self.joules = dict.fromkeys(names, 1000)
        self.scan, self.startup = 1, 4711
        self.show()

    def show(self) -> None:
        for name, joules in self.joules.items():
            self.node.write(f"{PM_COUNTERS}/{name}", f"{joules} J 1700000000 us\n")
        self.node.write(f"{PM_COUNTERS}/power_cap", "0 W\n")
        self.node.write(f"{PM_COUNTERS}/freshness", f"{self.scan}\n")
        self.node.write(f"{PM_COUNTERS}/startup", f"{self.startup}\n")

    def tick(self, joules: int = 500, scans: int = 100) -> dict[EnergyDomain, int | str]:
        """Return energies in J, or flaws, after ten seconds."""
        self.scan += scans
        self.joules = {name: each + joules for name, each in self.joules.items()}
        self.show()
        self.node.still.sleep(10)
        found = self.source.read(self.node)
        return {domain: each.flaw or each.energy // 10**6 for domain, each in found.items()}


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("energy", NODE_METER),
        ("cpu_energy", CPU),
        ("memory_energy", MEMORY),
        ("accel0_energy", EnergyDomain("card", 0)),
        ("accel3_energy", EnergyDomain("card", 3)),
        ("cpu0_energy", EnergyDomain("package", 0)),
        ("cpu1_energy", EnergyDomain("package", 1)),
        ("power", None),
        ("accel0_power", None),
        ("cpu0_temp", None),
        ("xenergy", None),
        ("accel_energy", None),
    ],
)
def test_domains_of_files(name: str, domain: EnergyDomain | None) -> None:
    assert find_domain(name) == domain


def test_lines() -> None:
    assert parse_joules(b"12345 J 1700000000 us\n") == 12_345_000_000
    assert parse_joules(b"7 J") == 7_000_000
    assert parse_scan(b"12\n") == parse_scan(b"12 0 0\n") == 12


@given(st.binary() | st.from_regex(rb"[0-9]{0,20} ?[JW]? ?[0-9]{0,5}( us)?\n?"))
def test_lines_are_understood_or_unparsable(content: bytes) -> None:
    for parse in (parse_joules, parse_scan):
        try:
            assert parse(content) >= 0
        except UnparsableError:
            continue


def test_all_counters_of_a_scan(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy", "cpu_energy", "memory_energy", "accel0_energy")
    assert cray.source.read(cray.node) == {}
    assert cray.tick() == {NODE_METER: 500, CPU: 500, MEMORY: 500, EnergyDomain("card", 0): 500}


def test_sockets_are_not_added_to_their_sum(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy", "cpu_energy", "cpu0_energy", "cpu1_energy")
    cray.source.read(cray.node)
    assert {*cray.tick()} == {
        NODE_METER, EnergyDomain("package", 0), EnergyDomain("package", 1),
    }  # fmt: skip


def test_without_a_new_scan_nothing_is_known_until_two_are_there(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    stale = {NODE_METER: "the controller has no new scan"}
    assert cray.tick(0, scans=0) == stale
    assert cray.tick(1000) == stale  # this is the energy of two ticks
    assert cray.tick() == {NODE_METER: 500}


def test_a_new_start_of_the_controller_is_no_energy(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    cray.tick()
    cray.startup += 1
    assert cray.tick() == {NODE_METER: "the controller has reset its counters"}
    assert cray.tick() == {NODE_METER: 500}


def test_counters_that_start_again_at_0(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    cray.source.read(cray.node)
    assert cray.tick(-900) == {NODE_METER: "the counter was reset"}


def test_without_pm_counters_it_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        PmCountersSource().read(EnergyNode(tmp_path))
    (tmp_path / PM_COUNTERS).mkdir(parents=True)
    with pytest.raises(NotHereError):
        PmCountersSource().read(EnergyNode(tmp_path))


def test_a_controller_that_is_faster_than_the_reader_is_an_error(tmp_path: Path) -> None:
    cray = Cray(tmp_path, "energy")
    path = cray.node.path / PM_COUNTERS / "freshness"
    path.write_text("x\n")
    with pytest.raises(UnparsableError):
        cray.source.read(cray.node)
