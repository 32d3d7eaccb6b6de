"""What the doctor says of controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.configuration import check
from ccagent.controls.journal import JOURNAL_FILE
from ccagent.doctor.exporter import check_controls
from ccagent.doctor.finding import Site as DoctorSite
from tests.support.control_machines import Site, allow, intel, virtual

if TYPE_CHECKING:
    from pathlib import Path

    from ccagent.doctor.finding import Finding
    from ccagent.machine.node import Node


def findings(node: Node, table: dict[str, object]) -> dict[str, Finding]:
    configuration = check({"controls": table} if table else {}, "test")
    return {f.subject: f for f in check_controls(DoctorSite(node, configuration, []))}


def test_a_machine_says_what_could_be_controlled_and_what_is_missing(tmp_path: Path) -> None:
    (finding,) = findings(intel(tmp_path), {}).values()
    assert finding.state == "good"
    assert "rapl 18 (11 can be set)" in finding.found
    assert "os 3 (3 can be set)" in finding.found
    assert "hsmp: the driver amd_hsmp (/dev/hsmp): modprobe amd_hsmp" in finding.fix


def test_a_virtual_machine_has_none(tmp_path: Path) -> None:
    (finding,) = findings(virtual(tmp_path), {}).values()
    assert (finding.state, finding.found) == ("missing", "none")


def test_rules_for_what_is_not_there_are_told(tmp_path: Path) -> None:
    node = virtual(tmp_path / "machine")
    table = allow(rapl__pkg_limit_1={"min": 1, "max": 2}, config__agents__sample={})
    found = findings(node, table | {"state-directory": str(tmp_path / "state")})
    assert found["control rapl.pkg_limit_1"].state == "missing"
    assert "modprobe intel_rapl_msr" in found["control rapl.pkg_limit_1"].fix
    assert "control config.agents.sample" not in found


def test_changes_in_effect_are_told(tmp_path: Path) -> None:
    node = intel(tmp_path / "machine")
    table = allow(os__swappiness={"min": 0, "max": 100})
    state = tmp_path / "state"
    site = Site(node, table, state=state)
    site.ask("os.swappiness", "5")
    where = {"state-directory": str(state)}
    assert findings(node, table | where)["changes in effect"].found == "1: os.swappiness@0"
    (state / JOURNAL_FILE).chmod(0o600)
    (tmp_path / "precious").write_text("x")
    (state / JOURNAL_FILE).unlink()
    (state / JOURNAL_FILE).symlink_to(tmp_path / "precious")
    assert findings(node, table | where)["changes in effect"].state == "problem"
