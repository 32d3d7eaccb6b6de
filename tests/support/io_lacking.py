"""A kernel that lacks functions, as users meet it: load, status, and known programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ccagent.machine.bpf.btf_functions import read_functions
from ccagent.machine.bpf.io_hooks import HOOKS, SYSTEM_CALL
from ccagent.machine.bpf.libbpf import Libbpf
from tests.support.hidden_btf import lacking_kernel
from tests.support.io_jobs import DIRECTORY, Result
from tests.support.io_programs import compare
from tests.support.io_traffic import compare_network
from tests.support.kernel_programs import hierarchy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

HIDDEN = (
    "vfs_readv", "security_inode_mkdir", "security_inode_rename", f"{SYSTEM_CALL}fsync",
    "iterate_dir", "io_complete_rw_iopoll", "udp_sendmsg",
)  # fmt: skip
LACKING_PROGRAMS = ("read_write", "vectors", "metadata")
LACKING_TRAFFIC = ("tcp", "udp")

_OF_SMALL_KERNEL = {"vfs_write", "vfs_writev", "security_file_open", "security_inode_create"}
_HELPER = {"BPF_FUNC_get_func_ret": 184}
"""Without it a function's result is looked for behind six arguments, as before Linux 5.17."""


def small_kernel() -> AbstractContextManager[None]:
    """Have a kernel with so few functions that the programs are loaded at once."""
    others = {hook.function for hook in HOOKS} - _OF_SMALL_KERNEL
    return lacking_kernel(read_functions(Libbpf(), others))


def do_without() -> Result:
    """Load on a kernel that lacks functions, by the command; count, and unload."""
    with lacking_kernel(HIDDEN, _HELPER):
        loaded = _ccagent("load", "--io")
    status = _ccagent("status", "--json")
    os.makedirs("/mnt/p", exist_ok=True)
    with hierarchy("v2") as root:
        programs = {name: compare(root, "/mnt/p", name) for name in LACKING_PROGRAMS}
        traffic = {name: compare_network(root, name) for name in LACKING_TRAFFIC}
    _ccagent("unload")
    return {
        "loaded": loaded.stderr.splitlines(),
        "status": json.loads(status.stdout),
        "programs": programs,
        "traffic": traffic,
    }


def _ccagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ccagent", "kernel", *arguments, "--directory", DIRECTORY]
    return subprocess.run(command, capture_output=True, text=True, check=True)
