"""energy, powercap: zones that count, dies of a package, and permissions with their remedy."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.sources.rapl import PowercapSource
from ccagent.errors import NotHereError, NotPermittedError
from tests.support.energy_tree import AMD_RANGE, INTEL_RANGE, EnergyNode

P0, D0 = EnergyDomain("package", 0), EnergyDomain("dram", 0)


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
