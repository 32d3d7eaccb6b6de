"""Directory, names and permissions of the pinned programs.

The directory is not below /sys/fs/bpf: systemd mounts that with mode=700, and only root could open
files pinned there.
"""

from __future__ import annotations

import os

DIRECTORY = "/run/ccagent-kernel"
"""The default directory. A bpffs is mounted on it, unless it is inside a bpffs."""

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO in include/linux/proc_ns.h: the pid namespace of the pids in the records."""

TASKS = "tasks"
"""File: one record per process. See process_records.py."""

ENDED = "ended"
"""File: sums over ended processes. See process_records.py. Missing if the kernel has no iterator
over maps (before 5.9), or refuses these programs."""

ON_EXIT = "on_exit"
ON_FREE = "on_free"
ON_FORK = "on_fork"
"""Links of the programs that fill `ended`. Not readable."""

IO = "io"
"""File: I/O of jobs by file system. See io_records.py."""

NETWORK = "network"
"""File: network traffic of jobs. See io_records.py."""

IO_PROGRAMS = "io-programs"
"""Directory with the links of the programs that fill `io` and `network`. Not readable."""

IO_VERSION = "io-version"
"""Symbolic link, created last. Its target is the version of the programs for I/O."""

VERSION = "version"
"""Symbolic link, created last. Its target is the version of the pinned programs."""

ALL = (VERSION, TASKS, ENDED, ON_EXIT, ON_FREE, ON_FORK)

GROUP = "ccagent"
"""The default group of readers. If it does not exist, only root may read."""

MODE = 0o440


def paths(directory: str) -> list[str]:
    """Return the paths of all pinned files, the version first."""
    return [os.path.join(directory, name) for name in ALL]


def read_version(directory: str, link: str = VERSION) -> str:
    """Return the version of the pinned programs; "" if some or all are missing.

    link: IO_VERSION for the programs for I/O.
    """
    try:
        return os.readlink(os.path.join(directory, link))
    except OSError:
        return ""
