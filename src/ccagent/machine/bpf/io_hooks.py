"""Programs of io.bpf.c with their kernel functions, and the values that each counts.

The order is the order of the bits in the header's `features`: new programs are appended.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class IoHook(NamedTuple):
    """A program and the kernel function that it is attached to.

    arguments: supported numbers of arguments of the function; empty: any. counts: the values that
    the program counts.
    """

    program: str
    function: str
    arguments: tuple[int, ...]
    counts: str


SYSTEM_CALL = {"aarch64": "__arm64_sys_"}.get(platform.machine(), "__x64_sys_")
"""The prefix of the kernel's system call functions on this architecture."""

HOOKS = (
    IoHook("on_vfs_read", "vfs_read", (4,), "read"),
    IoHook("on_vfs_write", "vfs_write", (4,), "write"),
    IoHook("on_vfs_readv", "vfs_readv", (5,), "readv"),
    IoHook("on_vfs_writev", "vfs_writev", (5,), "writev"),
    IoHook("on_open", "security_file_open", (1, 2), "opens"),
    IoHook("on_create", "security_inode_create", (3,), "creates"),
    IoHook("on_link", "security_inode_link", (3,), "hard links"),
    IoHook("on_symlink", "security_inode_symlink", (3,), "symbolic links"),
    IoHook("on_unlink", "security_inode_unlink", (2,), "unlinks"),
    IoHook("on_mkdir", "security_inode_mkdir", (3,), "mkdirs"),
    IoHook("on_rmdir", "security_inode_rmdir", (2,), "rmdirs"),
    IoHook("on_rename", "security_inode_rename", (4, 5), "renames"),
    IoHook("on_stat", "security_inode_getattr", (1,), "stats"),
    IoHook("on_statfs", "security_sb_statfs", (1,), "statfs"),
    IoHook("on_readdir", "iterate_dir", (2,), "readdirs"),
    IoHook("on_fsync", f"{SYSTEM_CALL}fsync", (1,), "fsync"),
    IoHook("on_fdatasync", f"{SYSTEM_CALL}fdatasync", (1,), "fdatasync"),
    IoHook("on_aio_read", "aio_read", (4,), "libaio reads"),
    IoHook("on_aio_write", "aio_write", (4,), "libaio writes"),
    IoHook("on_aio_complete", "aio_complete_rw", (2, 3), "libaio results"),
    IoHook("on_io_read", "io_read", (2,), "io_uring reads"),
    IoHook("on_io_write", "io_write", (2,), "io_uring writes"),
    IoHook("on_io_complete", "io_complete_rw", (2, 3), "io_uring results"),
    IoHook("on_io_complete_polled", "io_complete_rw_iopoll", (2, 3), "polled io_uring results"),
    IoHook("on_copy_file_range", "vfs_copy_file_range", (6,), "copy_file_range"),
    IoHook("on_splice", "do_splice", (6,), "splice"),
    IoHook("on_sendfile", "do_sendfile", (5,), "sendfile"),
    IoHook("on_fault", "filemap_fault", (1,), "major page faults"),
    IoHook("on_tcp_send", "tcp_sendmsg", (3,), "TCP sent"),
    IoHook("on_tcp_sendpage", "tcp_sendpage", (5,), "TCP sendfile before Linux 6.5"),
    IoHook("on_tcp_receive", "tcp_recvmsg", (4, 5, 6), "TCP received"),
    IoHook("on_tcp_splice", "tcp_splice_read", (5,), "TCP spliced to a pipe"),
    IoHook("on_udp_send", "udp_sendmsg", (3,), "UDP sent"),
    IoHook("on_udpv6_send", "udpv6_sendmsg", (3,), "UDP sent over IPv6"),
    IoHook("on_udp_receive", "skb_consume_udp", (3,), "UDP received"),
)

TIMERS = (
    IoHook("enter_vfs_read", "vfs_read", (4,), "latency of read"),
    IoHook("enter_vfs_write", "vfs_write", (4,), "latency of write"),
    IoHook("enter_vfs_readv", "vfs_readv", (5,), "latency of readv"),
    IoHook("enter_vfs_writev", "vfs_writev", (5,), "latency of writev"),
)
"""Programs that are only attached with `has_time`."""

HAS_TIME = 1 << 63
"""Feature: read_ns and write_ns are measured."""

OF_OLD_KERNELS = frozenset({"tcp_sendpage"})
"""Functions that newer kernels do not use. Without them no values are missing."""


def select_hooks(functions: Mapping[str, int], hooks: tuple[IoHook, ...]) -> dict[IoHook, str]:
    """Return for each hook the reason for which it can't be used, "" if it can.

    functions: number of arguments by function of the kernel.
    """
    return {hook: _reason(hook, functions) for hook in hooks}


def features_of(hooks: frozenset[str], *, has_time: bool) -> int:
    """Return the feature bits of programs by their names."""
    bits = sum(1 << number for number, hook in enumerate(HOOKS) if hook.program in hooks)
    return bits | (HAS_TIME if has_time else 0)


def missing_hooks(features: int) -> list[IoHook]:
    """Return the hooks that this kernel lacks, from the features of a reading."""
    return [
        hook
        for number, hook in enumerate(HOOKS)
        if not features >> number & 1 and hook.function not in OF_OLD_KERNELS
    ]


def _reason(hook: IoHook, functions: Mapping[str, int]) -> str:
    found = functions.get(hook.function)
    if found is None:
        return f"{hook.function}: this kernel has no such function"
    if hook.arguments and found not in hook.arguments:
        return f"{hook.function}: {found} arguments instead of {hook.arguments[-1]}"
    return ""
