"""Check for active ports of InfiniBand, Omni-Path and RoCE."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.machine.checks import Check, CheckResult, list_names
from ccagent.machine.infiniband_ports import ACTIVE, DEVICES, parse_state
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node


def require_ports(node: Node, impact: str = "") -> Check:
    """Return the check of the ports."""
    return Check("network", "InfiniBand", partial(find_ports, node), impact)


def find_ports(node: Node) -> CheckResult:
    """Return the result with the active ports."""
    ports = dict(_read_states(node))
    unreadable = [name for name, state in ports.items() if state is None]
    active = [name for name, state in ports.items() if state == ACTIVE]
    if not ports:
        fix = "if the node has a card, load its driver (mlx5_ib, hfi1, ...)"
        return CheckResult("missing", f"no ports in /{DEVICES}", fix)
    if unreadable:
        fix = "see messages of the driver in the kernel log (dmesg)"
        return CheckResult("problem", f"the state of {', '.join(unreadable)} can't be read", fix)
    if not active:
        fix = "check the cable and the subnet manager (ibstat)"
        return CheckResult("problem", f"no port is active: {', '.join(ports)}", fix)
    found = f"{len(active)} of {len(ports)} ports active: {', '.join(active)}"
    return CheckResult("good", found)


def _read_states(node: Node) -> Iterator[tuple[str, int | None]]:
    """Yield each port with its state; None for an unreadable state."""
    for device in list_names(node, DEVICES):
        for port in list_names(node, f"{DEVICES}/{device}/ports"):
            try:
                path = f"{DEVICES}/{device}/ports/{port}/state"
                yield f"{device}/{port}", read_parsed(node, path, parse_state)
            except CcagentError:
                yield f"{device}/{port}", None
