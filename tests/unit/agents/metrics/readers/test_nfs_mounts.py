"""NFS by mount, out of /proc/self/mountstats."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import Count, Scope
from ccagent.agents.metrics.readers.nfs import NfsMountsReader, NfsMountsSettings
from ccagent.errors import NotHereError
from ccagent.machine.counters import Rates
from ccagent.machine.procfs.nfs import (
    NfsOperationCounters,
    parse_nfs_mounts,
    parse_nfs_operations,
    total_operations,
)
from ccagent.records.points import encode_tags
from tests.support.tree import TreeNode

HEAD = "device proc mounted on /proc with fstype proc\n"


def mount(
    point: str,
    moved: str = "1 2 3 4 5 6 7 8",
    version: str = "1.1",
    **operations: str,
) -> str:
    """Write a mount as nfs_show_stats() does."""
    lines = "".join(f"\t{name:>12}: {numbers}\n" for name, numbers in operations.items())
    return (
        f"device home:/export mounted on {point} with fstype nfs4 statvers={version}\n"
        "\topts:\trw,vers=4.2\n"
        "\tage:\t86034\n"
        "\tevents:\t1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27\n"
        f"\tbytes:\t{moved} \n"
        f"\tRPC iostats version: {version}  p/v: 100003/4 (nfs)\n"
        "\txprt:\ttcp 0 1 2 3 4 5 6 7 8 9 10\n"
        f"\tper-op statistics\n{lines}\n"
    )


READ = "100 103 2 14400 1048576 30 500 600 1"
WRITE = "40 40 0 41943040 5760 10 200 220 0"
FULL = mount("/home", READ=READ, WRITE=WRITE, GETATTR="10 10 0 1600 1120 0 10 11 4")


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def values(
    reader: NfsMountsReader, node: TreeNode, rates: Rates[Scope] | None = None
) -> dict[tuple[str, str], float]:
    found = list(reader.read(node))
    counts = [each for each in found if isinstance(each, Count)]
    gauges = [
        (each.metric, each.value, each.scope) for each in found if not isinstance(each, Count)
    ]
    if rates is not None:
        gauges += rates.of(counts, reader.metrics, node.clock.monotonic())
    assert {place.stype for _, _, place in gauges} <= {"filesystem"}
    return {(metric, place.stype_id): value for metric, value, place in gauges}


def test_counters_are_in_the_order_of_the_kernel() -> None:
    (found,), problems = parse_nfs_mounts((HEAD + FULL).encode())
    assert problems == []
    assert found.moved == (1, 2, 3, 4, 5, 6, 7, 8)
    operations = parse_nfs_operations(found.table)
    assert operations["READ"] == NfsOperationCounters(
        operations=100, sent=103, timeouts=2, bytes_sent=14400, bytes_received=1048576,
        queued=30, rtt=500, execution=600, errors=1,
    )  # fmt: skip
    assert total_operations(operations.values()) == NfsOperationCounters(
        150, 153, 2, 14400 + 41943040 + 1600, 1048576 + 5760 + 1120, 40, 710, 831, 5
    )


def test_statvers_1_0_has_no_errors(node: TreeNode) -> None:
    node.write("self/mountstats", mount("/old", version="1.0", READ="5 5 0 1 2 3 4 5"))
    reader = NfsMountsReader()
    metrics = {each.metric for each in reader.read(node)}
    assert "nfs_mount_ops" in metrics
    assert "nfs_mount_errors" not in metrics
    assert reader.errors == []


def test_rates_and_mean_times_are_those_of_the_interval(node: TreeNode) -> None:
    node.write("self/mountstats", FULL)
    reader, rates = NfsMountsReader(), Rates[Scope]()
    values(reader, node, rates)
    node.write(
        "self/mountstats",
        mount(
            "/home",
            moved="1001 2 3 4 2005 406 7 28",
            READ="120 133 4 14400 1048576 40 560 700 1",
            WRITE="40 40 0 41943040 5760 10 200 220 0",
            GETATTR="10 10 0 1600 1120 0 10 11 9",
        ),
    )
    node.clock.sleep(10)
    found = {metric.removeprefix("nfs_mount_"): value
             for (metric, _), value in values(reader, node, rates).items()}  # fmt: skip
    assert found == {
        "app_read": 100, "app_write": 0, "direct_read": 0, "direct_write": 0,
        "read": 200, "write": 40, "pages_read": 0, "pages_written": 2,
        "ops": 2, "reads": 2, "writes": 0, "retrans": 1, "timeouts": 0.2, "errors": 0.5,
        "queue": 0.0005, "rtt": 0.003, "exec": 0.005,
        "read_queue": 0.0005, "read_rtt": 0.003, "read_exec": 0.005,
    }  # fmt: skip


def test_a_sum_of_times_below_0_is_no_long_time(node: TreeNode) -> None:
    """The kernel sums differences of times, and prints a sum below 0 as an unsigned number."""
    node.write("self/mountstats", mount("/home", READ="100 100 0 1 1 7 500 600 0"))
    reader = NfsMountsReader()
    values(reader, node)
    behind = 2**64 - 600
    node.write("self/mountstats", mount("/home", READ=f"110 110 0 1 1 {behind} 540 690 0"))
    found = values(reader, node)
    assert (found["nfs_mount_queue", "/home"], found["nfs_mount_rtt", "/home"]) == (0, 0.004)


def test_a_file_system_mounted_anew_starts_at_0(node: TreeNode) -> None:
    node.write("self/mountstats", FULL)
    reader = NfsMountsReader()
    values(reader, node)
    node.write("self/mountstats", mount("/home", READ="2 2 0 1 1 4 8 10 0"))
    assert values(reader, node)["nfs_mount_rtt", "/home"] == 0.004


def test_the_last_mount_of_a_point_is_the_visible_one(node: TreeNode) -> None:
    hidden = mount("/home", READ="9 9 0 1 1 4 8 10 0")
    node.write("self/mountstats", hidden + FULL)
    counts = {each.metric: each.value for each in NfsMountsReader().read(node)}
    assert counts["nfs_mount_ops"] == 150


def test_mounts_can_be_excluded(node: TreeNode) -> None:
    node.write("self/mountstats", FULL + mount("/auto/ada", READ=READ))
    reader = NfsMountsReader(NfsMountsSettings(exclude=("/auto/*",)))
    assert {each.scope.stype_id for each in reader.read(node)} == {"/home"}


def test_a_damaged_mount_costs_itself(node: TreeNode) -> None:
    damaged = mount("/bad", moved="1 2", READ=READ) + mount("/worse", READ="1 2 3")
    node.write("self/mountstats", HEAD + damaged + FULL)
    reader = NfsMountsReader()
    assert {each.scope.stype_id for each in reader.read(node)} == {"/home"}
    assert reader.errors == ["/proc/self/mountstats: mount '/bad': bytes: 2 numbers, not 8; 1 more"]


def test_a_number_that_is_cut_off_is_not_read() -> None:
    text = FULL[: FULL.index("1600 1120")]
    (found,), _ = parse_nfs_mounts(text.encode())
    assert set(parse_nfs_operations(found.table)) == {"READ", "WRITE"}


def test_names_with_any_characters_are_labels(node: TreeNode) -> None:
    node.write("self/mountstats", mount("/a\\040b\\011c\\134", READ=READ))
    (label,) = {each.scope.stype_id for each in NfsMountsReader().read(node)}
    assert label == "/a b?c?"
    assert encode_tags({"stype-id": label})


def test_thousands_of_mounts_are_bounded(node: TreeNode) -> None:
    node.write("self/mountstats", "".join(mount(f"/u{n}", READ=READ) for n in range(1100)))
    reader = NfsMountsReader()
    assert len({each.scope for each in reader.read(node)}) == 1000
    (error,) = reader.errors
    assert "agents.metrics.nfs-mounts.exclude" in error


def test_without_nfs_there_is_nothing(node: TreeNode) -> None:
    node.write("self/mountstats", HEAD)
    with pytest.raises(NotHereError):
        NfsMountsReader().read(node)


def test_nothing_is_read_that_nobody_wants(node: TreeNode) -> None:
    reader = NfsMountsReader()
    reader.wanted = frozenset({"cpu_user"})
    assert reader.read(node) == []


@given(st.binary(max_size=300), st.integers(0, len(FULL)), st.integers(0, 60))
def test_any_damage_yields_mounts_or_problems(junk: bytes, start: int, length: int) -> None:
    text = FULL.encode()
    mounts, problems = parse_nfs_mounts(text[:start] + junk + text[start + length :])
    assert all(len(each.moved) == 8 for each in mounts)
    assert all(each.isprintable() for each in problems)
