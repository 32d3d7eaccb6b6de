"""Where the programs are pinned, under which names, and who may read.

A directory of our own, because systemd mounts /sys/fs/bpf for root alone (mode=700): nobody else
could reach what is pinned there.
"""

from __future__ import annotations

import os

DIRECTORY = "/run/ccagent-kernel"
"""A bpffs is mounted here, unless the directory already lies in one."""

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO in include/linux/proc_ns.h: the namespace whose pids the programs tell."""

TASKS = "tasks"
"""File: a record for each process. See task_records.py."""

ENDED = "ended"
"""File: what ended processes used. See ended_records.py. Absent where the kernel has no iterator
over maps (before 5.9), or refuses these programs."""

ON_EXIT = "on_exit"
ON_FREE = "on_free"
"""The programs that fill `ended`. Not readable."""

VERSION = "version"
"""Symbolic link, made last: its target is the version of what is pinned."""

ALL = (VERSION, TASKS, ENDED, ON_EXIT, ON_FREE)

GROUP = "ccagent"
"""Who may read by default, if there is such a group; else root alone."""

MODE = 0o440


def paths(directory: str) -> list[str]:
    """Give the paths of all that can be pinned, the version first."""
    return [os.path.join(directory, name) for name in ALL]


def version(directory: str) -> str:
    """Give the version of what is pinned, empty if nothing is, or not all."""
    try:
        return os.readlink(os.path.join(directory, VERSION))
    except OSError:
        return ""
