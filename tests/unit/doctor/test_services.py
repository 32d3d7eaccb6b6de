"""Checks of the Prometheus endpoint, and of the control service."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.config.configuration import check
from ccagent.controls.journal import JOURNAL_FILE
from ccagent.doctor.finding import Site as DoctorSite
from ccagent.doctor.services import check_controls, check_exporter, check_exporter_names
from tests.support.certificates import Authority
from tests.support.control_machines import Site, allow, intel, virtual
from tests.support.doctor_site import found
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from ccagent.doctor.finding import Finding
    from ccagent.machine.node import Node


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def test_without_the_table_there_is_nothing_to_say(node: TreeNode) -> None:
    assert found(check_exporter, node) == {}


def test_a_port_that_nobody_listens_at(node: TreeNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        table = {"listen": [f"127.0.0.1:{port}"]}
        assert found(check_exporter, node, exporter=table)[f"exporter 127.0.0.1:{port}"].state == (
            "missing"
        )
        taken.listen()
        assert found(check_exporter, node, exporter=table)[f"exporter 127.0.0.1:{port}"].state == (
            "good"
        )


def test_a_file_of_users_that_is_missing_stops_it(node: TreeNode, tmp_path: Path) -> None:
    table: dict[str, object] = {"listen": [], "users-file": str(tmp_path / "none")}
    finding = found(check_exporter, node, exporter=table)["exporter files"]
    assert (finding.state, finding.stops) == ("problem", ["exporter"])
    assert "exporter.users-file" in finding.found


def test_an_open_endpoint_is_a_problem(node: TreeNode) -> None:
    findings = found(check_exporter, node, exporter={"listen": ["0.0.0.0:1"], "insecure": True})
    assert findings["exporter.insecure"].state == "problem"


def test_a_set_of_names_that_has_nothing_to_read(node: TreeNode, tmp_path: Path) -> None:
    table = {"names": ["ccagent", "slurm", "dcgm"], "squeue": str(tmp_path / "squeue")}
    findings = found(check_exporter_names, node, exporter=table)
    assert {each: findings[each].state for each in findings} == {
        "exporter names slurm": "missing",
        "exporter names dcgm": "missing",
    }
    assert "squeue" in findings["exporter names slurm"].found


def test_a_directory_for_dcgm_exporter_that_is_not_there(node: TreeNode, tmp_path: Path) -> None:
    table = {"gpu-job-directory": str(tmp_path / "none")}
    assert found(check_exporter, node, exporter=table)["exporter.gpu-job-directory"].state == (
        "problem"
    )


def test_a_directory_of_textfiles_that_is_not_there(node: TreeNode, tmp_path: Path) -> None:
    table = {"textfile-directory": str(tmp_path / "none")}
    assert found(check_exporter, node, exporter=table)["exporter.textfile-directory"].state == (
        "problem"
    )


@pytest.mark.parametrize(
    ("is_expired", "state", "text"),
    [(False, "good", "ends on 2099-12-31"), (True, "problem", "has expired")],
)
def test_the_end_of_a_certificate(
    node: TreeNode, tmp_path: Path, is_expired: bool, state: str, text: str
) -> None:
    certificate, key = Authority(tmp_path).certify("exporter", expired=is_expired)
    table: dict[str, object] = {"listen": [], "certificate-file": certificate, "key-file": key}
    finding = found(check_exporter, node, exporter=table)["exporter certificate"]
    assert finding.state == state
    assert text in finding.found


def test_a_key_of_another_certificate_is_named(node: TreeNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.certify("exporter")
    _, key = authority.certify("other")
    table: dict[str, object] = {"listen": [], "certificate-file": certificate, "key-file": key}
    finding = found(check_exporter, node, exporter=table)["exporter files"]
    assert "the key does not belong to the certificate" in finding.found
    empty = tmp_path / "empty.pem"
    empty.touch(0o600)
    table["key-file"] = str(empty)
    finding = found(check_exporter, node, exporter=table)["exporter files"]
    assert "no certificate, or no key, in PEM" in finding.found


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
