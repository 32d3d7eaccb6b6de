"""Parameters out of a dump, and what holds for the points of all groups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.metric import Parameter, parse_parameters, show_text
from ccagent.agents.lustre.statistics import GROUPS, points_of
from ccagent.records.points import NAME, Point
from tests.support.line_text import line
from tests.support.paths import DATA, ROOT

DOCUMENT = ROOT / "agents" / "lustre" / "statistics.md"
RECORDED = DATA / "lustre"
DUMPS = sorted((RECORDED / "params").glob("*.txt")) + sorted((RECORDED / "captures").glob("*.txt"))
NODE = {"cluster": "fox", "hostname": "oss1", "type": "node"}


def parsed(content: bytes) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in parse_parameters(content)]


def collected(*parameters: tuple[str, bytes]) -> tuple[list[Point], list[str]]:
    errors: list[str] = []
    given = [Parameter(name, value) for name, value in parameters]
    return list(points_of(given, GROUPS, NODE, 60.0, errors)), errors


def test_a_value_stands_behind_its_name_or_below_it() -> None:
    content = (
        b"health_check=healthy\n"
        b"obdfilter.fs-OST0000.stats=\n"
        b"snapshot_time             1709306082.170995043 secs.nsecs\n"
        b"statfs                    3 samples [usecs] 0 26 63 714\n"
        b"ost.OSS.ost_seq.stats=snapshot_time             1709306082.171480402 secs.nsecs\n"
        b"osd-ldiskfs.fs-OST0000.brw_stats=\n"
        b"mdt.fs-MDT0000.num_exports=31\n"
    )
    assert parsed(content) == [
        ("health_check", b"healthy"),
        (
            "obdfilter.fs-OST0000.stats",
            (
                b"snapshot_time             1709306082.170995043 secs.nsecs\n"
                b"statfs                    3 samples [usecs] 0 26 63 714"
            ),
        ),
        ("ost.OSS.ost_seq.stats", b"snapshot_time             1709306082.171480402 secs.nsecs"),
        ("osd-ldiskfs.fs-OST0000.brw_stats", b""),
        ("mdt.fs-MDT0000.num_exports", b"31"),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"no parameter\n", []),
        (b"rest of one\nmemused=1\n", [("memused", b"1")]),
        (b"memused=1", [("memused", b"1")]),
        (b"jobid_name=%e=%u\n", [("jobid_name", b"%e=%u")]),
        (
            b"mdt.fs-MDT0000.exports.10.73.20.12@tcp.uuid=\nfs-OST0001_UUID\n",
            [("mdt.fs-MDT0000.exports.10.73.20.12@tcp.uuid", b"fs-OST0001_UUID")],
        ),
        (
            b"mdt.fs-MDT0000.exports.fd00::12@tcp.uuid=a\n",
            [("mdt.fs-MDT0000.exports.fd00::12@tcp.uuid", b"a")],
        ),
        (b"a=1\n b=2\n3rd=3\nc d=4\n=5\n", [("a", b"1\n b=2\n3rd=3\nc d=4\n=5")]),
        (b"x.\xff\x1b=1\n", [("x.\\xff\x1b", b"1")]),
        (b"x." + b"y" * 600 + b"=1\n", []),
    ],
)  # fmt: skip
def test_what_is_a_name_and_what_is_not(content: bytes, expected: list[tuple[str, bytes]]) -> None:
    assert parsed(content) == expected


def test_bodies_of_job_stats_are_left_out_with_what_looks_like_parameters_in_them() -> None:
    content = (
        b"obdfilter.fs-OST0000.job_stats=job_stats:\n"
        b"obdfilter.fs-OST0001.job_stats=\n"
        b"job_stats:\n"
        b"- job_id:          a=b\n"
        b"  snapshot_time:   1669010520\n"
        b"snapshot_time   : 1896247.780050045 secs.nsecs\n"
        b"  read_bytes:      { samples: 1, unit: bytes, min: 1, max: 1, sum: 1 }\n"
        b"obdfilter.fs-OST0000.num_exports=12\n"
    )
    assert parsed(content) == [("obdfilter.fs-OST0000.num_exports", b"12")]


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_of_the_recorded_dumps_every_parameter_but_job_stats_is_found(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    expected = [
        text.partition("=")[0]
        for text in lines
        if re.match(r"[a-z][^ =]*=", text) and not re.match(r"[^=]*\.job_stats=", text)
    ]
    assert [name for name, _ in parsed(path.read_bytes())] == expected


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name)
def test_of_the_recorded_dumps_nothing_is_complained_about(path: Path) -> None:
    errors: list[str] = []
    list(points_of(parse_parameters(path.read_bytes()), GROUPS, NODE, 60.0, errors))
    assert errors == []


def test_only_the_groups_that_were_asked_for_are_collected() -> None:
    content = (RECORDED / "params" / "mds_oss_busy.txt").read_bytes()
    counts = {
        group: len(list(points_of(parse_parameters(content), [group], NODE, 60.0, [])))
        for group in GROUPS
    }
    together = len(list(points_of(parse_parameters(content), GROUPS, NODE, 60.0, [])))
    assert [group for group, count in counts.items() if not count] == ["recovery", "lnet", "llite"]
    assert sum(counts.values()) == together
    assert not list(points_of(parse_parameters(content), [], NODE, 60.0, []))


def test_values_of_targets_come_before_those_of_the_node_which_combine_them() -> None:
    points, errors = collected(
        ("obdfilter.fs-OST0000.num_exports", b"12"),
        ("obdfilter.fs-OST000a.num_exports", b"30"),
    )
    assert errors == []
    start = "lustre_ost_exports,cluster=fox,hostname=oss1,"
    assert [line(point) for point in points] == [
        f"{start}stype=filesystem,stype-id=fs-OST0000,type=node value=12i 60",
        f"{start}stype=filesystem,stype-id=fs-OST000a,type=node value=30i 60",
        f"{start}type=node value=42i 60",
    ]


def test_a_parameter_that_is_there_twice_counts_once() -> None:
    points, _ = collected(
        ("osd-ldiskfs.fs-OST0000.filesfree", b"5"),
        ("osd-ldiskfs.fs-OST0000.filesfree", b"6"),
        ("obdfilter.fs-OST0000.filesfree", b"7"),
        ("osd-zfs.fs-OST0001.filesfree", b"10"),
    )
    assert [point.value for point in points] == [5, 10, 15]


@pytest.mark.parametrize(
    "name",
    ["fs,x=1", "fs OST", "fs-OST", "fs-OST00000", "fs-OSTzzzz", "-OST0000", "a\x1b-OST0000", "mgs"],
)  # fmt: skip
def test_what_is_no_target_gets_into_errors_and_nowhere_else(name: str) -> None:
    points, errors = collected(
        (f"obdfilter.{name}.num_exports", b"1"), ("obdfilter.fs-OST0000.num_exports", b"2")
    )
    assert [point.value for point in points] == [2, 2]
    (error,) = errors
    assert "is no target" in error
    assert error.isprintable()


@pytest.mark.parametrize(
    "value", [b"", b"-1", b"1.5", b"1 2", b"0x1", b"\xff", b"9" * 19, b"1" * 99]
)
def test_what_is_no_number_to_send_costs_its_parameter(value: bytes) -> None:
    points, errors = collected(
        ("mdt.fs-MDT0000.num_exports", value), ("mdt.fs-MDT0001.num_exports", b"2")
    )
    assert [point.value for point in points] == [2, 2]
    (error,) = errors
    assert error.startswith("mdt.fs-MDT0000.num_exports: ")
    assert error.endswith(" is no number")


def test_a_value_that_became_too_large_is_not_sent() -> None:
    points, errors = collected(
        ("osd-zfs.fs-OST0000.kbytesfree", b"9" * 18), ("osd-zfs.fs-OST0001.kbytesfree", b"1")
    )
    assert [point.value for point in points] == [1024]
    assert [error.partition(":")[0] for error in errors] == ["lustre_ost_capacity_free"] * 2


def test_many_bad_lines_make_one_sentence() -> None:
    points, errors = collected(("obdfilter.fs-OST0000.stats", b"bad line\n" * 1000))
    assert points == []
    assert errors == [
        "obdfilter.fs-OST0000.stats: no samples with a unit, in bad line (and 999 more)"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fs-OST0000", "fs-OST0000"),
        (b"fs\n", r"'fs\n'"),
        (b"\xff", r"\xff"),
        ("a" * 90, "a" * 80),
    ],
)
def test_what_errors_show_is_short_and_printable(text: str | bytes, expected: str) -> None:
    assert show_text(text) == expected


def test_every_point_of_the_recorded_dumps_is_documented() -> None:
    names = re.findall(r"(?m)^\| `(lustre_\w+)` \| ", DOCUMENT.read_text())
    table = [re.compile(re.sub("[A-Z]+", "[a-z0-9_]+", name)) for name in names]
    for path in DUMPS:
        for point in points_of(parse_parameters(path.read_bytes()), GROUPS, NODE, 60.0, []):
            assert NAME.fullmatch(point.name)
            assert any(name.fullmatch(point.name) for name in table), point.name


LINES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"obdfilter.fs-OST0000.stats=",
            b"obdfilter.fs-OST0000.num_exports=7",
            b"obdfilter.fs-OST0000.recovery_status=",
            b"osd-ldiskfs.fs-OST0000.brw_stats=",
            b"osd-zfs.fs-MDT0000.kbytesfree=12",
            b"ldlm.namespaces.filter-fs-OST0000_UUID.lock_count=3",
            b"llite.fs-ff47bce9ca35d800.stats=",
            b"health_check=LBUG",
            b"stats=1 2 3 4 5 6 7 8 9 10 11",
            b"disk I/O size          ios   % cum % |  ios         % cum %",
            b"1M: 55068723  26 100   | 44979089  59 100",
            b"read_bytes 7 samples [bytes] 1 1 99 99",
            b"statfs 9223372036854775807 samples [usecs] 1 1 9223372036854775807 1",
            b"completed_clients: 4/8",
            b"status: RECOVERING",
        ]
    ),
    st.binary(max_size=12).map(lambda text: b"mdt." + text + b".num_exports=1"),
    st.binary(max_size=12).map(lambda text: text + b" 1 samples [bytes] 1 1 1"),
)


@given(st.lists(LINES, max_size=30).map(b"\n".join))
def test_whatever_is_printed_becomes_points_that_can_be_sent(content: bytes) -> None:
    errors: list[str] = []
    for point in points_of(parse_parameters(content), GROUPS, NODE, 60.0, errors):
        assert "\n" not in line(point)
    assert all(error.isprintable() for error in errors)
