"""Which programs for I/O a kernel can run."""

from __future__ import annotations

import pytest

from ccagent.machine.bpf.io_hooks import (
    HAS_TIME,
    HOOKS,
    TIMERS,
    features_of,
    missing_hooks,
    select_hooks,
)

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
