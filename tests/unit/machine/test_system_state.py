"""/proc/stat, meminfo, loadavg and diskstats."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.procfs.system import (
    Load,
    compute_used_memory,
    parse_diskstats,
    parse_file_nr,
    parse_kernel_stat,
    parse_loadavg,
    parse_meminfo,
)
from ccagent.machine.system_state import compute_busy_seconds, read_system
from tests.support.tree import TreeNode


def test_a_cpus_seconds_leave_out_idle_iowait_steal_and_guest() -> None:
    text = b"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 200 300 7000 8000 400 500 6000 100 0\nbtime 5\n"

    assert compute_busy_seconds(parse_kernel_stat(text).times, 100) == [15]


def test_an_offline_cpu_stands_with_zero_so_that_places_are_numbers() -> None:
    text = b"cpu0 100 0 0 0 0 0 0 0\ncpu3 400 0 0 0 0 0 0 0\nbtime 5\n"

    assert compute_busy_seconds(parse_kernel_stat(text).times, 100) == [1, 0, 0, 4]


def test_boot_time_comes_after_the_interrupts() -> None:
    assert (
        parse_kernel_stat(b"cpu0 1 1 1 1 1 1 1 1\nintr 1 2 3\nctxt 1\nbtime 1700000000\n").boot
        == 1700000000
    )


@pytest.mark.parametrize(
    "text",
    [b"cpu0 1 2", b"cpu0 a b c d e f g h", b"cpu99999999 1 1 1 1 1 1 1 1", b"btime x", b"btime -5"],
)
def test_a_broken_stat_is_unparsable(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_kernel_stat(text)


def test_used_memory_is_what_is_not_available() -> None:
    assert compute_used_memory(parse_meminfo(b"MemTotal: 100 kB\nMemAvailable: 30 kB\n")) == 70


def test_used_memory_on_kernels_without_mem_available() -> None:
    text = b"MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB\n"
    assert compute_used_memory(parse_meminfo(text)) == 65


def test_load_and_counts() -> None:
    assert parse_loadavg(b"0.20 0.18 0.12 1/80 11206\n") == Load(0.20, 0.18, 0.12, 1, 80)


@pytest.mark.parametrize("text", [b"", b"1 2", b"nan 1 1 1/1 1", b"inf 1 1 1/1 1", b"1 1 1 1-1 1"])
def test_a_broken_loadavg_is_unparsable(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_loadavg(text)


def test_disks_have_all_their_values_and_unused_ones_are_left_out(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write(
        "diskstats",
        " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n 7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n",
    )

    (disk,) = read_system(node, []).system.disks

    assert (disk.name, disk.major, disk.minor, disk.stats) == ("vda", 254, 0, list(range(1, 18)))


def test_open_files_have_a_number_and_a_limit() -> None:
    # As Linux 6.12 prints it.
    assert parse_file_nr(b"2384\t0\t9223372036854775807\n") == (2384, 2**63 - 1)


@pytest.mark.parametrize("text", [b"", b"1 2\n", b"1 2 x\n", b"-1 0 5\n", b"1 0 " + b"9" * 30])
def test_other_numbers_of_open_files_are_unparsable(text: bytes) -> None:
    with pytest.raises(UnparsableError, match="not three numbers"):
        parse_file_nr(text)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_parse_or_are_unparsable(content: bytes) -> None:
    parsers: list[Callable[[bytes], object]] = [
        parse_kernel_stat,
        parse_meminfo,
        parse_loadavg,
        parse_diskstats,
        parse_file_nr,
    ]
    for parse in parsers:
        try:
            parse(content)
        except UnparsableError:
            continue
