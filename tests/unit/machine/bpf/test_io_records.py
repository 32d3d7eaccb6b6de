"""Readings of the pinned iterators `io` and `network`, and the programs that a kernel can run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.io_records import (
    HAS_TIME,
    HOOKS,
    TIMERS,
    IoCounts,
    IoKey,
    JobTraffic,
    NetworkKey,
    count_lost,
    features_of,
    missing_hooks,
    parse_io,
    parse_network,
    select_hooks,
)
from tests.support.job_io import io_reading, network_reading

NUMBERS = st.integers(0, 2**64 - 1)
COUNTS = st.builds(IoCounts._make, st.tuples(*[NUMBERS] * 30))
TRAFFIC = st.builds(JobTraffic._make, st.tuples(*[NUMBERS] * 5))
JOBS = st.integers(0, 2**32 - 2)
NO_COUNTS = IoCounts(*[0] * 30)


@given(st.dictionaries(st.builds(IoKey, JOBS, st.integers(0, 2**32 - 1)), COUNTS), COUNTS)
def test_what_the_kernel_wrote_is_read(entries: dict[IoKey, IoCounts], lost: IoCounts) -> None:
    reading = parse_io(io_reading(entries, lost=lost, features=5))
    assert (reading.entries, reading.lost, reading.header.features) == (entries, lost, 5)


@given(
    st.dictionaries(
        st.builds(NetworkKey, JOBS, st.sampled_from(["tcp", "udp"]), st.booleans()), TRAFFIC
    )
)
def test_traffic_is_read(entries: dict[NetworkKey, JobTraffic]) -> None:
    assert parse_network(network_reading(entries)).entries == entries


@given(st.integers(0, 500))
def test_what_is_cut_off_is_refused(size: int) -> None:
    content = io_reading({IoKey(1, 2): NO_COUNTS})
    with pytest.raises(UnparsableError):
        parse_io(content[: min(size, len(content) - 1)])


def test_a_device_has_the_name_of_mountinfo() -> None:
    assert IoKey(1, 8 << 20 | 17).major_minor == "8:17"
    assert IoKey(1, 253).major_minor == "0:253"


def test_files_are_not_mixed_up() -> None:
    with pytest.raises(UnparsableError, match="begins with"):
        parse_io(network_reading({}))
    with pytest.raises(UnparsableError, match="begins with"):
        parse_network(io_reading({}))


def test_a_kind_of_traffic_of_another_version_is_refused() -> None:
    content = network_reading({NetworkKey(3, "udp", is_loopback=False): JobTraffic(*[1] * 5)})
    with pytest.raises(UnparsableError, match="unknown kind 9"):
        parse_network(content.replace(b"\2\0\0\0", b"\x09\0\0\0", 1))


def test_lost_calls_are_counted_without_bytes_and_times() -> None:
    lost = NO_COUNTS._replace(since=9, magic=9, reads=2, read_bytes=500, read_ns=70, opens=1)
    io = parse_io(io_reading({}, lost=lost))
    network = parse_network(network_reading({}, lost=JobTraffic(9, 3, 100, 4, 200)))
    assert count_lost(io, network) == 2 + 1 + 3 + 4


ALL = {hook.function: hook.arguments[0] for hook in HOOKS}


def test_a_kernel_that_has_all_functions_runs_all() -> None:
    assert set(select_hooks(ALL, HOOKS + TIMERS).values()) == {""}


def test_a_function_that_the_kernel_lacks_is_named() -> None:
    functions = {name: count for name, count in ALL.items() if name != "vfs_readv"}
    reasons = {hook.program: reason for hook, reason in select_hooks(functions, HOOKS).items()}
    assert reasons.pop("on_vfs_readv") == "vfs_readv: this kernel has no such function"
    assert set(reasons.values()) == {""}


@pytest.mark.parametrize("function", ["vfs_read", "vfs_copy_file_range", "security_file_open"])
def test_another_number_of_arguments_is_not_trusted(function: str) -> None:
    reasons = select_hooks({**ALL, function: 9}, HOOKS)
    (reason,) = filter(None, reasons.values())
    assert reason.startswith(f"{function}: 9 arguments instead of ")


def test_received_tcp_is_counted_with_any_known_number_of_arguments() -> None:
    for arguments in (4, 5, 6):
        assert not any(select_hooks({**ALL, "tcp_recvmsg": arguments}, HOOKS).values())


def test_features_tell_what_is_missing() -> None:
    programs = {hook.program for hook in HOOKS}
    features = features_of(frozenset(programs - {"on_mkdir", "on_udp_receive"}), has_time=True)
    assert features & HAS_TIME
    assert [hook.counts for hook in missing_hooks(features)] == ["mkdirs", "UDP received"]


def test_what_newer_kernels_do_not_need_is_not_missing() -> None:
    programs = {hook.program for hook in HOOKS}
    features = features_of(frozenset(programs - {"on_tcp_sendpage"}), has_time=False)
    assert missing_hooks(features) == []


def test_each_program_has_a_bit_of_its_own() -> None:
    bits = {features_of(frozenset({hook.program}), has_time=False) for hook in HOOKS}
    assert len(bits) == len(HOOKS) < 63
