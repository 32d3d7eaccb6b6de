"""Directory, names and permissions of the pinned programs.

The directory is our own, because systemd mounts /sys/fs/bpf for root alone (mode=700), so that no
other user could reach files pinned there.
"""

from __future__ import annotations

import os

DIRECTORY = "/run/ccagent-kernel"
"""A bpffs is mounted here, unless the directory already lies in one."""

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO in include/linux/proc_ns.h: the namespace of the pids in the records."""

TASKS = "tasks"
"""File: a record for each process. See task_records.py."""

ENDED = "ended"
"""File: sums over ended processes. See ended_records.py. Absent where the kernel has no iterator
over maps (before 5.9), or refuses these programs."""

ON_EXIT = "on_exit"
ON_FREE = "on_free"
"""The programs that fill `ended`. Not readable."""

IO = "io"
"""File: what jobs read and write, by file system. See io_records.py."""

NETWORK = "network"
"""File: what jobs send and receive. See io_records.py."""

IO_PROGRAMS = "io-programs"
"""Directory of the programs that fill `io` and `network`. Not readable."""

IO_VERSION = "io-version"
"""Symbolic link, created last: its target is the version of the programs for I/O."""

VERSION = "version"
"""Symbolic link, created last: its target is the version of the pinned programs."""

ALL = (VERSION, TASKS, ENDED, ON_EXIT, ON_FREE)

GROUP = "ccagent"
"""Group that may read by default, if it exists; else root alone."""

MODE = 0o440


def paths(directory: str) -> list[str]:
    """Return the paths of all files that can be pinned, the version first."""
    return [os.path.join(directory, name) for name in ALL]


def version(directory: str) -> str:
    """Return the version of the pinned programs, empty if some or all are missing."""
    try:
        return os.readlink(os.path.join(directory, VERSION))
    except OSError:
        return ""


def io_version(directory: str) -> str:
    """Return the version of the pinned programs for I/O, empty if some or all are missing."""
    try:
        return os.readlink(os.path.join(directory, IO_VERSION))
    except OSError:
        return ""
