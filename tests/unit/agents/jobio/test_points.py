"""Bytes of the node's ports, for a job that has the node alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.jobio.points import ExclusivePorts, exclusive_job, living_jobs
from tests.support.job_io import JobIoNode


@pytest.fixture
def node(tmp_path: Path) -> JobIoNode:
    machine = JobIoNode(tmp_path)
    write(machine, "sys/devices/system/cpu/online", "0-1\n")
    return machine


def write(node: JobIoNode, name: str, text: str) -> None:
    path = node.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def set_port(node: JobIoNode, words: int) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    write(node, f"{port}/state", "4: ACTIVE\n")
    write(node, f"{port}/rate", "100 Gb/sec (4X EDR)\n")
    for name in ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets"):
        write(node, f"{port}/counters/{name}", f"{words}\n")


def test_a_job_is_alone_if_it_has_all_hwthreads(node: JobIoNode) -> None:
    assert exclusive_job(node, living_jobs(node)) == 0
    node.start_job(5)
    assert exclusive_job(node, living_jobs(node)) == 5
    node.start_job(6)
    assert exclusive_job(node, living_jobs(node)) == 0


def test_a_job_on_a_part_of_the_node_is_not_alone(node: JobIoNode) -> None:
    node.start_job(5, cpus="0")
    assert exclusive_job(node, living_jobs(node)) == 0


def test_the_ports_count_for_the_exclusive_job(node: JobIoNode) -> None:
    ports = ExclusivePorts()
    node.start_job(5)
    set_port(node, 1000)
    assert list(ports.points(node, {5})) == []
    set_port(node, 2000)
    node.pass_time(4)
    found = {point.name: point for point in ports.points(node, {5})}
    assert found["job_net_ports_sent"].value == 1000
    assert found["job_net_ports_received"].tags["layer"] == "port"


def test_bytes_of_the_time_before_the_job_are_not_its_own(node: JobIoNode) -> None:
    ports = ExclusivePorts()
    set_port(node, 1000)
    assert list(ports.points(node, set())) == []
    node.start_job(5)
    set_port(node, 2000)
    node.pass_time(4)
    assert list(ports.points(node, {5})) == []


def test_without_ports_there_are_no_points(node: JobIoNode) -> None:
    ports = ExclusivePorts()
    node.start_job(5)
    assert list(ports.points(node, {5})) == []
    assert list(ports.points(node, {5})) == []
