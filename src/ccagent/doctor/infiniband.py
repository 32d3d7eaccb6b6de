"""Ports of InfiniBand, Omni-Path and RoCE, and whether they are up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.infiniband import parse_state
from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

SUBJECT = "InfiniBand"

_DEVICES = "sys/class/infiniband"
_ACTIVE = 4


def check_infiniband(site: Site) -> Iterator[Finding]:
    """Tell of the ports in /sys/class/infiniband."""
    yield judge_ports(dict(_ports(site.node)))


def judge_ports(ports: Mapping[str, int | None]) -> Finding:
    """Judge ports by their state; None for one that can't be read."""
    if not ports:
        return Finding(
            area="network",
            subject=SUBJECT,
            state="missing",
            found=f"no ports in /{_DEVICES}",
            fix="if there is a card: load its driver (mlx5_ib, hfi1, ...)",
        )
    unreadable = [name for name, state in ports.items() if state is None]
    active = [name for name, state in ports.items() if state == _ACTIVE]
    if unreadable:
        return Finding(
            area="network",
            subject=SUBJECT,
            state="problem",
            found=f"the state of {', '.join(unreadable)} can't be read",
            fix="see the kernel's log (dmesg) for its driver",
        )
    if not active:
        return Finding(
            area="network",
            subject=SUBJECT,
            state="problem",
            found=f"no port is active: {', '.join(ports)}",
            fix="see to the cable and the subnet manager (ibstat)",
        )
    return Finding(
        area="network",
        subject=SUBJECT,
        state="good",
        found=f"{len(active)} of {len(ports)} ports active: {', '.join(active)}",
    )


def _ports(node: Node) -> Iterator[tuple[str, int | None]]:
    try:
        devices = sorted(node.list(_DEVICES))
    except CcagentError:
        return
    for device in devices:
        try:
            ports = sorted(node.list(f"{_DEVICES}/{device}/ports"))
        except CcagentError:
            continue
        for port in ports:
            try:
                path = f"{_DEVICES}/{device}/ports/{port}/state"
                yield f"{device}/{port}", read_parsed(node, path, parse_state)
            except CcagentError:
                yield f"{device}/{port}", None
