"""Containers by namespaces: mounts, users and PIDs as the kernel shows them to everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.sonar.jobs.attribution import Containers
from tests.support.tree import TreeNode

HOST = "22 27 0:21 / /proc rw - proc proc rw\n27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
ALL_USERS = "         0          0 4294967295\n"
ONE_USER = "         0       1001          1\n"
OVERLAY = "402 388 0:61 / / ro,nosuid - overlay overlay ro,lowerdir=/image\n"
SAME_ROOT = "310 140 8:1 / / ro - ext4 /dev/sda1 rw\n311 310 0:44 / /tmp rw - tmpfs tmpfs rw\n"


def is_inside(tmp_path: Path, mounts: str, users: str = ALL_USERS, pids: str = "5") -> bool:
    node = TreeNode(tmp_path)
    for pid, table, of_users, numbers in ((1, HOST, ALL_USERS, "1"), (5, mounts, users, pids)):
        node.write(f"{pid}/mountinfo", table)
        node.write(f"{pid}/uid_map", of_users)
        node.write(f"{pid}/status", f"Name:\tstarter-suid\nNSpid:\t{numbers}\n")
    return Containers(node).is_inside(5)


@pytest.mark.parametrize(
    ("mounts", "users", "pids"),
    [
        pytest.param(OVERLAY, ALL_USERS, "5\t1", id="docker"),
        pytest.param(OVERLAY, ALL_USERS, "5", id="Apptainer with a set-user-ID program"),
        pytest.param(OVERLAY, ONE_USER, "5", id="Charliecloud and enroot"),
        pytest.param(SAME_ROOT, ONE_USER, "5", id="bwrap --bind / /"),
        pytest.param(HOST, ALL_USERS, "5\t1", id="unshare --fork --pid"),
        pytest.param("50 60 8:1 /images/a / rw - ext4 /dev/sda1 rw\n", ALL_USERS, "5", id="bind"),
    ],
)
def test_other_roots_users_and_pids_are_containers(
    tmp_path: Path, mounts: str, users: str, pids: str
) -> None:
    assert is_inside(tmp_path, mounts, users, pids)


@pytest.mark.parametrize(
    ("mounts", "users"),
    [
        pytest.param(HOST, ALL_USERS, id="a program named starter-suid"),
        pytest.param(SAME_ROOT, ALL_USERS, id="a service with PrivateTmp="),
        pytest.param("", ALL_USERS, id="chroot to a directory"),
        pytest.param("22 27 0:21 / / rw - proc proc rw\n", ALL_USERS, id="chroot to a mount"),
        pytest.param(HOST, ONE_USER, id="unshare --user"),
    ],
)
def test_mount_namespaces_alone_are_no_containers(tmp_path: Path, mounts: str, users: str) -> None:
    assert not is_inside(tmp_path, mounts, users)
