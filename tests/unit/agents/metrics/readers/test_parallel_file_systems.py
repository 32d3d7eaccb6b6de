"""Client statistics of BeeGFS, by beegfs-ctl and beegfs; I/O of GPFS file systems, by mmpmon."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.parallel_file_systems import (
    META_OPERATIONS,
    STORAGE_OPERATIONS,
    BeegfsReader,
    BeegfsSettings,
    GpfsReader,
    GpfsSettings,
    parse_client_stats,
    parse_fs_io_s,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.scripted_programs import ProgramNode

# Composed by hand, in the form of ModeClientStats::loop() of BeeGFS 7.4.
META = """\
Sum:              56630 [sum]  0 [ack]  10 [close]  30911 [stat]  17 [mkdir]
10.0.0.1          56000 [sum]  0 [ack]  9 [close]  30900 [stat]  17 [mkdir]
10.0.0.12         630 [sum]  0 [ack]  1 [close]  11 [stat]  0 [mkdir]
"""
STORAGE = """\
Sum:              61957 [sum]  22385 [ops-rd]  3.2877e+11 [B-rd]  21504 [ops-wr]  8.80804e+07 [B-wr]
10.0.0.1          61957 [sum]  22385 [ops-rd]  3.2877e+11 [B-rd]  21504 [ops-wr]  8.80804e+07 [B-wr]
"""
# That of `beegfs stats client --all --retro` of BeeGFS 8.
RETRO = """\
------- 0s -------
10.0.0.1: 61957 [sum] 22385 [ops-rd] 306Gi [rd] 21504 [ops-wr] 84Mi [wr] 
Summary: 61957 [sum] 22385 [ops-rd] 306Gi [rd] 21504 [ops-wr] 84Mi [wr] 
"""  # noqa: W291 - as it prints it

MMPMON = "/usr/lpp/mmfs/bin/mmpmon"


def test_the_sum_is_that_of_all_clients() -> None:
    assert parse_client_stats(META.encode()) == {
        "sum": 56630, "ack": 0, "close": 10, "stat": 30911, "mkdir": 17,
    }  # fmt: skip


def test_one_client_has_its_own_line() -> None:
    assert parse_client_stats(META.encode(), "10.0.0.12")["sum"] == 630
    assert parse_client_stats(META.encode(), "10.0.0.1")["sum"] == 56000
    assert parse_client_stats(META.encode(), "10.0.0.3") == {}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("84 [MiB-wr]", 84 << 20), ("0.500 [MiB-wr]", 1 << 19), ("3.5e+03 [MiB-wr]", 3500 << 20),
        ("9007199254740993 [B-wr]", 9007199254740993), ("3.2877e+11 [B-wr]", 328_770_000_000),
    ],
)  # fmt: skip
def test_bytes_have_units(printed: str, value: int) -> None:
    assert parse_client_stats(f"====== 0 s ======\nSum: {printed}\n".encode()) == {"B-wr": value}


def test_bytes_of_beegfs_8_count_if_they_have_all_digits() -> None:
    text = RETRO.replace("306Gi", "328770000001").replace("84Mi", "0")
    found = parse_client_stats(text.encode())
    assert (found["B-rd"], found["B-wr"]) == (328_770_000_001, 0)


def test_rounded_bytes_and_rates_are_left_out() -> None:
    assert parse_client_stats(RETRO.encode()) == {"sum": 61957, "ops-rd": 22385, "ops-wr": 21504}
    assert parse_client_stats(b"====== 10 s ======\nSum: 5 [sum]  3.5 [MiB-rd/s]\n") == {"sum": 5}


def test_servers_without_requests_have_no_sum() -> None:
    assert parse_client_stats(b"\n====== 0 s ======\n") == {}


@pytest.mark.parametrize(
    "text",
    ["", "Management node communication failed\n", "Sum: many [sum]\n", "Sum: \n"],
)
def test_what_are_no_statistics(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse_client_stats(text.encode())


@given(st.binary(max_size=100), st.integers(0, len(STORAGE)), st.integers(0, 60))
def test_any_damage_is_counters_or_an_error(junk: bytes, start: int, length: int) -> None:
    text = STORAGE.encode()
    try:
        counters = parse_client_stats(text[:start] + junk + text[start + length :])
    except UnparsableError:
        return
    assert all(0 <= value <= 1 << 70 for value in counters.values())


ON_DEMAND = "30 1 0:44 / /mnt/beeond rw - beegfs beegfs_ondemand rw\n"
SHARED = "31 1 0:45 / /data rw - beegfs beegfs_nodev rw\n"


def meta(total: int, stat: int) -> str:
    return f"Sum:            {total} [sum]  {stat} [stat]  \n"


@pytest.fixture
def node(tmp_path: Path) -> ProgramNode:
    node = ProgramNode(tmp_path)
    node.write("self/mountinfo", ON_DEMAND + SHARED)
    node.programs = {
        "beegfs-ctl --clientstats --nodetype=meta": meta(100, 50),
        "beegfs-ctl --clientstats --nodetype=storage": STORAGE,
    }
    return node


def patient(settings: BeegfsSettings | None = None) -> BeegfsReader:
    reader = BeegfsReader(settings)
    reader.is_patient = True
    return reader


def test_rates_are_those_between_two_runs(node: ProgramNode) -> None:
    reader = patient()
    assert list(reader.read(node)) == []
    node.clock.sleep(10)
    node.programs["beegfs-ctl --clientstats --nodetype=meta"] = meta(140, 60)
    found = {each.metric: each.value for each in reader.read(node)}
    assert found == {
        "beegfs_meta_sum": 4, "beegfs_meta_stat": 1, "beegfs_storage_sum": 0,
        "beegfs_storage_ops_rd": 0, "beegfs_storage_read": 0, "beegfs_storage_ops_wr": 0,
        "beegfs_storage_write": 0,
    }  # fmt: skip
    assert {command[3] for command in node.commands} == {"--mount=/mnt/beeond"}
    assert "--interval=0" in node.commands[0]
    assert "--rwunit=B" in node.commands[0]
    reader.close()


def test_only_those_servers_are_asked_that_have_wanted_metrics(node: ProgramNode) -> None:
    reader = patient()
    reader.wanted = frozenset({"beegfs_meta_open"})
    list(reader.read(node))
    assert [command[2] for command in node.commands] == ["--nodetype=meta"]
    reader.close()


@pytest.mark.parametrize(("client", "lines"), [("", 0), ("10.0.0.1", 100_000)])
def test_the_sum_is_printed_only_without_a_limit(
    node: ProgramNode, client: str, lines: int
) -> None:
    reader = patient(BeegfsSettings(client=client))
    list(reader.read(node))
    assert {command[6] for command in node.commands} == {f"--maxlines={lines}"}
    assert reader.errors == []
    reader.close()


def test_mounts_can_be_named(node: ProgramNode) -> None:
    reader = patient(BeegfsSettings(mounts=("/data",)))
    list(reader.read(node))
    assert {command[3] for command in node.commands} == {"--mount=/data"}
    reader.close()


def test_a_server_that_restarted_makes_no_peak(node: ProgramNode) -> None:
    """Of two servers with 50 requests each one restarts: 50 requests are no growth."""
    reader = patient()
    reader.wanted = frozenset({"beegfs_meta_sum"})
    rates: list[list[float]] = []
    for total in (100, 50, 60, 70):
        node.programs["beegfs-ctl --clientstats --nodetype=meta"] = meta(total, 1)
        rates.append([each.value for each in reader.read(node) if each.metric == "beegfs_meta_sum"])
        node.clock.sleep(10)
    assert rates == [[], [], [], [1]]
    reader.close()


def test_beegfs_8_has_another_program(node: ProgramNode) -> None:
    node.programs = {"beegfs stats client": RETRO}
    reader = patient()
    list(reader.read(node))
    assert reader.errors == []
    assert node.commands[0] == (
        "beegfs", "stats", "client", "--node-type=meta", "--interval=0s", "--all", "--retro",
        "--raw", "--mount=/mnt/beeond",
    )  # fmt: skip
    reader.close()


def test_a_mount_that_fails_costs_itself(node: ProgramNode) -> None:
    node.programs["beegfs-ctl --clientstats --nodetype=meta"] = "Node download failed.\n"
    reader = patient()
    list(reader.read(node))
    assert reader.errors == [
        "mount '/mnt/beeond', meta: no client statistics: 'Node download failed.\\n'"
    ]
    node.clock.sleep(10)
    assert {each.metric for each in reader.read(node)} > {"beegfs_storage_sum"}
    reader.close()


def test_a_missing_program_is_an_error_that_names_the_key(node: ProgramNode) -> None:
    node.programs = {}
    reader = patient()
    reader.wanted = frozenset({"beegfs_meta_sum"})
    assert list(reader.read(node)) == []
    assert reader.errors == [
        (
            "mount '/mnt/beeond', meta: no program beegfs-ctl or beegfs: install it,"
            " or set agents.metrics.beegfs.command"
        )
    ]
    reader.close()


def test_a_machine_without_beegfs_runs_nothing(node: ProgramNode) -> None:
    node.write("self/mountinfo", SHARED)
    with pytest.raises(NotHereError, match="BeeOND"):
        patient().read(node)
    assert node.commands == []


def test_each_operation_has_a_metric() -> None:
    assert len(BeegfsReader.metrics) == len(META_OPERATIONS) + len(STORAGE_OPERATIONS)


def response(name: str, *counters: int, status: int = 0, cluster: str = "gpfs.test") -> str:
    """Write a line in the form that IBM's documentation describes."""
    keywords = ("_br_", "_bw_", "_oc_", "_cc_", "_rdc_", "_wc_", "_dir_", "_iu_")
    pairs = " ".join(f"{key} {value}" for key, value in zip(keywords, counters, strict=True))
    return (
        f"_fs_io_s_ _n_ 10.0.0.1 _nn_ c1-1 _rc_ {status} _t_ 1700000000 _tu_ 53212"
        f" _cl_ {cluster} _fs_ {name} _d_ 48 {pairs}\n"
    )


