"""sysinfo, NUMA: how many nodes there are, and their distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import Numa, node_numbers, parse_distances, read_numa
from ccagent.machine.node import Node
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from pathlib import Path

NODES = "sys/devices/system/node"


def machine(root: Path, distances: dict[int, str]) -> Node:
    for number, text in distances.items():
        directory = root / NODES / f"node{number}"
        directory.mkdir(parents=True)
        (directory / "distance").write_text(text)
        (directory / "cpulist").write_text("\n")
    (root / NODES / "online").write_text("0\n")
    (root / NODES / "has_cpu").write_text("0\n")
    return Node(root=str(root), hostname="n1", cluster="c1")


def test_distances_are_numbers() -> None:
    assert parse_distances(b"10 21 32\n") == [10, 21, 32]
    assert parse_distances(b"\n") == []


@pytest.mark.parametrize("text", [b"10 x", b"-1", b"1.5", b"+1", b"18446744073709551616", b"\xff"])
def test_what_is_no_distance(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_distances(text)


@given(st.binary() | st.text("0123456789 -\n").map(str.encode))
def test_distances_are_understood_or_unparsable(text: bytes) -> None:
    try:
        distances = parse_distances(text)
    except UnparsableError:
        return
    assert all(0 <= distance <= LARGEST_UINT for distance in distances)


def test_nodes_are_in_the_order_of_their_numbers() -> None:
    names = ["node10", "node2", "online", "node", "nodex", "node0", "has_cpu", "power", "node٣"]
    assert node_numbers(names) == [0, 2, 10]


def test_sparse_nodes_make_a_dense_matrix(tmp_path: Path) -> None:
    # As POWER9 with GPUs has them: nodes 0 and 8 with cpus, 252 and 255 with GPU memory only.
    rows = {
        255: "80 80 80 10\n",
        0: "10 40 80 80\n",
        8: "40 10 80 80\n",
        252: "80 80 10 80\n",
    }
    errors: list[CcagentError] = []
    assert read_numa(machine(tmp_path, rows), errors) == Numa(
        4, [[10, 40, 80, 80], [40, 10, 80, 80], [80, 80, 10, 80], [80, 80, 80, 10]]
    )
    assert errors == []


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({0: "10 20\n", 1: "20\n"}, f"/{NODES}: 2 nodes, but lines of 2, 1 distances"),
        ({0: "10 20\n"}, f"/{NODES}: 1 nodes, but lines of 2 distances"),
        ({0: ""}, f"/{NODES}: 1 nodes, but lines of 0 distances"),
        ({0: "10 far\n", 1: "20 10\n"},
         f"/{NODES}/node0/distance: not a list of distances: b'10 far\\n'"),
    ],
)  # fmt: skip
def test_without_a_square_matrix_the_number_of_nodes_is_right(
    tmp_path: Path, rows: dict[int, str], complaint: str
) -> None:
    errors: list[CcagentError] = []
    assert read_numa(machine(tmp_path, rows), errors) == Numa(len(rows), [])
    assert [str(error) for error in errors] == [complaint]


def test_a_node_without_distances_still_counts(tmp_path: Path) -> None:
    node = machine(tmp_path, {0: "10 20\n", 1: "20 10\n"})
    (tmp_path / NODES / "node1" / "distance").unlink()
    errors: list[CcagentError] = []
    assert read_numa(node, errors) == Numa(2, [])
    assert [type(error) for error in errors] == [NotHereError]


def test_a_kernel_without_numa_has_no_nodes(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = Node(root=str(tmp_path), hostname="n1", cluster="c1")
    assert read_numa(node, errors) == Numa(0, [])
    assert [type(error) for error in errors] == [NotHereError]
