"""energy: the table for people, and what it says where there is nothing to read."""

from __future__ import annotations

from pathlib import Path

from ccagent.agents.energy.commands import format_table
from ccagent.agents.energy.meter import EnergyMeter
from ccagent.machine.checks import Check, CheckResult
from tests.support.energy_tree import EnergyNode, make_meter, make_settings


def test_domains_and_jobs(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.zones()
    node.job(12, "0-3")
    meter = make_meter(node, **{"idle-package": 40.0})
    node.spend("0", 1000)
    node.work(12, {0: 500})
    node.still.sleep(10)
    text = format_table(node, meter, meter.tick(node), [])
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["energy", "of", "n1", "in", "10.0", "s"]
    assert ["package", "0", "1000.000", "100.0", "40.0", "0.000", "0.000"] in lines
    assert any(line[:5] == ["12", "-", "600.000", "400.000", "100.0"] for line in lines)
    assert "no meter of the whole node" in text
    assert max(map(len, text.splitlines()[:12])) <= 100


def test_without_a_job(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.zones()
    meter = make_meter(node)
    node.still.sleep(10)
    assert "no Slurm job on this node" in format_table(node, meter, meter.tick(node), [])


def test_without_a_source_it_says_what_to_do(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    meter = EnergyMeter(make_settings())
    meter.open(node)
    node.still.sleep(10)
    checks = [
        Check("x", "RAPL", lambda: CheckResult("missing", "no zones", "modprobe intel_rapl_msr")),
        Check("x", "RAPL", lambda: CheckResult("missing", "no zones", "modprobe intel_rapl_msr")),
        Check("x", "fine", lambda: CheckResult("good", "all is well")),
        Check("x", "no card", lambda: CheckResult("missing", "none")),
    ]
    text = format_table(node, meter, meter.tick(node), checks)
    assert text.splitlines() == [
        "energy of n1 in 10.0 s",
        "",
        "no energy is known: this machine has no readable source",
        "",
        "RAPL: no zones",
        "    modprobe intel_rapl_msr",
    ]