SCRATCH = response("scratch", 10**12, 2 * 10**11, 30, 29, 1000, 2000, 7, 5)
HOME = response("home", 1, 2, 3, 4, 5, 6, 7, 8)


def test_keywords_are_those_of_the_documentation() -> None:
    assert parse_fs_io_s((SCRATCH + HOME).encode()) == (
        {
            "scratch": {
                "gpfs_read": 10**12, "gpfs_write": 2 * 10**11, "gpfs_opens": 30, "gpfs_closes": 29,
                "gpfs_reads": 1000, "gpfs_writes": 2000, "gpfs_readdirs": 7,
                "gpfs_inode_updates": 5,
            },
            "home": dict(zip(GpfsReader.metrics, range(1, 9), strict=True)),
        },
        [],
    )  # fmt: skip


def test_a_file_system_that_fails_costs_itself() -> None:
    failed = response("old", *range(8), status=1)
    damaged = HOME.replace("_rdc_ 5", "_rdc_ -5")
    systems, problems = parse_fs_io_s((failed + damaged + SCRATCH).encode())
    assert set(systems) == {"scratch"}
    assert problems == [
        "mmpmon: file system 'old': status 1",
        "mmpmon: file system 'home': _rdc_: not a number: '-5'",
    ]


def test_a_line_that_is_cut_off_is_left_out() -> None:
    text = HOME + SCRATCH[:-3]
    assert set(parse_fs_io_s(text.encode())[0]) == {"home"}


