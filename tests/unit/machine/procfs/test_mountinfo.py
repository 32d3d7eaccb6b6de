"""The one parser for /proc/PID/mountinfo, on text as Linux 6.18 writes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.loading import mount_of
from ccagent.machine.procfs.mountinfo import (
    Mount,
    find_mount,
    parse_mountinfo,
    parse_visible_mounts,
)

MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw,gid=27,hidepid=2
27 1 254:0 / / rw,relatime shared:1 master:7 - ext4 /dev/vda1 rw,discard
29 27 254:2 / /scratch\\040of\\011all rw - xfs /dev/mapper/a\\134b rw
30 27 0:56 / /var/spool rw - tmpfs tmpfs rw,size=1k
31 27 0:57 / /var/spool rw - xfs /dev/sdb rw
33 27 0:52 / /none rw - tmpfs  rw
"""


def test_fields_of_mounts() -> None:
    mounts = parse_mountinfo(MOUNTINFO)
    assert len(mounts) == 6
    assert mounts[1] == Mount("254:0", "/", "ext4", "/dev/vda1", "rw,discard")
    assert mounts[2] == Mount("254:2", "/scratch of\tall", "xfs", "/dev/mapper/a\\b", "rw")
    assert mounts[5] == Mount("0:52", "/none", "tmpfs", "", "rw")


def test_values_of_options() -> None:
    proc = parse_mountinfo(MOUNTINFO)[0]
    assert [proc.option(name) for name in ("gid", "hidepid", "rw", "id", "")] == [
        "27", "2", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/spool/ccagent", "xfs"),
        ("/var/spool", "xfs"),
        ("/var/spools", "ext4"),
        ("/proc/1", "proc"),
        ("/", "ext4"),
    ],
)
def test_a_path_lies_in_the_longest_and_last_mount(path: str, kind: str) -> None:
    mount = find_mount(parse_mountinfo(MOUNTINFO), path)
    assert mount is not None
    assert mount.type == kind


def test_without_mounts_a_path_lies_in_none() -> None:
    assert find_mount([], "/") is None


@pytest.mark.parametrize(
    "text", [b"x", b"1 2 8:0 / /", b"1 2 8:0 / / rw ext4 sda", b"1 2 8:0 / / rw - ext4"]
)
def test_other_lines_are_unparsable(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="not a mount"):
        parse_mountinfo(text)


@given(st.binary() | st.text(" -/\\0123x\n").map(str.encode))
def test_any_text_is_parsed_or_unparsable(text: bytes) -> None:
    try:
        mounts = parse_mountinfo(text)
    except UnparsableError:
        return
    assert len(mounts) == len([line for line in text.split(b"\n") if line])
    assert set(parse_visible_mounts(text)) <= set(mounts)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
def test_escaped_names_are_read_back(name: str) -> None:
    escaped = "".join(f"\\{ord(each):03o}" if each in " \t\n\\" else each for each in name)
    (mount,) = parse_mountinfo(f"1 1 0:9 / /run/{escaped} rw - bpf ccagent rw\n".encode())
    assert mount == Mount("0:9", f"/run/{name}", "bpf", "ccagent", "rw")


def test_the_mount_of_a_directory_of_this_machine(tmp_path: Path) -> None:
    mount = mount_of("/proc")
    assert mount is not None
    status = os.stat("/proc").st_dev
    assert (mount.type, mount.device) == ("proc", f"{os.major(status)}:{os.minor(status)}")
    assert mount_of(str(tmp_path / "absent")) is None


HIDDEN = b"""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
31 20 8:2 / /data/cache rw - xfs /dev/sda2 rw
32 31 8:3 / /data/cache/old rw - xfs /dev/sda3 rw
33 20 8:4 / /data rw - xfs /dev/sda4 rw
34 33 8:5 / /data/new rw - xfs /dev/sda5 rw
35 33 8:6 / /data rw - xfs /dev/sda6 rw
36 20 8:7 / /database rw - xfs /dev/sda7 rw
"""


def test_mounts_below_a_later_mount_are_hidden() -> None:
    points = [mount.point for mount in parse_visible_mounts(HIDDEN)]
    assert points == ["/", "/data", "/database"]
    mount = find_mount(parse_visible_mounts(HIDDEN), "/data/cache/old/x")
    assert mount is not None
    assert mount.source == "/dev/sda6"


def test_a_mount_propagated_below_another_is_hidden() -> None:
    text = (
        b"1 1 0:1 / / rw - rootfs rootfs rw\n"
        b"66 68 8:1 / /home rw - xfs upper rw\n"
        b"68 1 8:2 / /home rw master:2 - xfs lower rw\n"
    )
    assert [mount.source for mount in parse_visible_mounts(text)] == ["rootfs", "upper"]


def test_a_table_with_a_loop_of_parents_is_parsed() -> None:
    text = b"1 2 8:1 / /a rw - xfs a rw\n2 1 8:2 / /b rw - xfs b rw\n3 2 8:3 / /a/c rw - xfs c rw\n"
    assert [mount.point for mount in parse_visible_mounts(text)] == ["/a", "/b"]
