"""Whether a kernel preempts kernel code."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.machine.bpf.io_loading import find_mode, is_preemptible
from tests.support.tree import TreeNode

DYNAMIC = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-06-01)\n"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def write(node: TreeNode, name: str, text: str) -> None:
    path = node.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("version", "preempts"),
    [("#1 SMP Debian", False), ("#1 SMP PREEMPT Ubuntu", True), ("#1 SMP PREEMPT_RT", True)],
)
def test_the_version_says_it(node: TreeNode, version: str, preempts: bool) -> None:
    node.write("sys/kernel/version", version)
    assert is_preemptible(node) is preempts


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("none (voluntary) full \n", "voluntary"),
        ("full (lazy) \n", "lazy"),
        ("(none) full", "none"),
    ],
)
def test_debugfs_has_the_mode_of_dynamic_kernels(node: TreeNode, text: str, mode: str) -> None:
    write(node, "sys/kernel/debug/sched/preempt", text)
    assert find_mode(node, DYNAMIC) == mode


def test_without_debugfs_the_command_line_counts_before_the_configuration(node: TreeNode) -> None:
    node.write("sys/kernel/version", DYNAMIC)
    node.write("sys/kernel/osrelease", "6.1.0-50-amd64\n")
    assert is_preemptible(node)
    write(node, "boot/config-6.1.0-50-amd64", "# x\nCONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT=n\n")
    assert not is_preemptible(node)
    node.write("cmdline", "quiet preempt=full ro\n")
    assert is_preemptible(node)
