"""I/O of GPFS file systems, by mmpmon."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.parallel_file_systems import (
    GpfsReader,
    GpfsSettings,
    parse_fs_io_s,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.scripted_programs import ProgramNode

MMPMON = "/usr/lpp/mmfs/bin/mmpmon"


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
def test_any_damage_is_counters_or_an_error(junk: bytes, start: int, length: int) -> None:
    text = SCRATCH.encode()
    try:
        systems, _ = parse_fs_io_s(HOME.encode() + text[:start] + junk + text[start + length :])
    except UnparsableError:
        return
    assert all(0 <= value <= LARGEST_UINT for each in systems.values() for value in each.values())


@pytest.fixture
def node(tmp_path: Path) -> ProgramNode:
    node = ProgramNode(tmp_path)
    node.write("self/mountinfo", "30 1 0:44 / /scratch rw - gpfs scratch rw\n")
    node.programs = {MMPMON: SCRATCH}
    return node


def patient(settings: GpfsSettings | None = None) -> GpfsReader:
    reader = GpfsReader(settings)
    reader.is_patient = True
    return reader


def test_rates_are_those_between_two_runs(node: ProgramNode) -> None:
    reader = patient()
    assert list(reader.read(node)) == []
    node.clock.sleep(10)
    node.programs = {
        MMPMON: response("scratch", 10**12 + 5000, 2 * 10**11, 50, 29, 1010, 2000, 7, 6)
    }
    found = {each.metric: each.value for each in reader.read(node)}
    assert found == {
        "gpfs_read": 500, "gpfs_write": 0, "gpfs_opens": 2, "gpfs_closes": 0, "gpfs_reads": 1,
        "gpfs_writes": 0, "gpfs_readdirs": 0, "gpfs_inode_updates": 0.1,
    }  # fmt: skip
    assert node.commands == [(MMPMON, "-p", "-s")] * 2
    assert node.inputs == [b"once fs_io_s\n"] * 2
    reader.close()


def test_file_systems_can_be_excluded(node: ProgramNode) -> None:
    node.programs = {MMPMON: SCRATCH + HOME}
    reader = patient(GpfsSettings(exclude=("scr*",)))
    list(reader.read(node))
    node.clock.sleep(10)
    assert {each.scope.stype_id for each in reader.read(node)} == {"home"}
    reader.close()


def test_a_machine_without_gpfs_runs_nothing(node: ProgramNode) -> None:
    node.write("self/mountinfo", "30 1 0:44 / / rw - ext4 /dev/sda1 rw\n")
    with pytest.raises(NotHereError):
        patient().read(node)
    assert node.commands == []


def test_a_missing_program_is_an_error_that_names_the_key(node: ProgramNode) -> None:
    node.programs = {}
    reader = patient()
    assert list(reader.read(node)) == []
    assert reader.errors == [f"{MMPMON}: no such program; see agents.metrics.gpfs.command"]
    reader.close()


def test_a_command_is_needed() -> None:
    with pytest.raises(ValueError, match="empty"):
        GpfsSettings(command=())
