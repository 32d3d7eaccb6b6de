"""Putting values back on a node where no service runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ccagent.controls.responder import answer_directly
from ccagent.controls.settings import ControlSetup
from ccagent.records.line_protocol import Line
from tests.support.control_machines import MachineNode, Site, add_os, allow, check_table

if TYPE_CHECKING:
    from pathlib import Path

SWAP = "proc/sys/vm/swappiness"
RESTORE = Line("restore", {"method": "PUT", "type": "node", "type-id": "0"}, "control", "", 1)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineNode:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    return node


def restore(node: MachineNode, state: Path) -> tuple[str, object]:
    settings = check_table({"state-directory": str(state)})
    (answer,) = answer_directly(ControlSetup("test", settings, {}), node, [RESTORE])
    return answer.tags["level"], answer.value


def test_on_a_node_where_no_service_ever_ran_nothing_is_to_do(
    node: MachineNode, tmp_path: Path
) -> None:
    state = tmp_path / "never"
    assert restore(node, state) == ("INFO", "Restored 0 values: SUCCESS!")
    assert not state.exists()


def test_after_a_boot_the_kernels_own_values_stay_without_a_service_too(
    node: MachineNode,
) -> None:
    site = Site(node, allow(os__swappiness={"min": 0, "max": 200}))
    assert site.ask("os.swappiness", "10")[0] == "INFO"
    node.put("proc/sys/kernel/random/boot_id", "another")
    node.put(SWAP, 45)
    assert restore(node, site.state) == ("INFO", "Restored 0 values: SUCCESS!")
    assert node.text(SWAP) == "45"
