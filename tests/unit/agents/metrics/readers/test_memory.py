"""Metrics of memory: of the node, of its NUMA nodes, and what /proc/vmstat counts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import NODE, Count, Gauge, Scope
from ccagent.agents.metrics.readers.memory import (
    MemoryReader,
    NumastatReader,
    domain_memory,
    node_memory,
    parse_numastat,
    select_events,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.node import Node
from ccagent.machine.procfs.system import parse_meminfo, parse_vmstat
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.recorded import RecordedNode
from tests.support.tree import TreeNode

KB = 1024
NODES = "sys/devices/system/node"

# As Linux 6.18 writes node*/meminfo, without the lines in between.
DOMAIN = """\
Node {0} MemTotal:        6645976 kB
Node {0} MemFree:         5426320 kB
Node {0} MemUsed:         1219656 kB
Node {0} Active(file):     132368 kB
Node {0} Inactive(file):   234828 kB
Node {0} FilePages:        375988 kB
Node {0} Shmem:              8788 kB
Node {0} KReclaimable:     710848 kB
Node {0} SReclaimable:     700000 kB
Node {0} HugePages_Total:     0
"""

# As Linux 6.18 writes it, without most of the lines in between.
VMSTAT = b"""\
nr_free_pages 1356580
numa_hit 159257656
pgpgin 17159585
pgpgout 29995524
pswpin 12
pswpout 34
pgalloc_normal 167677618
pgfault 117737555
pgmajfault 35805
pgscan_direct_throttle 0
oom_kill 69
zswpin 7
nr_unstable 0
"""


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def write_domain(node: TreeNode, number: int, content: str) -> None:
    path = node.path / NODES / f"node{number}" / "meminfo"
    path.parent.mkdir(parents=True)
    path.write_text(content)


def gauges(node: Node, scope: Scope = NODE) -> dict[str, float]:
    reader = MemoryReader()
    found = {
        each.metric: each.value
        for each in reader.read(node)
        if isinstance(each, Gauge) and each.scope == scope
    }
    assert reader.errors == []
    return found


def domain(number: int) -> Scope:
    return Scope("memoryDomain", str(number))


def test_memory_of_a_recorded_machine() -> None:
    assert gauges(RecordedNode("smt-slurm-v1")) == {
        "mem_used": (263850140 - 244318208) * KB,
        "mem_available": 244318208 * KB,
        "mem_free": 201326592 * KB,
        "mem_buffers": 5120 * KB,
        "mem_cached": 44040192 * KB,
        "mem_shared": 1048576 * KB,
        "mem_slab": 2097152 * KB,
        "swap_total": 4194300 * KB,
        "swap_used": 0,
    }


def test_memory_of_a_recorded_machine_whose_kernel_does_not_tell_what_is_available() -> None:
    found = gauges(RecordedNode("aarch64"))
    assert found["mem_available"] == (250000128 + 1024 + 8388608) * KB
    assert found["mem_used"] == 267649152 * KB - found["mem_available"]


def test_what_the_kernel_does_not_tell_is_left_out() -> None:
    found = gauges(RecordedNode("linuxproc"))
    assert set(found) == {"mem_used", "mem_available", "mem_free", "mem_buffers", "mem_cached"}


def test_shared_memory_is_used_memory_once(node: TreeNode) -> None:
    # 300 kB in /dev/shm and nothing else: Cached has them, MemAvailable has not.
    node.write(
        "meminfo",
        "MemTotal: 1000 kB\nMemFree: 700 kB\nMemAvailable: 700 kB\nCached: 300 kB\nShmem: 300 kB\n",
    )
    assert gauges(node)["mem_used"] == 300 * KB


def test_swap_in_use(node: TreeNode) -> None:
    node.write(
        "meminfo", "MemTotal: 10 kB\nMemAvailable: 5 kB\nSwapTotal: 100 kB\nSwapFree: 70 kB\n"
    )
    found = gauges(node)
    assert (found["swap_used"], found["swap_total"]) == (30 * KB, 100 * KB)


def test_huge_pages_are_counted_in_pages(node: TreeNode) -> None:
    node.write(
        "meminfo",
        "MemTotal: 10 kB\nMemAvailable: 5 kB\n"
        "HugePages_Total: 16\nHugePages_Free: 12\nHugepagesize: 2048 kB\n",
    )
    assert gauges(node)["hugepages_used"] == 4 * 2048 * KB


def test_more_available_or_free_than_there_is_means_that_nothing_is_used(node: TreeNode) -> None:
    # A balloon of the hypervisor may take and give between two fields.
    node.write(
        "meminfo",
        "MemTotal: 10 kB\nMemAvailable: 11 kB\nSwapTotal: 1 kB\nSwapFree: 2 kB\n"
        "HugePages_Total: 1\nHugePages_Free: 2\nHugepagesize: 2048 kB\n",
    )
    found = gauges(node)
    assert (found["mem_used"], found["mem_available"]) == (0, 10 * KB)
    assert (found["swap_used"], found["hugepages_used"]) == (0, 0)


def test_numa_nodes_have_values_under_the_names_of_the_node(node: TreeNode) -> None:
    write_domain(node, 0, DOMAIN.format(0))
    write_domain(node, 8, DOMAIN.format(8).replace("5426320", "5026320"))
    reader = MemoryReader()
    found = list(reader.read(node))
    used = 6645976 - 5426320 - 132368 - 234828 - 710848
    assert [each for each in found if each.scope.type == "memoryDomain"] == [
        Gauge("mem_used", used * KB, domain(0)),
        Gauge("mem_free", 5426320 * KB, domain(0)),
        Gauge("mem_used", (used + 400000) * KB, domain(8)),
        Gauge("mem_free", 5026320 * KB, domain(8)),
    ]
    assert [each for each in found if each.metric == "mem_used" and each.scope == NODE] == [
        Gauge("mem_used", 4000 * KB)
    ]


def test_page_cache_of_a_numa_node_is_not_used_memory_but_shared_memory_is(node: TreeNode) -> None:
    # FilePages has the shared memory, too; only what is in lists of files can be given up.
    write_domain(
        node,
        0,
        "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 100 kB\nNode 0 Active(anon): 300 kB\n"
        "Node 0 Active(file): 200 kB\nNode 0 Inactive(file): 400 kB\nNode 0 FilePages: 900 kB\n"
        "Node 0 Shmem: 300 kB\nNode 0 SReclaimable: 0 kB\n",
    )
    assert gauges(node, domain(0))["mem_used"] == 300 * KB


def test_before_linux_4_20_only_slabs_are_known_as_reclaimable(node: TreeNode) -> None:
    lines = DOMAIN.format(0).splitlines(keepends=True)
    write_domain(node, 0, "".join(line for line in lines if "KReclaimable" not in line))
    used = 6645976 - 5426320 - 132368 - 234828 - 700000
    assert gauges(node, domain(0))["mem_used"] == used * KB


def test_a_numa_node_without_memory_is_no_memory_domain(node: TreeNode) -> None:
    # As GPUs with memory of their own have them, for partitions that there may be.
    content = "".join(
        f"Node 2 {name}: 0 kB\n"
        for name in ("MemTotal", "MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    )
    write_domain(node, 2, content)
    assert gauges(node, domain(2)) == {}


def test_events_are_counters_and_swapped_pages_are_bytes(node: TreeNode) -> None:
    node.page_size = 65536
    node.write("vmstat", VMSTAT)
    assert [each for each in MemoryReader().read(node) if isinstance(each, Count)] == [
        Count("swap_in", 12 * 65536),
        Count("swap_out", 34 * 65536),
        Count("page_faults", 117737555),
        Count("major_page_faults", 35805),
        Count("oom_kills", 69),
    ]


def test_a_kernel_that_does_not_count_oom_kills_tells_the_others() -> None:
    content = b"".join(line for line in VMSTAT.splitlines(keepends=True) if b"oom" not in line)
    assert set(select_events(parse_vmstat(content))) == set(select_events(parse_vmstat(VMSTAT))) - {
        "oom_kills"
    }


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("proc/meminfo", {("mem_free", NODE), ("mem_used", NODE), ("mem_available", NODE)}),
        (f"{NODES}/node1/meminfo", {("mem_free", domain(1)), ("mem_used", domain(1))}),
        (
            "proc/vmstat",
            {
                (metric, NODE)
                for metric in (
                    "page_faults", "major_page_faults", "swap_in", "swap_out", "oom_kills"
                )
            },
        ),
    ],
)  # fmt: skip
def test_a_broken_file_costs_only_its_own_values(
    node: TreeNode, path: str, lost: set[tuple[str, Scope]]
) -> None:
    node.write("vmstat", VMSTAT)
    for number in (0, 1):
        write_domain(node, number, DOMAIN.format(number))
    reader = MemoryReader()
    before = {(each.metric, each.scope) for each in reader.read(node)}
    file = node.path / path
    content = file.read_bytes()
    file.write_bytes(b"MemTotal: much\nMemTotal 5\n")
    assert {(each.metric, each.scope) for each in reader.read(node)} == before - lost
    assert [error.partition(":")[0] for error in reader.errors] == [f"/{path}"]
    file.write_bytes(content)
    assert {(each.metric, each.scope) for each in reader.read(node)} == before
    assert reader.errors == []


def test_numa_nodes_that_cannot_be_listed_cost_only_theirs(node: TreeNode) -> None:
    path = node.path / NODES
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    reader = MemoryReader()
    assert Gauge("mem_used", 4000 * KB) in list(reader.read(node))
    assert [error.partition(":")[0] for error in reader.errors] == [f"/{NODES}"]


def test_a_kernel_without_numa_and_events_still_has_memory(node: TreeNode) -> None:
    assert gauges(node) == {
        "mem_used": 4000 * KB, "mem_available": 12000 * KB, "mem_free": 1000 * KB
    }  # fmt: skip


def test_without_proc_there_is_no_memory(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        MemoryReader().read(Node(root=str(tmp_path), hostname="n1", cluster="c1"))


@pytest.mark.parametrize(
    "content",
    [b"", b"MemFree: 1 kB\n", b"MemTotal: -1 kB\n", b"MemTotal: 18446744073709551616 kB\n"],
)
def test_what_is_no_meminfo(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        node_memory(parse_meminfo(content))
    with pytest.raises(UnparsableError):
        domain_memory(parse_meminfo(content))


@pytest.mark.parametrize(
    "content", [b"", b"pgfault", b"pgfault x\n", b"pswpin 99999999999999999999"]
)
def test_what_is_no_vmstat(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        select_events(parse_vmstat(content))


_NAMES = st.sampled_from([
    "MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "Shmem", "Slab", "SwapTotal",
    "SwapFree", "HugePages_Total", "HugePages_Free", "Hugepagesize", "Active(file)",
    "Inactive(file)", "KReclaimable", "SReclaimable",
])  # fmt: skip
_NUMBERS = st.integers(0, 5000) | st.integers(-1, 2**65)


def _lines(form: str) -> st.SearchStrategy[bytes]:
    lines = st.lists(st.tuples(_NAMES, _NUMBERS), max_size=40)
    return lines.map(lambda pairs: "".join(form.format(*pair) for pair in pairs).encode())


@given(st.binary() | _lines("{}: {} kB\n"))
def test_a_meminfo_is_understood_or_unparsable(content: bytes) -> None:
    try:
        found = node_memory(parse_meminfo(content))
    except UnparsableError:
        return
    assert set(found) <= set(MemoryReader.metrics)
    pages = found.pop("hugepages_used", 0)
    assert 0 <= pages <= LARGEST_UINT**2 * KB
    assert all(0 <= value <= LARGEST_UINT * KB for value in found.values())


@given(st.binary() | _lines("Node 1 {}: {} kB\n"))
def test_the_meminfo_of_a_numa_node_is_understood_or_unparsable(content: bytes) -> None:
    try:
        found = domain_memory(parse_meminfo(content))
    except UnparsableError:
        return
    assert found.keys() in ({"mem_used", "mem_free"}, set())
    assert all(0 <= value <= LARGEST_UINT * KB for value in found.values())


@given(
    st.binary()
    | st.lists(
        st.tuples(st.sampled_from(["pgfault", "pswpin", "oom_kill", "nr_dirty"]), _NUMBERS)
    ).map(lambda pairs: "".join(f"{name} {number}\n" for name, number in pairs).encode())
)
def test_a_vmstat_is_understood_or_unparsable(content: bytes) -> None:
    try:
        found = select_events(parse_vmstat(content))
    except UnparsableError:
        return
    assert found
    assert all(0 <= value <= LARGEST_UINT for value in found.values())


def test_memory_of_this_machine_is_that_of_psutil() -> None:
    found = gauges(Node())
    assert found["mem_used"] + found["mem_available"] == psutil.virtual_memory().total
    assert found["swap_total"] == psutil.swap_memory().total


def test_page_faults_of_this_machine_are_those_of_proc() -> None:
    def page_faults() -> int:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("pgfault "))

    before = page_faults()
    counts = {each.metric: each.value for each in MemoryReader().read(Node())}
    assert before <= counts["page_faults"] <= page_faults()


# node0/numastat of a two-socket machine, Linux 5.15.
NUMASTAT = b"""numa_hit 1296554257
numa_miss 0
numa_foreign 12
interleave_hit 2137
local_node 1296519613
other_node 34644
"""


class TestNumastat:
    def test_pages_by_origin(self) -> None:
        assert parse_numastat(NUMASTAT) == {
            "numastats_numa_hit": 1296554257,
            "numastats_numa_miss": 0,
            "numastats_numa_foreign": 12,
            "numastats_interleave_hit": 2137,
            "numastats_local_node": 1296519613,
            "numastats_other_node": 34644,
        }

    @given(st.binary() | st.text("numa_hit 0123456789\n").map(str.encode))
    def test_any_content_is_understood_or_unparsable(self, content: bytes) -> None:
        with contextlib.suppress(UnparsableError):
            assert all(0 <= value <= LARGEST_UINT for value in parse_numastat(content).values())

    def test_each_node_has_its_own(self, tmp_path: Path) -> None:
        node = TreeNode(tmp_path)
        for number in (0, 2):
            node.write(f"../{NODES}/node{number}/numastat", NUMASTAT)
        scopes = {one.scope for one in NumastatReader().read(node)}
        assert scopes == {Scope("memoryDomain", "0"), Scope("memoryDomain", "2")}

    def test_nothing_is_read_unless_it_is_wanted(self, tmp_path: Path) -> None:
        reader = NumastatReader()
        reader.wanted = frozenset({"cpu_user"})
        assert list(reader.read(TreeNode(tmp_path))) == []


def test_more_fields_on_demand_of_node_and_numa_nodes(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write(
        "meminfo",
        "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: 5 kB\nDirty: 3 kB\nPercpu: 4 kB\n",
    )
    node.write(f"../{NODES}/node1/meminfo", DOMAIN.format(1) + "Node 1 Dirty:    2 kB\n")
    reader = MemoryReader()
    reader.wanted = frozenset({"mem_dirty", "mem_percpu"})
    found = {(one.metric, one.scope.type_id): one.value for one in reader.read(node)}
    assert found["mem_dirty", ""] == 3 * KB
    assert found["mem_dirty", "1"] == 2 * KB
    assert found["mem_percpu", ""] == 4 * KB
    reader.wanted = frozenset({"mem_free"})
    assert "mem_dirty" not in {one.metric for one in reader.read(node)}
