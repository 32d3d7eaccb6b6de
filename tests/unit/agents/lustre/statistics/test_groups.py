"""Reading what statistics need, and their documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.lustre.statistics.groups import GROUPS, points_of, read_statistics
from tests.support.paths import ROOT
from tests.support.tree import TreeNode

DOCUMENT = ROOT / "agents" / "lustre" / "statistics.md"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path / "node")


def script(directory: Path, name: str, body: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_patterns_are_asked_for_one_by_one(node: TreeNode, tmp_path: Path) -> None:
    lctl = script(
        tmp_path,
        "lctl",
        'case "$2" in health_check) echo "health_check=NOT HEALTHY";; '
        'obdfilter*) echo "obdfilter.fs-OST0000.num_exports=12";; '
        '*) echo "error: get_param: param_path: No such file or directory" >&2; exit 2;; esac',
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["health", "exports"], lctl, 5.0, errors)
    points = list(points_of(parameters, ["health", "exports"], {}, 1.0, errors))
    values = {point.name: point.value for point in points if "stype" not in point.tags}
    assert values["lustre_ost_exports"] == 12
    assert values["lustre_health"] == 0
    assert errors == []


def test_what_a_node_has_not_is_left_out(node: TreeNode) -> None:
    errors: list[str] = []
    assert read_statistics(node, [*GROUPS], "/nowhere/lctl", 5.0, errors) == []
    assert errors == []


def test_a_program_that_fails_is_said_and_what_it_printed_counts(
    node: TreeNode, tmp_path: Path
) -> None:
    lctl = script(
        tmp_path, "lctl", 'echo "obdfilter.fs-OST0000.num_exports=3"; echo no >&2; exit 5'
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["exports"], lctl, 5.0, errors)
    assert parameters[0].value.strip() == b"3"
    assert f"{lctl}: exit status 5: no" in errors


def test_one_that_hangs_is_ended(node: TreeNode, tmp_path: Path) -> None:
    lctl = script(tmp_path, "lctl", "sleep 60")
    errors: list[str] = []
    assert read_statistics(node, ["health"], lctl, 0.3, errors) == []
    assert errors
    assert all("not finished after 0.3 s" in error for error in errors)


def test_files_of_the_kernel_are_read(node: TreeNode) -> None:
    node.path.joinpath("sys/kernel/debug/lnet").mkdir(parents=True)
    node.path.joinpath("sys/kernel/debug/lnet/stats").write_text(
        "0 39 0 1110532 1110512 0 11 1 2 0 5\n"
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["lnet"], "/nowhere/lctl", 5.0, errors)
    points = points_of(parameters, ["lnet"], {}, 1.0, errors)
    assert {point.name: point.value for point in points}["lustre_lnet_msgs_max"] == 39


def test_every_group_is_documented() -> None:
    text = DOCUMENT.read_text()
    for name, group in GROUPS.items():
        assert f"| `{name}` | " in text
        assert all(f"`lctl get_param {pattern}`" in text for pattern in group.patterns)
