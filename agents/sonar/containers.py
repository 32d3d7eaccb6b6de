"""Which processes supervise containers."""

from __future__ import annotations

# containerd and containerd-shim-* (Docker, Kubernetes), conmon (Podman, CRI-O), the parents that
# Apptainer and Singularity leave outside (`starter`) and their init inside (`appinit`, `sinit`).
_EXACT = frozenset({"conmon", "starter", "starter-suid", "appinit", "sinit", "lxc-start"})


def is_supervisor(command: str) -> bool:
    """Tell whether the descendants of a process with this command run in a container."""
    return command.startswith("containerd") or command in _EXACT
