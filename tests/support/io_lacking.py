"""A kernel that lacks functions, as users meet it: load, status, and known programs."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from typing import TYPE_CHECKING

from ccagent.machine.bpf.io_records import HOOKS, SYSTEM_CALL
from ccagent.machine.bpf.libbpf import Libbpf, read_functions
from tests.support.hidden_btf import lacking_kernel
from tests.support.io_jobs import DIRECTORY, Result
from tests.support.io_programs import compare
from tests.support.io_traffic import compare_network
from tests.support.kernel_programs import hierarchy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

_PRESENT = {
    "vfs_read", "vfs_write", "vfs_writev", "security_file_open", "security_inode_create",
    "security_inode_link", "security_inode_symlink", "security_inode_unlink",
    "security_inode_rmdir", "security_inode_getattr", "security_sb_statfs",
    f"{SYSTEM_CALL}fdatasync", "tcp_sendmsg", "tcp_recvmsg", "skb_consume_udp",
}  # fmt: skip
HIDDEN = frozenset(hook.function for hook in HOOKS) - _PRESENT
LACKING_PROGRAMS = ("read_write", "vectors", "metadata")
LACKING_TRAFFIC = ("tcp", "udp")

_OF_SMALL_KERNEL = {"vfs_write", "vfs_writev", "security_file_open", "security_inode_create"}
importlib.import_module("ccagent.commands.kernel")  # once, for all processes that run it

_HELPER = {"BPF_FUNC_get_func_ret": 184}
"""Without it a function's result is looked for behind six arguments, as before Linux 5.17."""


def small_kernel() -> AbstractContextManager[None]:
    """Have a kernel with so few functions that the programs are loaded at once."""
    return _without({hook.function for hook in HOOKS} - _OF_SMALL_KERNEL)


def _without(
    functions: Iterable[str], enumerators: Mapping[str, int] | None = None
) -> AbstractContextManager[None]:
    """Hide those functions that the kernel has."""
    return lacking_kernel(read_functions(Libbpf(), functions), enumerators)


def do_without() -> Result:
    """Load on a kernel that lacks functions, by the command; count, and unload."""
    with _without(HIDDEN, _HELPER):
        _, loaded = _ccagent("load", "--io")
    _, status = _ccagent("status", "--json")
    os.makedirs("/mnt/p", exist_ok=True)
    with hierarchy("v2") as root:
        programs = {name: compare(root, "/mnt/p", name) for name in LACKING_PROGRAMS}
        traffic = {name: compare_network(root, name) for name in LACKING_TRAFFIC}
    _ccagent("unload", "--io")
    return {
        "loaded": loaded.splitlines(),
        "status": json.loads(status),
        "programs": programs,
        "traffic": traffic,
    }


def load_without_helper() -> Result:
    """Load on a kernel like 5.10, which lacks what the programs find a task's job with."""
    with lacking_kernel(["bpf_get_current_task_btf"]):
        status, said = _ccagent("load", "--io")
    return {"status": status, "said": said, "left": sorted(os.listdir(DIRECTORY))}


def _ccagent(*arguments: str) -> tuple[int, str]:
    """Run a subcommand of `ccagent kernel`; return its exit status and what it prints.

    In a process that has imported what it needs: a start takes seconds, emulated.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.argv = ["ccagent", "kernel", *arguments, "--directory", DIRECTORY]
        try:
            runpy.run_module("ccagent", run_name="__main__")
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as printed:
        said = printed.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
