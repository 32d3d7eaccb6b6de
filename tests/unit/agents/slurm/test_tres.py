"""Numbers of GPUs in the generic resources of a node."""

from __future__ import annotations

import pytest

from ccagent.agents.slurm.tres import count_node_gpus


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:2(S:0-1)", 2),
        ("gpu:(null):3(IDX:0-2)", 3),
        ("gpu:a100:2(IDX:0,3),gpu:(null):1(IDX:4)", 3),
        ("gpu:a100_1g.5gb:7,shard:14,vgpu:4", 7),
        ("gpu:h100:1,gpu:h10", 1),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: int) -> None:
    assert count_node_gpus(gres) == gpus
