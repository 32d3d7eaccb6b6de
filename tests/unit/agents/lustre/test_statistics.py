"""Statistics: what is read for them, counters of a client's mounts, their rates, the document."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.metric import Parameter, parse_parameters
from ccagent.agents.lustre.statistics import (
    COUNTERS,
    GROUPS,
    ClientRates,
    points_of,
    read_statistics,
)
from ccagent.records.points import Point
from tests.support.line_text import line
from tests.support.paths import DATA, ROOT
from tests.support.tree import TreeNode

DOCUMENT = ROOT / "agents" / "lustre" / "statistics.md"

RECORDED = DATA / "lustre" / "params" / "client.txt"
NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}
NONE = dict.fromkeys(COUNTERS, 0)
Values = dict[str, float]


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path / "node")


def script(directory: Path, name: str, body: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_patterns_are_asked_for_one_by_one(node: TreeNode, tmp_path: Path) -> None:
    lctl = script(
        tmp_path,
        "lctl",
        'case "$2" in health_check) echo "health_check=NOT HEALTHY";; '
        'obdfilter*) echo "obdfilter.fs-OST0000.num_exports=12";; '
        '*) echo "error: get_param: param_path: No such file or directory" >&2; exit 2;; esac',
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["health", "exports"], lctl, 5.0, errors)
    points = list(points_of(parameters, ["health", "exports"], {}, 1.0, errors))
    values = {point.name: point.value for point in points if "stype" not in point.tags}
    assert values["lustre_ost_exports"] == 12
    assert values["lustre_health"] == 0
    assert errors == []


def test_what_a_node_has_not_is_left_out(node: TreeNode) -> None:
    errors: list[str] = []
    assert read_statistics(node, [*GROUPS], "/nowhere/lctl", 5.0, errors) == []
    assert errors == []


def test_a_program_that_fails_is_said_and_what_it_printed_counts(
    node: TreeNode, tmp_path: Path
) -> None:
    lctl = script(
        tmp_path, "lctl", 'echo "obdfilter.fs-OST0000.num_exports=3"; echo no >&2; exit 5'
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["exports"], lctl, 5.0, errors)
    assert parameters[0].value.strip() == b"3"
    assert f"{lctl}: exit status 5: no" in errors


def test_one_that_hangs_is_ended(node: TreeNode, tmp_path: Path) -> None:
    lctl = script(tmp_path, "lctl", "sleep 60")
    errors: list[str] = []
    assert read_statistics(node, ["health"], lctl, 0.3, errors) == []
    assert errors
    assert all("not finished after 0.3 s" in error for error in errors)


def test_files_of_the_kernel_are_read(node: TreeNode) -> None:
    node.path.joinpath("sys/kernel/debug/lnet").mkdir(parents=True)
    node.path.joinpath("sys/kernel/debug/lnet/stats").write_text(
        "0 39 0 1110532 1110512 0 11 1 2 0 5\n"
    )
    errors: list[str] = []
    parameters = read_statistics(node, ["lnet"], "/nowhere/lctl", 5.0, errors)
    points = points_of(parameters, ["lnet"], {}, 1.0, errors)
    assert {point.name: point.value for point in points}["lustre_lnet_msgs_max"] == 39


def test_every_group_is_documented() -> None:
    text = DOCUMENT.read_text()
    for name, group in GROUPS.items():
        assert f"| `{name}` | " in text
        assert all(f"`lctl get_param {pattern}`" in text for pattern in group.patterns)


def collected(content: bytes) -> tuple[list[Point], list[str]]:
    errors: list[str] = []
    points = list(points_of(parse_parameters(content), ["llite"], NODE, 60.0, errors))
    return points, errors


def at(points: list[Point], place: str = "") -> Values:
    return {point.name: point.value for point in points if point.tags.get("stype-id", "") == place}


def mount(name: str, *lines: str) -> Parameter:
    text = "\n".join(["snapshot_time 1710759783.271040288 secs.nsecs", *lines])
    return Parameter(f"llite.{name}.stats", text.encode())


def moved(name: str, read: int, written: int = 0) -> Parameter:
    return mount(
        name,
        f"read_bytes 2 samples [bytes] 1 1 {read} 1",
        f"write_bytes 3 samples [bytes] 1 1 {written} 1",
    )


def test_a_recorded_client() -> None:
    points, errors = collected(RECORDED.read_bytes())
    assert errors == []
    assert at(points) == at(points, "ai400x2") == {
        "lustre_ioctl": 114,
        "lustre_open": 35955554,
        "lustre_open_usecs": 3393651645,
        "lustre_close": 35955554,
        "lustre_close_usecs": 5402095148,
        "lustre_readdir": 60,
        "lustre_readdir_usecs": 34741,
        "lustre_getattr": 35955647,
        "lustre_getattr_usecs": 2317024138,
        "lustre_unlink": 17977752,
        "lustre_unlink_usecs": 3846291010,
        "lustre_mkdir": 17987059,
        "lustre_mkdir_usecs": 23731812831,
        "lustre_rmdir": 17987079,
        "lustre_rmdir_usecs": 37000527306,
        "lustre_mknod": 17977752,
        "lustre_mknod_usecs": 4144162753,
        "lustre_statfs": 17864,
        "lustre_statfs_usecs": 10257950,
        "lustre_setxattr": 1,
        "lustre_setxattr_usecs": 8760,
        "lustre_inode_permission": 629305628,
        "lustre_inode_permission_usecs": 196719589,
        "lustre_opencount": 35955576,
        "lustre_opencount_sum": 40433335,
        "lustre_openclosetime": 17977772,
        "lustre_openclosetime_usecs": 4185265858629453,
        "lustre_read_bytes": 0,
        "lustre_read_requests": 0,
        "lustre_write_bytes": 0,
        "lustre_write_requests": 0,
        "lustre_setattr": 0,
    }  # fmt: skip


def test_the_names_are_those_that_dashboards_ask_for() -> None:
    assert set(COUNTERS) == {
        "lustre_read_bytes",
        "lustre_write_bytes",
        "lustre_read_requests",
        "lustre_write_requests",
        "lustre_open",
        "lustre_close",
        "lustre_getattr",
        "lustre_setattr",
        "lustre_statfs",
        "lustre_inode_permission",
    }


def test_reads_and_writes_have_bytes_and_requests() -> None:
    content = (
        b"llite.scratch-ffff8801a2b3c400.stats=\n"
        b"snapshot_time             1380000000.123456 secs.usecs\n"
        b"dirty_pages_hits          7 samples [regs]\n"
        b"read_bytes                2 samples [bytes] 4096 1048576 1052672\n"
        b"write_bytes               3 samples [bytes] 1 10 21\n"
        b"open                      4 samples [regs]\n"
    )
    points, errors = collected(content)
    assert errors == []
    assert at(points, "scratch") == NONE | {
        "lustre_dirty_pages_hits": 7,
        "lustre_read_bytes": 1052672,
        "lustre_read_requests": 2,
        "lustre_write_bytes": 21,
        "lustre_write_requests": 3,
        "lustre_open": 4,
    }


def test_mounts_of_one_file_system_add_up_and_file_systems_make_the_node() -> None:
    parameters = [
        moved("work-ff47bce9ca35d800", 1),
        moved("work-ff47bce9ca35d801", 10),
        moved("my-home-ff47bce9ca35d802", 100),
    ]
    points = list(points_of(parameters, ["llite"], NODE, 60.0, []))
    assert at(points, "work")["lustre_read_bytes"] == 11
    assert at(points, "my-home")["lustre_read_bytes"] == 100
    assert at(points)["lustre_read_bytes"] == 111
    assert at(points)["lustre_read_requests"] == 6
    places = [point.tags.get("stype-id", "") for point in points]
    assert places.index("") == len(places) - len(NONE)


@pytest.mark.parametrize(
    "name", ["work", "work-xyz", "wo,rk-ff47bce9ca35d800", "-ff47bce9ca35d800"]
)
def test_what_is_no_mount_gets_into_errors_and_nowhere_else(name: str) -> None:
    points, errors = collected(f"llite.{name}.stats=\nopen 1 samples [regs]\n".encode())
    assert points == []
    assert [error.endswith(" is no mount of a file system") for error in errors] == [True]


@pytest.mark.parametrize(
    "lines", ["", "open 4 samples [regs]", "snapshot_time 1\nread_bytes 2 sam"]
)
def test_zeros_are_not_made_up_for_text_that_is_not_whole(lines: str) -> None:
    points, _ = collected(f"llite.work-ff47bce9ca35d800.stats=\n{lines}\n".encode())
    assert set(at(points)) <= {"lustre_open"}


def sampled(rates: ClientRates, moment: float, *mounts: Parameter) -> list[Point]:
    return rates.points(mounts, NODE, 60.0, moment)


def test_rates_are_over_the_real_interval() -> None:
    rates = ClientRates()
    assert sampled(rates, 1000.0, moved("work-ff47bce9ca35d800", 100, 5)) == []
    points = sampled(rates, 1002.5, moved("work-ff47bce9ca35d800", 600, 5))
    assert at(points) == at(points, "work") == {
        "lustre_read_bytes_diff": 500,
        "lustre_read_bw": 200.0,
        "lustre_read_requests_diff": 0,
        "lustre_write_bytes_diff": 0,
        "lustre_write_bw": 0.0,
        "lustre_write_requests_diff": 0,
        "lustre_open_diff": 0,
        "lustre_close_diff": 0,
        "lustre_getattr_diff": 0,
        "lustre_setattr_diff": 0,
        "lustre_statfs_diff": 0,
        "lustre_inode_permission_diff": 0,
    }  # fmt: skip
    documented = (ROOT / "agents" / "lustre" / "statistics.md").read_text()
    assert all(f"| `{point.name}` | " in documented for point in points)


def test_counters_that_were_set_back_count_from_zero() -> None:
    rates = ClientRates()
    sampled(rates, 0.0, moved("work-ff47bce9ca35d800", 1000))
    points = sampled(rates, 10.0, moved("work-ff47bce9ca35d800", 30))
    assert at(points)["lustre_read_bw"] == 3.0


def test_an_operation_done_for_the_first_time_counts_from_zero() -> None:
    rates = ClientRates()
    sampled(rates, 0.0, mount("work-ff47bce9ca35d800"))
    points = sampled(rates, 10.0, mount("work-ff47bce9ca35d800", "open 7 samples [regs]"))
    assert at(points)["lustre_open_diff"] == 7


def test_an_unmounted_file_system_takes_nothing_from_the_others() -> None:
    rates = ClientRates()
    first, second = "work-ff47bce9ca35d800", "work-ff47bce9ca35d801"
    sampled(rates, 0.0, moved(first, 1000), moved(second, 5000))
    points = sampled(rates, 10.0, moved(first, 1020))
    assert at(points, "work")["lustre_read_bytes_diff"] == 20
    assert sampled(rates, 20.0, moved(second, 5100)) == []


def test_text_that_is_not_whole_makes_no_rates() -> None:
    rates = ClientRates()
    whole = moved("work-ff47bce9ca35d800", 1000)
    cut = whole._replace(value=whole.value[:60])
    sampled(rates, 0.0, whole)
    assert sampled(rates, 10.0, cut) == []
    assert sampled(rates, 20.0, whole) == []
    assert at(sampled(rates, 30.0, whole))["lustre_read_bytes_diff"] == 0


def test_only_mounts_have_rates_and_only_counters_of_the_table() -> None:
    rates = ClientRates()
    work = mount("work-ff47bce9ca35d800", "ioctl 7 samples [reqs]")
    others = [
        mount("no mount", "open 7 samples [reqs]"),
        Parameter("obdfilter.work-OST0000.stats", work.value),
        work,
    ]
    sampled(rates, 0.0, work, *others)
    points = sampled(rates, 1.0, work, *others)
    names = [point.name for point in points if not point.tags.get("stype")]
    assert sorted(names) == sorted(
        [f"{name}_diff" for name in COUNTERS] + ["lustre_read_bw", "lustre_write_bw"]
    )


def test_a_sum_too_large_to_send_is_left_out() -> None:
    rates = ClientRates()
    names = ["work-ff47bce9ca35d800", "work-ff47bce9ca35d801"]
    sampled(rates, 0.0, *(moved(name, 0) for name in names))
    points = sampled(rates, 1.0, *(moved(name, 2**63 - 1) for name in names))
    assert "lustre_read_bytes_diff" not in at(points)
    assert at(points)["lustre_write_bytes_diff"] == 0


def test_without_time_there_is_no_bandwidth() -> None:
    rates = ClientRates()
    sampled(rates, 5.0, moved("work-ff47bce9ca35d800", 0))
    points = sampled(rates, 5.0, moved("work-ff47bce9ca35d800", 9))
    assert at(points)["lustre_read_bytes_diff"] == 9
    assert "lustre_read_bw" not in at(points)


NUMBERS = st.integers(min_value=0, max_value=2**63 + 1)


@given(st.lists(st.lists(NUMBERS, max_size=3), max_size=4))
def test_whatever_is_counted_the_rates_can_be_sent(samples: list[list[int]]) -> None:
    rates = ClientRates()
    for moment, sample in enumerate(samples):
        mounts = [moved(f"work-ff47bce9ca35d80{i}", read) for i, read in enumerate(sample)]
        for point in sampled(rates, float(moment), *mounts):
            assert line(point)
            assert point.value >= 0