def test_file_systems_of_two_clusters_are_two() -> None:
    other = response("home", *range(8), cluster="far.test")
    assert set(parse_fs_io_s((HOME + other).encode())[0]) == {"home@gpfs.test", "home@far.test"}


@pytest.mark.parametrize("text", ["", "mmpmon node 10.0.0.1 name c1-1 fs_io_s OK\n", SCRATCH[:-1]])
def test_what_is_no_response(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse_fs_io_s(text.encode())


@given(st.binary(max_size=100), st.integers(0, len(SCRATCH)), st.integers(0, 40))
def test_gpfs_any_damage_is_counters_or_an_error(junk: bytes, start: int, length: int) -> None:
    text = SCRATCH.encode()
    try:
        systems, _ = parse_fs_io_s(HOME.encode() + text[:start] + junk + text[start + length :])
    except UnparsableError:
        return
    assert all(0 <= value <= LARGEST_UINT for each in systems.values() for value in each.values())


@pytest.fixture
def gpfs_node(tmp_path: Path) -> ProgramNode:
    gpfs_node = ProgramNode(tmp_path)
    gpfs_node.write("self/mountinfo", "30 1 0:44 / /scratch rw - gpfs scratch rw\n")
    gpfs_node.programs = {MMPMON: SCRATCH}
    return gpfs_node


def patient_gpfs(settings: GpfsSettings | None = None) -> GpfsReader:
    reader = GpfsReader(settings)
    reader.is_patient = True
    return reader


def test_gpfs_rates_are_those_between_two_runs(gpfs_node: ProgramNode) -> None:
    reader = patient_gpfs()
    assert list(reader.read(gpfs_node)) == []
    gpfs_node.clock.sleep(10)
    gpfs_node.programs = {
        MMPMON: response("scratch", 10**12 + 5000, 2 * 10**11, 50, 29, 1010, 2000, 7, 6)
    }
    found = {each.metric: each.value for each in reader.read(gpfs_node)}
    assert found == {
        "gpfs_read": 500, "gpfs_write": 0, "gpfs_opens": 2, "gpfs_closes": 0, "gpfs_reads": 1,
        "gpfs_writes": 0, "gpfs_readdirs": 0, "gpfs_inode_updates": 0.1,
    }  # fmt: skip
    assert gpfs_node.commands == [(MMPMON, "-p", "-s")] * 2
    assert gpfs_node.inputs == [b"once fs_io_s\n"] * 2
    reader.close()


def test_file_systems_can_be_excluded(gpfs_node: ProgramNode) -> None:
    gpfs_node.programs = {MMPMON: SCRATCH + HOME}
    reader = patient_gpfs(GpfsSettings(exclude=("scr*",)))
    list(reader.read(gpfs_node))
    gpfs_node.clock.sleep(10)
    assert {each.scope.stype_id for each in reader.read(gpfs_node)} == {"home"}
    reader.close()


def test_a_machine_without_gpfs_runs_nothing(gpfs_node: ProgramNode) -> None:
    gpfs_node.write("self/mountinfo", "30 1 0:44 / / rw - ext4 /dev/sda1 rw\n")
    with pytest.raises(NotHereError):
        patient_gpfs().read(gpfs_node)
    assert gpfs_node.commands == []


def test_gpfs_a_missing_program_is_an_error_that_names_the_key(gpfs_node: ProgramNode) -> None:
    gpfs_node.programs = {}
    reader = patient_gpfs()
    assert list(reader.read(gpfs_node)) == []
    assert reader.errors == [f"{MMPMON}: no such program; see agents.metrics.gpfs.command"]
    reader.close()


def test_a_command_is_needed() -> None:
    with pytest.raises(ValueError, match="empty"):
        GpfsSettings(command=())
