"""/proc/PID/stat, statm, io, and status: the capabilities that a process lacks."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.procfs.process_files import (
    Io,
    Statm,
    command_text,
    describe_lack,
    parse_io,
    parse_stat,
    parse_statm,
)
from tests.support.doctor_site import ALL, NONE, PTRACE, status

STAT = (
    b"4242 (%s) S 17 4240 4100 0 -1 4194304 1 2 3 4 150 50 30 20 20 0 9 0 "
    b"123456 1000000 250 18446744073709551615" + b" 0" * 27 + b"\n"
)


def test_stat_gives_identity_and_times() -> None:
    stat = parse_stat(STAT % b"python3")

    assert stat.command == b"python3"
    assert (stat.ppid, stat.process_group, stat.session) == (17, 4240, 4100)
    assert (stat.own_ticks, stat.all_ticks) == (200, 250)
    assert (stat.num_threads, stat.starttime) == (9, 123456)


@pytest.mark.parametrize(
    "command", [b"a) R 1 1 (b", b")", b"(", b"", b"two\nlines", b"\xff\xfe", b"x) S 1 2 3 4"]
)
def test_no_command_name_can_shift_the_fields(command: bytes) -> None:
    stat = parse_stat(STAT % command)

    assert stat.command == command
    assert stat.ppid == 17


def test_a_cut_multibyte_character_in_a_command_is_replaced() -> None:
    assert (
        command_text("fifteen_bytes_ü".encode()[:15], b"S")
        == "fifteen_bytes_\N{REPLACEMENT CHARACTER}"
    )


def test_a_zombie_is_marked_as_ps_marks_it() -> None:
    assert command_text(b"sh", b"Z") == "sh <defunct>"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1 (init",
        b"1 init) S 0",
        b"1 (init) S 0 1 1",
        (STAT % b"x")[:60],
        STAT.replace(b"150", b"one") % b"x",
        STAT.replace(b" 17 ", b" -17 ") % b"x",
        STAT.replace(b" 150 ", b" -1500 ") % b"x",
        STAT.replace(b"123456", b"9" * 30) % b"x",
        STAT.replace(b" 150 ", b" " + b"9" * 5000 + b" ") % b"x",
    ],
)
def test_a_stat_that_is_cut_or_absurd_is_unparsable(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_stat(content)


def test_private_memory_is_resident_without_shared() -> None:
    assert parse_statm(b"1000 300 120 7 0 450 0\n") == Statm(180, 450, 300, 1000)


def test_shared_read_ahead_of_resident_does_not_make_memory_negative() -> None:
    assert parse_statm(b"1000 300 301 7 0 450 0\n").private == 0


@pytest.mark.parametrize("position", [0, 1, 2, 5])
def test_a_number_of_statm_that_wrapped_is_unparsable(position: int) -> None:
    numbers = [b"1000", b"300", b"120", b"7", b"0", b"450", b"0"]
    numbers[position] = b"18446744073709551615"
    with pytest.raises(UnparsableError):
        parse_statm(b" ".join(numbers))


def test_io_counts_all_read_and_write_calls() -> None:
    text = b"rchar: 10\nwchar: 20\nsyscr: 1\nread_bytes: 7\ncancelled_write_bytes: 30\n"
    assert parse_io(text) == Io(10, 20, 30)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_parse_or_are_unparsable(content: bytes) -> None:
    for parse in (parse_stat, parse_statm, parse_io):
        try:
            parse(content)
        except UnparsableError:
            continue


@given(st.binary(max_size=64), st.integers(0, 300))
def test_a_stat_with_any_command_cut_anywhere_parses_or_is_unparsable(
    command: bytes, length: int
) -> None:
    content = (STAT.replace(b"%s", command))[:length]
    with contextlib.suppress(UnparsableError):
        parse_stat(content)
    assert parse_stat(STAT.replace(b"%s", command)).command == command


NEEDED = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")


@pytest.mark.parametrize(
    ("uid", "capabilities", "text"),
    [
        (0, f"{int(ALL, 16) & ~(1 << 19):016x}", "this process of root lacks CAP_SYS_PTRACE"),
        (0, NONE, "this process of root lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        (990, PTRACE, "this process lacks CAP_DAC_READ_SEARCH"),
        (990, f"{1 << 1:016x}", "this process lacks CAP_SYS_PTRACE"),  # CAP_DAC_OVERRIDE reads too
    ],
)
def test_what_is_missing_is_named(uid: int, capabilities: str, text: str) -> None:
    assert describe_lack(status(uid, capabilities).encode(), *NEEDED) == text


def test_a_process_that_lacks_nothing_is_not_sent_after_capabilities() -> None:
    found = describe_lack(status(0, ALL).encode(), *NEEDED)
    assert found.startswith("this process has CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: a user")


@pytest.mark.parametrize("content", [b"", b"CapEff: x\n"])
def test_without_a_status_the_need_is_named(content: bytes) -> None:
    assert describe_lack(content, *NEEDED) == "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH needed"
