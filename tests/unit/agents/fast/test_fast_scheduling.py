"""The rule of the reference scheduler."""

from __future__ import annotations

import pytest

from ccagent.agents.fast.scheduling import (
    ApplicationReading,
    MachineReading,
    MoveProposal,
    MoveRule,
    NodeReading,
)

FREE: dict[tuple[int, ...], float | None] = {(0, 1): 0.4, (2, 3): 0.97}
"""Responses of mmbwmon on a node whose second half is free."""


def node(
    bandwidth: float | None = None,
    measured: dict[tuple[int, ...], float | None] | None = None,
    **usages: float,
) -> NodeReading:
    machines = {name: MachineReading(usage) for name, usage in usages.items()}
    return NodeReading(machines, bandwidth, measured or {})


def proposals(limit: float = 20.0, **nodes: NodeReading) -> list[MoveProposal]:
    return [*MoveRule(nodes, limit, 50.0).proposals()]


def test_two_machines_that_saturate_a_node_are_moved_apart() -> None:
    (found,) = proposals(c1=node(90e9, a=40.0, b=40.0, c=10.0), c2=node(10e9, d=10.0))
    assert (found.machine, found.source, found.target, found.cores) == ("a", "c1", "c2", ())
    assert found.after == pytest.approx((50, 50))
    assert found.unit == "GB/s"


def test_without_bandwidth_of_all_nodes_the_cpu_usage_counts() -> None:
    (found,) = proposals(c1=node(a=30.0, b=5.0), c2=node(1e9, d=10.0), limit=34.0)
    assert (found.machine, found.before, found.unit) == ("b", (35.0, 10.0), "% CPU")


def test_an_idle_node_reports_its_bandwidth_too() -> None:
    (found,) = proposals(c1=node(90e9, a=1.0, b=1.0), c2=node(0.0))
    assert found.before == pytest.approx((90, 0))


def test_missing_bandwidth_counts_before_the_cpu_usage() -> None:
    half: dict[tuple[int, ...], float | None] = {(0,): 0.33, (1,): 0.5}
    (found,) = proposals(c1=node(None, half, a=1.0, b=1.0), c2=node(None, {(0,): 1.0}))
    assert found.before == pytest.approx((100, 0))
    assert found.unit == "% of bandwidth missing"


def test_free_cores_of_the_node_are_preferred_to_another_node() -> None:
    (found,) = proposals(c1=node(90e9, FREE, a=40.0, b=40.0), c2=node(1e9))
    assert (found.machine, found.target, found.cores) == ("a", "c1", (2, 3))
    assert found.after == pytest.approx((45, 45))
    (alone,) = proposals(c1=node(90e9, FREE, a=40.0, b=40.0))
    assert alone.cores == (2, 3)


def test_cores_that_are_in_use_are_not_free() -> None:
    (found,) = proposals(c1=node(90e9, {(0, 1): 0.4, (2, 3): None}, a=4.0, b=4.0), c2=node(1e9))
    assert found.cores == ()


def test_moves_are_proposed_until_no_node_exceeds_the_limit() -> None:
    found = proposals(
        c1=node(200e9, {(8,): 1.0}, a=10.0, b=10.0, c=10.0, d=10.0), c2=node(1e9), c3=node(2e9)
    )
    assert [(each.machine, each.target, each.cores) for each in found] == [
        ("a", "c1", (8,)), ("b", "c2", ()), ("c", "c3", ()),
    ]  # fmt: skip


def test_bandwidth_that_applications_report_decides_the_shares() -> None:
    machines = {
        "a": MachineReading(40.0, ApplicationReading({"Memory  bandwidth": 70.0})),
        "b": MachineReading(40.0, ApplicationReading({"memory bandwidth": 20.0})),
    }
    (found,) = proposals(c1=NodeReading(machines, 90e9), c2=node(60e9))
    assert found.machine == "b"
    assert found.after == pytest.approx((70, 80))


def test_an_application_may_forbid_a_migration_but_not_a_repin() -> None:
    fixed = MachineReading(40.0, ApplicationReading(is_migratable=False))
    machines = {"a": fixed, "b": fixed}
    assert proposals(c1=NodeReading(machines, 90e9), c2=node(1e9)) == []
    (found,) = proposals(c1=NodeReading(machines, 90e9, FREE), c2=node(1e9))
    assert found.cores == (2, 3)


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {"c1": node(a=90.0, b=90.0)},
        {"c1": node(a=90.0), "c2": node()},
        {"c1": node(a=9.0, b=9.0), "c2": node()},
        {"c1": node(a=50.0, b=1.0), "c2": node(c=50.0)},
        {"c1": node(90e9, a=0.0, b=0.0), "c2": node(1e9)},
    ],
    ids=range(6),
)
def test_no_move_that_does_not_help_is_proposed(nodes: dict[str, NodeReading]) -> None:
    assert [*MoveRule(nodes, 20.0, 50.0).proposals()] == []
