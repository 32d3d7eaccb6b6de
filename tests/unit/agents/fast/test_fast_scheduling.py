"""The rule of the reference scheduler."""

from __future__ import annotations

import pytest

from ccagent.agents.fast.scheduling import NodeLoad, propose_move


def test_two_machines_that_saturate_a_node_are_moved_apart() -> None:
    nodes = {
        "c1": NodeLoad(90e9, {"vm-1": 40.0, "vm-2": 40.0, "vm-3": 10.0}),
        "c2": NodeLoad(10e9, {"vm-4": 10.0}),
    }
    proposal = propose_move(nodes, 50e9)
    assert proposal is not None
    assert (proposal.machine, proposal.source, proposal.target) == ("vm-1", "c1", "c2")
    assert proposal.after == pytest.approx((50e9, 50e9))
    assert proposal.unit == "B/s"


def test_without_bandwidth_of_all_nodes_the_cpu_usage_counts() -> None:
    nodes = {
        "c1": NodeLoad(None, {"vm-1": 30.0, "vm-2": 5.0}),
        "c2": NodeLoad(1e9, {"vm-4": 10.0}),
    }
    proposal = propose_move(nodes, 20.0)
    assert proposal is not None
    assert (proposal.machine, proposal.before, proposal.unit) == ("vm-2", (35.0, 10.0), "% CPU")


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {"c1": NodeLoad(None, {"a": 90.0, "b": 90.0})},
        {"c1": NodeLoad(None, {"a": 90.0}), "c2": NodeLoad(None, {})},
        {"c1": NodeLoad(None, {"a": 9.0, "b": 9.0}), "c2": NodeLoad(None, {})},
        {"c1": NodeLoad(None, {"a": 50.0, "b": 1.0}), "c2": NodeLoad(None, {"c": 50.0})},
        {"c1": NodeLoad(90e9, {"a": 0.0, "b": 0.0}), "c2": NodeLoad(1e9, {})},
    ],
    ids=range(6),
)
def test_no_move_that_does_not_help_is_proposed(nodes: dict[str, NodeLoad]) -> None:
    assert propose_move(nodes, 20.0) is None
