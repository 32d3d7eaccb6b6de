"""Detection of container processes by their ancestors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# containerd and containerd-shim-* (Docker, Kubernetes), conmon (Podman, CRI-O), the parents that
# Apptainer and Singularity leave outside (`starter`) and their init inside (`appinit`, `sinit`).
_EXACT = frozenset({"conmon", "starter", "starter-suid", "appinit", "sinit", "lxc-start"})


def is_supervisor(command: str) -> bool:
    """Return whether the descendants of a process with this command run in a container."""
    return command.startswith("containerd") or command in _EXACT


def has_supervisor(
    command: str, ppid: int, look_up: Callable[[int], tuple[str, int] | None]
) -> bool:
    """Return whether an ancestor of a process supervises containers.

    look_up: returns command and parent of a pid. A snapshot can have gaps and cycles.
    """
    if is_supervisor(command):
        return False  # containerd's own shims are outside
    passed: set[int] = set()
    while ppid > 1 and ppid not in passed:
        passed.add(ppid)
        parent = look_up(ppid)
        if parent is None:
            return False
        if is_supervisor(parent[0]):
            return True
        ppid = parent[1]
    return False
