"""What servers tell of their targets, against a plain reading of the same recorded text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.metric import Parameter, parse_parameters
from ccagent.agents.lustre.server_statistics import RECOVERY
from ccagent.agents.lustre.statistics import GROUPS, points_of
from tests.support.paths import DATA, ROOT

DOCUMENT = ROOT / "agents" / "lustre" / "statistics.md"
RECORDED = DATA / "lustre"
NODE = {"cluster": "fox", "hostname": "oss1", "type": "node"}
SERVERS = [
    RECORDED / "params" / "mds_oss_busy.txt",
    RECORDED / "params" / "mds_oss_idle.txt",
    RECORDED / "params" / "mds_oss_unhealthy.txt",
    RECORDED / "params" / "osd.txt",
    RECORDED / "params" / "recovery.txt",
    RECORDED / "captures" / "ex8761-lctl_with_jobstats.txt",
    RECORDED / "captures" / "params-6.2.0-r9_with_jobstats.txt",
    RECORDED / "params" / "wrapped_lines.txt",
]
Values = dict[tuple[str, str], float]

TITLES = {
    "pages per bulk r/w": "pages_per_bulk",
    "discontiguous pages": "discontiguous_pages",
    "discontiguous blocks": "discontiguous_blocks",
    "disk fragmented I/Os": "fragments",
    "disk I/Os in flight": "in_flight",
    "I/O time (1/1000s)": "io_time_ms",
    "disk I/O size": "io_size",
    "block maps msec": "block_maps_ms",
}


def values_of(content: bytes, group: str) -> tuple[Values, list[str]]:
    """The values of a group by name and stype-id, which is empty for the node."""
    errors: list[str] = []
    points = list(points_of(parse_parameters(content), [group], NODE, 60.0, errors))
    values = {(point.name, point.tags.get("stype-id", "")): point.value for point in points}
    assert len(values) == len(points)
    return values, errors


def of_targets(values: Values) -> Values:
    return {key: value for key, value in values.items() if key[1]}


def plain_operations(text: str, parameter: str, prefix: str) -> Values:
    expected: Values = {}
    body = r"(?m)^(?:obdfilter|mdt)\.([\w-]+)\." + parameter + r"=\n((?:[a-z_]+ +\d.*(?:\n|$))+)"
    for target, lines in re.findall(body, text):
        for name, samples, unit, total in re.findall(
            r"^(\w+) +(\d+) samples \[(\w+)\](?: \d+ \d+ (\d+) \d+)?$", lines, re.MULTILINE
        ):
            short = f"{prefix}_{name.removesuffix('_bytes')}"
            if name.endswith("_bytes"):
                expected[f"{short}_bytes", target] = int(total)
                expected[f"{short}_requests", target] = int(samples)
            else:
                assert unit == "usecs"
                expected[short, target] = int(samples)
                expected[f"{short}_usecs", target] = int(total)
    return expected


def plain_numbers(text: str, leaves: dict[str, str], factor: int) -> Values:
    expected: Values = {}
    for target, leaf, value in re.findall(r"\.([\w-]+)\.(\w+)=(\d+)$", text, re.MULTILINE):
        if leaf in leaves:
            kind = "mgs" if target == "MGS" else re.sub(r".*-(OST|MDT).*", r"\1", target).lower()
            expected[f"lustre_{kind}_{leaves[leaf]}", target] = int(value) * factor
    return expected


def plain_histograms(text: str) -> Values:
    expected: Values = {}
    body = r"^osd-\w+\.(\S+)\.brw_stats=\n(.*?)(?=^[a-z][\w.-]*\.|\Z)"
    for target, lines in re.findall(body, text, re.MULTILINE | re.DOTALL):
        for title, name in TITLES.items():
            _, _, below = lines.partition(f"\n{title}")
            for amount, multiple, read, write in re.findall(
                r"^(\d+)([KM]?):\s+(\d+)\s+\d+\s+\d+\s+\|\s+(\d+)",
                below.partition("\n\n")[0],
                re.MULTILINE,
            ):
                bucket = int(amount) * {"": 1, "K": 1024, "M": 1024**2}[multiple]
                expected[f"lustre_brw_{name}_read_{bucket}", target] = int(read)
                expected[f"lustre_brw_{name}_write_{bucket}", target] = int(write)
    return expected


recorded = pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)


@recorded
def test_operations_of_osts_and_mdts(path: Path) -> None:
    values, _ = values_of(path.read_bytes(), "stats")
    assert of_targets(values) == plain_operations(path.read_text(), "stats", "lustre_ost_stats")
    values, _ = values_of(path.read_bytes(), "md-stats")
    assert of_targets(values) == plain_operations(path.read_text(), "md_stats", "lustre_mdt_stats")


@recorded
def test_capacity_and_files(path: Path) -> None:
    text = path.read_text()
    kilobytes = {
        "kbytestotal": "capacity_total",
        "kbytesfree": "capacity_free",
        "kbytesavail": "capacity_available",
    }
    others = {
        "filestotal": "files_total",
        "filesfree": "files_free",
        "tot_dirty": "dirty_bytes",
        "tot_granted": "granted_bytes",
        "tot_pending": "pending_bytes",
    }
    values, _ = values_of(path.read_bytes(), "capacity")
    assert of_targets(values) == plain_numbers(text, kilobytes, 1024) | plain_numbers(
        text, others, 1
    )


@recorded
def test_exports(path: Path) -> None:
    values, _ = values_of(path.read_bytes(), "exports")
    assert of_targets(values) == plain_numbers(path.read_text(), {"num_exports": "exports"}, 1)


@recorded
def test_locks(path: Path) -> None:
    expected: Values = {}
    for space, target, leaf, count in re.findall(
        r"^ldlm\.namespaces\.(mdt|filter)-(.*)_UUID\.(.*)=(\d+)$", path.read_text(), re.MULTILINE
    ):
        if leaf in {"lock_count", "lock_unused_count", "lock_timeouts", "resource_count"}:
            kind = {"mdt": "mdt", "filter": "ost"}[space]
            expected[f"lustre_{kind}_{leaf}", target] = int(count)
    values, _ = values_of(path.read_bytes(), "locks")
    assert of_targets(values) == expected


@recorded
def test_histograms(path: Path) -> None:
    values, _ = values_of(path.read_bytes(), "brw-stats")
    assert of_targets(values) == plain_histograms(path.read_text())


def test_the_recorded_dumps_hold_something_of_each_kind() -> None:
    text = (RECORDED / "params" / "mds_oss_busy.txt").read_text()
    assert len(plain_operations(text, "stats", "lustre_ost_stats")) == 40
    assert len(plain_operations(text, "md_stats", "lustre_mdt_stats")) == 16
    assert len(plain_histograms(text)) == 648
    assert len(plain_numbers(text, {"kbytesfree": "capacity_free"}, 1024)) == 4


def test_some_values_as_anyone_can_read_them() -> None:
    content = (RECORDED / "params" / "mds_oss_busy.txt").read_bytes()
    operations, _ = values_of(content, "stats")
    assert operations["lustre_ost_stats_read_bytes", "ai400x2-OST0000"] == 58370831220736
    assert operations["lustre_ost_stats_read_requests", "ai400x2-OST0000"] == 71482249
    assert operations["lustre_ost_stats_read", "ai400x2-OST0000"] == 71482249
    assert operations["lustre_ost_stats_read_usecs", "ai400x2-OST0000"] == 462391903386
    assert operations["lustre_ost_stats_read_requests", ""] == 71482249 + 95047172
    metadata, _ = values_of(content, "md-stats")
    assert metadata["lustre_mdt_stats_close", "ai400x2-MDT0000"] == 114600
    capacity, _ = values_of(content, "capacity")
    assert capacity["lustre_ost_capacity_free", "ai400x2-OST0000"] == 31831867004 * 1024
    assert capacity["lustre_mdt_files_free", "ai400x2-MDT0000"] == 255306055
    assert capacity["lustre_mgs_capacity_total", "MGS"] == 1980036 * 1024
    assert capacity["lustre_ost_files_total", ""] == 2 * 276824064
    exports, _ = values_of(content, "exports")
    assert exports["lustre_mgs_exports", "MGS"] == 20
    locks, _ = values_of(content, "locks")
    assert locks["lustre_ost_lock_count", ""] == 347 + 364
    histograms, _ = values_of(content, "brw-stats")
    assert histograms["lustre_brw_io_size_write_1048576", "ai400x2-OST0001"] == 51895762
    assert histograms["lustre_brw_io_time_ms_write_1024", "ai400x2-OST0001"] == 143
    assert histograms["lustre_brw_in_flight_read_31", ""] == 139856222 + 165650188


def test_operations_of_old_versions_have_no_times() -> None:
    content = (
        b"obdfilter.fs-OST0000.stats=\n"
        b"snapshot_time             1380000000.123456 secs.usecs\n"
        b"read_bytes                10 samples [bytes] 4096 1048576 7000000\n"
        b"write_bytes               0 samples [bytes]\n"
        b"brw_read                  4 samples [pages] 1 256 700\n"
        b"ping                      99 samples [reqs]\n"
    )
    values, errors = values_of(content, "stats")
    assert errors == []
    assert of_targets(values) == {
        ("lustre_ost_stats_read_bytes", "fs-OST0000"): 7000000,
        ("lustre_ost_stats_read_requests", "fs-OST0000"): 10,
        ("lustre_ost_stats_write_bytes", "fs-OST0000"): 0,
        ("lustre_ost_stats_write_requests", "fs-OST0000"): 0,
        ("lustre_ost_stats_brw_read", "fs-OST0000"): 4,
        ("lustre_ost_stats_brw_read_sum", "fs-OST0000"): 700,
        ("lustre_ost_stats_ping", "fs-OST0000"): 99,
    }


def test_of_an_operation_printed_twice_the_first_line_counts() -> None:
    content = (
        b"obdfilter.fs-OST0000.stats=\n"
        b"statfs                    30 samples [reqs]\n"
        b"reconnect                 1 samples [reqs]\n"
        b"statfs                    5000 samples [reqs]\n"
    )
    values, errors = values_of(content, "stats")
    assert errors == []
    assert values["lustre_ost_stats_statfs", "fs-OST0000"] == 30
    assert values["lustre_ost_stats_statfs", ""] == 30


@pytest.mark.parametrize(
    "bad",
    [
        b"statfs",
        b"statfs 5 samples",
        b"statfs 5 samples usecs 0 1 2 3",
        b"statfs five samples [usecs] 0 1 2 3",
        b"statfs 5 samples [usecs] 0 1 -2 3",
        b"stat\xfffs 5 samples [usecs] 0 1 2 3",
        b"stat,fs 5 samples [usecs] 0 1 2 3",
        b"Statfs 5 samples [usecs] 0 1 2 3",
    ],
)
def test_a_bad_line_of_operations_costs_itself(bad: bytes) -> None:
    content = (
        b"mdt.fs-MDT0000.md_stats=\nopen 1 samples [reqs]\n" + bad + b"\nclose 2 samples [reqs]\n"
    )
    values, errors = values_of(content, "md-stats")
    assert [name for name, place in values if place] == [
        "lustre_mdt_stats_open",
        "lustre_mdt_stats_close",
    ]
    (error,) = errors
    assert error.startswith("mdt.fs-MDT0000.md_stats: ")


def test_recovery_that_is_complete() -> None:
    values, errors = values_of((RECORDED / "params" / "recovery.txt").read_bytes(), "recovery")
    assert errors == []
    assert {name: value for (name, place), value in values.items() if place == "fs-MDT0000"} == {
        "lustre_recovery_status": 1,
        "lustre_recovery_duration": 1760,
        "lustre_recovery_completed_clients": 3,
        "lustre_recovery_clients": 7,
    }
    assert len(of_targets(values)) == 12
    assert values["lustre_recovery_status", ""] == 1
    assert values["lustre_recovery_clients", ""] == 8 + 8 + 7
    assert values["lustre_recovery_duration", ""] == 1760


def test_recovery_that_goes_on_counts_for_the_node() -> None:
    content = (
        b"obdfilter.fs-OST0000.recovery_status=\n"
        b"status: INACTIVE\n"
        b"obdfilter.fs-OST0001.recovery_status=\n"
        b"status: RECOVERING\n"
        b"recovery_start: 1620410016\n"
        b"time_remaining: 97\n"
        b"connected_clients: 5/8\n"
        b"req_replay_clients: 1\n"
        b"lock_repay_clients: 2\n"
        b"completed_clients: 3\n"
        b"evicted_clients: 1\n"
        b"replayed_requests: 0\n"
        b"queued_requests: 2\n"
        b"next_transno: 4294967296\n"
    )
    values, errors = values_of(content, "recovery")
    assert errors == []
    expected = {
        "lustre_recovery_status": 4,
        "lustre_recovery_time_remaining": 97,
        "lustre_recovery_connected_clients": 5,
        "lustre_recovery_completed_clients": 3,
        "lustre_recovery_evicted_clients": 1,
        "lustre_recovery_clients": 8,
    }
    for place in ("fs-OST0001", ""):
        assert {name: value for (name, at), value in values.items() if at == place} == expected
    assert values["lustre_recovery_status", "fs-OST0000"] == 0


@pytest.mark.parametrize("status", RECOVERY)
def test_each_status_of_recovery_is_a_number_that_the_table_explains(status: str) -> None:
    values, _ = values_of(
        f"mdt.fs-MDT0000.recovery_status=\nstatus: {status}\n".encode(), "recovery"
    )
    number = values["lustre_recovery_status", "fs-MDT0000"]
    assert f"{number} {status}" in DOCUMENT.read_text()


def test_what_is_not_understood_of_recovery_costs_only_itself() -> None:
    content = (
        b"mdt.fs-MDT0000.recovery_status=\nstatus: PAINTING\n"
        b"connected_clients: ?/?\nevicted_clients: 2\n"
    )
    values, errors = values_of(content, "recovery")
    assert of_targets(values) == {("lustre_recovery_evicted_clients", "fs-MDT0000"): 2}
    assert errors == [
        "mdt.fs-MDT0000.recovery_status: PAINTING is no status of recovery (and 1 more)"
    ]


@pytest.mark.parametrize(
    ("content", "health", "devices"),
    [
        (b"health_check=healthy\n", 1, 0),
        (b"health_check=NOT HEALTHY\n", 0, 0),
        (b"health_check=LBUG\n", 0, 0),
        (b"health_check=LBUG\nNOT HEALTHY\n", 0, 0),
        (b"health_check=device OSS reported unhealthy\nNOT HEALTHY\n", 0, 1),
        (b"health_check=healthy\nhealth_check=\n", 1, 0),
        (b"health_check=healthy\nhealth_check=device OSS reported unhealthy\n", 0, 1),
        (b"health_check=\ndevice a reported unhealthy\ndevice b reported unhealthy\n", 0, 2),
    ],
)
def test_health(content: bytes, health: int, devices: int) -> None:
    assert values_of(content, "health") == (
        {("lustre_health", ""): health, ("lustre_unhealthy_devices", ""): devices},
        [],
    )


def test_health_of_a_recorded_node_that_is_not_healthy() -> None:
    values, _ = values_of((RECORDED / "params" / "mds_oss_unhealthy.txt").read_bytes(), "health")
    assert values == {("lustre_health", ""): 0, ("lustre_unhealthy_devices", ""): 3}


@pytest.mark.parametrize("value", [b"fine", b"unhealthy", b"HEALTHY", b"\x1b[1mhealthy"])
def test_health_that_is_not_understood_is_not_made_up(value: bytes) -> None:
    values, errors = values_of(b"health_check=" + value + b"\n", "health")
    assert values == {}
    assert [error.endswith(" is neither healthy nor not") for error in errors] == [True]


def test_locks_on_other_servers_are_summed_per_file_system() -> None:
    content = (
        b"ldlm.namespaces.MGC10.0.0.1@tcp.lock_count=4\n"
        b"ldlm.namespaces.MGC0@lo.lock_count=4\n"
        b"ldlm.namespaces.MGS.lock_count=6\n"
        b"ldlm.namespaces.a-fs-MDT0000-mdc-ff47bce9ca35d800.lock_count=10\n"
        b"ldlm.namespaces.a-fs-OST0000-osc-ff47bce9ca35d800.lock_count=20\n"
        b"ldlm.namespaces.scratch-OST0001-osc-MDT0000.lock_count=5\n"
        b"ldlm.namespaces.scratch-MDT0001-osp-MDT0000.lock_count=6\n"
        b"ldlm.namespaces.something.lock_count=1\n"
    )
    values, errors = values_of(content, "locks")
    assert values == {
        ("lustre_mgs_lock_count", "MGS"): 6,
        ("lustre_mgs_lock_count", ""): 6,
        ("lustre_client_lock_count", "a-fs"): 30,
        ("lustre_client_lock_count", "scratch"): 11,
        ("lustre_client_lock_count", ""): 41,
    }
    assert errors == [
        "ldlm.namespaces.something.lock_count: something is no name space of a target"
    ]


def test_buckets_are_numbers_whatever_the_multiple() -> None:
    body = (RECORDED / "params" / "brw_stats.txt").read_bytes()
    values, errors = values_of(b"osd-zfs.fs-OST0000.brw_stats=" + body, "brw-stats")
    assert errors == []
    assert values["lustre_brw_pages_per_bulk_write_1024", "fs-OST0000"] == 8
    assert values["lustre_brw_io_size_write_131072", "fs-OST0000"] == 1
    assert values["lustre_brw_io_size_write_1048576", "fs-OST0000"] == 32
    assert values["lustre_brw_in_flight_write_32", "fs-OST0000"] == 44513
    assert values["lustre_brw_block_maps_ms_read_1", "fs-OST0000"] == 12689
    assert len(of_targets(values)) == 2 * 29


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            b"disk colour            ios   % cum % |  ios         % cum %\n1M: 1 1 1 | 1 1 1",
            "title",
        ),
        (b"2X: 1 1 1 | 1 1 1", "no bucket"),
        (b"2M: 1 1 1", "no bucket"),
        (b"2M: one 1 1 | 1 1 1", "no number"),
    ],
)
def test_a_bad_line_of_a_histogram_costs_itself(bad: bytes, sentence: str) -> None:
    content = (
        b"osd-zfs.fs-OST0000.brw_stats=\n"
        b"disk I/O size          ios   % cum % |  ios         % cum %\n"
        b"4K: 7 1 1 | 8 1 1\n"
    ) + bad  # fmt: skip
    values, errors = values_of(content, "brw-stats")
    assert of_targets(values) == {
        ("lustre_brw_io_size_read_4096", "fs-OST0000"): 7,
        ("lustre_brw_io_size_write_4096", "fs-OST0000"): 8,
    }
    assert [sentence in error for error in errors] == [True]


@given(st.sampled_from(sorted(GROUPS)), st.binary(max_size=200))
def test_no_value_of_any_group_raises(group: str, value: bytes) -> None:
    names = [
        "obdfilter.fs-OST0000.stats",
        "mdt.fs-MDT0000.md_stats",
        "osd-zfs.fs-OST0000.kbytesfree",
        "mgs.MGS.num_exports",
        "mdt.fs-MDT0000.recovery_status",
        "health_check",
        "osd-zfs.fs-OST0000.brw_stats",
        "ldlm.namespaces.mdt-fs-MDT0000_UUID.lock_count",
        "llite.fs-ff47bce9ca35d800.stats",
        "lnetctl stats show",
        "lnetctl net show -v 4",
        "sys/kernel/debug/lnet/stats",
    ]
    parameters = [Parameter(name, value) for name in names]
    errors: list[str] = []
    list(points_of(parameters, [group], NODE, 60.0, errors))
    assert all(error.isprintable() for error in errors)
