"""RDMA objects of processes: recorded answers of a kernel, and answers that no kernel gives."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import NotHereError
from ccagent.machine.node import Node
from ccagent.machine.rdma import (
    Attributes,
    RdmaObject,
    RdmaPart,
    add_messages,
    parse_attributes,
    parse_devices,
    parse_objects,
    parse_statistics,
    read_objects,
    sum_job_rdma,
)
from tests.support.paths import DATA

PINGPONG = 159


def recorded(name: str) -> list[Attributes]:
    """Return the messages of a recorded dump, after its end was found."""
    found: list[Attributes] = []
    follows = True
    for line in (DATA / "rdma/netlink.txt").read_text().splitlines():
        kind, _, answer = line.partition(" ")
        if kind == name:
            follows = add_messages(bytes.fromhex(answer), found)
    assert not follows
    return found


def attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + b"\0" * (-size % 4)


def test_the_device_of_the_machine() -> None:
    assert parse_devices(recorded("devices")) == [0]


@pytest.mark.parametrize(
    ("name", "objects"),
    [
        ("queue_pairs", [(1, "queue_pairs", 1)]),
        ("completion_queues", [(0, "completion_queues", 1), (0, "completion_entries", 511)]),
        ("memory_regions", [(0, "memory_regions", 1), (0, "memory", 4096)]),
        ("contexts", [(0, "contexts", 1)]),
        ("receive_queues", []),
    ],
)
def test_what_rdma_resource_show_prints(name: str, objects: list[tuple[int, str, int]]) -> None:
    assert [*parse_objects(recorded(name), name)] == [
        RdmaObject(PINGPONG, "rxe0", port, what, amount) for port, what, amount in objects
    ]


def test_objects_of_the_kernel_belong_to_no_process() -> None:
    entries = [message for message in recorded("queue_pairs") for kind, _ in message if kind == 19]
    assert entries
    assert {each.pid for each in parse_objects(recorded("queue_pairs"), "queue_pairs")} == {159}


def test_counters_of_requests_by_process() -> None:
    counters = b"".join(
        attribute(81, attribute(82, name + b"\0") + attribute(83, struct.pack("=Q", value)))
        for name, value in ((b"rx_write_requests", 41988882), (b"rx_read_requests", 7))
    )
    entry = (
        attribute(3, struct.pack("=I", 1))
        + attribute(28, struct.pack("=I", 46235))
        + attribute(80, counters)
    )
    content = attribute(2, b"mlx5_0\0") + attribute(77, attribute(78, entry))
    assert [*parse_statistics([parse_attributes(content)])] == [
        RdmaObject(46235, "mlx5_0", 1, "rx_write_requests", 41988882),
        RdmaObject(46235, "mlx5_0", 1, "rx_read_requests", 7),
    ]


def test_a_command_that_the_device_lacks_has_no_objects() -> None:
    assert recorded("refused") == []


def test_a_refusal_of_the_kernel_is_an_error() -> None:
    refused = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1)
    with pytest.raises(OSError, match="Operation not permitted"):
        add_messages(refused, [])


def test_the_sums_of_a_job_over_devices_and_ports() -> None:
    parts = {
        RdmaPart(12, "mlx5_0", 1): {"queue_pairs": 2},
        RdmaPart(12, "mlx5_1", 1): {"queue_pairs": 3, "contexts": 1},
        RdmaPart(13, "mlx5_0", 0): {"memory": 4096},
    }
    assert sum_job_rdma(parts) == {12: {"queue_pairs": 5, "contexts": 1}, 13: {"memory": 4096}}


@given(st.binary(max_size=400))
def test_whatever_is_received_is_parsed_or_is_an_error(content: bytes) -> None:
    found: list[Attributes] = []
    try:
        add_messages(content, found)
    except OSError:
        return
    for name in ("queue_pairs", "completion_queues", "memory_regions"):
        assert len([*parse_objects(found, name)]) <= len(content)
    assert len([*parse_statistics(found)]) <= len(content)


def test_a_recorded_machine_has_no_kernel_to_ask() -> None:
    with pytest.raises(NotHereError):
        next(read_objects(Node(root="/nowhere", hostname="n", cluster="c")))
