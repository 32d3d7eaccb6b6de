"""Names of file systems by device."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.jobio.usage import MountName, MountNames, type_name
from ccagent.machine.bpf.io_records import OTHER_DEVICES, IoKey
from tests.support.job_io import MOUNTS, JobIoNode

LUSTRE = "10.0.0.1@o2ib:/scratch"


@pytest.fixture
def node(tmp_path: Path) -> JobIoNode:
    return JobIoNode(tmp_path)


def name(
    node: JobIoNode, device: int, job: int = 5, *, names: MountNames | None = None
) -> MountName:
    names = names or MountNames()
    names.read(node)
    return names.name(node, IoKey(job, device), 0x01021994)


def test_of_several_mounts_of_a_file_system_the_shortest_path_is_its_name(node: JobIoNode) -> None:
    assert name(node, 8 << 20 | 1) == MountName("/", "ext4", "/dev/sda1")
    assert name(node, 40) == MountName("/home", "lustre", LUSTRE)


def test_a_mount_that_only_the_job_sees_is_found_in_its_processes(node: JobIoNode) -> None:
    node.start_job(5, pids=(700, 701))
    node.write("701/mountinfo", "50 21 0:77 / /tmp rw - tmpfs private rw\n")
    assert name(node, 77) == MountName("/tmp", "tmpfs", "private")
    assert name(node, 77, job=6) == MountName("unknown", "tmpfs", "")


def test_a_job_with_a_flood_of_mounts_costs_little(node: JobIoNode) -> None:
    node.start_job(5, pids=(700,))
    mounts = "".join(f"{n} 21 0:{n} / /tmp/{n} rw - tmpfs t rw\n" for n in range(100, 40_000))
    node.write("700/mountinfo", mounts)
    assert name(node, 200) == MountName("unknown", "tmpfs", "")


def test_a_name_is_kept_when_the_job_has_ended(node: JobIoNode) -> None:
    names = MountNames()
    node.start_job(5, pids=(700,))
    node.write("700/mountinfo", "50 21 0:77 / /tmp rw - tmpfs private rw\n")
    assert name(node, 77, names=names).point == "/tmp"
    node.end_job(5)
    assert name(node, 77, names=names).point == "/tmp"
    names.forget([])
    assert name(node, 77, names=names).point == "unknown"


def test_what_is_not_allowed_is_other(node: JobIoNode) -> None:
    names = MountNames(("/home*",))
    assert name(node, 40, names=names).point == "/home"
    assert name(node, 41, names=names) == MountName("other", "other", "")


def test_the_many_mounts_of_a_job_are_other(node: JobIoNode) -> None:
    assert name(node, OTHER_DEVICES) == MountName("other", "other", "")


def test_names_that_users_choose_can_be_printed_and_sent(node: JobIoNode) -> None:
    evil = "50 21 0:77 / /mnt/a\\012b\x1b[2J\\134 rw - fuse.x \udcffs rw\n"
    node.write("self/mountinfo", (MOUNTS + evil).encode("utf-8", "surrogateescape"))
    found = name(node, 77)
    assert found.point.isprintable()
    assert found.source.isprintable()
    assert not found.point.endswith("\\")


def test_a_type_has_its_name_or_its_number() -> None:
    assert (type_name(0xEF53), type_name(0x1234)) == ("ext4", "0x1234")
