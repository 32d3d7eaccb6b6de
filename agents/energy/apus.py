"""APUs: processors with a GPU on one socket, whose power is measured for both together.

AMD SMI names the power of an MI300A that of its socket. RAPL and amd_energy measure the same
package, so only one of them counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.energy.accounts import EnergyDomain
from ccagent.agents.energy.sources.base import ALL_SOCKETS, Measured
from ccagent.agents.energy.splitting import DomainClaim, DomainUse
from ccagent.errors import CcagentError
from ccagent.machine.cpus import read_socket
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list, parse_topology_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node

_DEVICES = (b"0x74a0",)
"""PCI device ids of MI300A. Source: pci.ids."""

_SCALE = 1_000_000
_LEAST_GPU, _GPU, _MOST_GPU = 1.0, 4.0, 16.0
"""Assumed active power of the fully used GPU, in that of all cores, with bounds."""


class ApuSockets:
    """Finds the sockets of APUs by files of PCI devices and NUMA nodes, once per card."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def find(self, node: Node, reading: GpuReading) -> dict[int, int]:
        """Return the index of the first card of each APU by socket."""
        found: dict[int, int] = {}
        for card in sorted(reading.cards, key=lambda card: -card.index):
            address = reading.addresses.get(card.index, "")
            if address not in self._known:
                self._known[address] = _find_socket(node, address)
            socket = self._known[address]
            if socket is not None:
                found[socket] = card.index
        return found


def _find_socket(node: Node, address: str) -> int | None:
    """Return the socket of an APU; None for another card, or if it is unknown."""
    domain, _, rest = address.lower().partition(":")
    device = f"sys/bus/pci/devices/{domain[-4:]}:{rest}"
    try:
        if node.read(f"{device}/device").strip() not in _DEVICES:
            return None
        number = max(0, read_parsed(node, f"{device}/numa_node", parse_topology_id))
        path = f"sys/devices/system/node/node{number}/cpulist"
        return read_socket(node, read_parsed(node, path, parse_cpu_list)[0])
    except (CcagentError, IndexError):
        return None


def join_apus(measured: Measured, apus: Mapping[int, int]) -> Measured:
    """Return the energies with one for each APU: that of its card, as energy of its package.

    apus: card by socket. A package remains if its card has no energy.
    """
    joined = dict(measured)
    for socket, card in apus.items():
        energy = joined.pop(EnergyDomain("card", card), None)
        package = joined.get(EnergyDomain("package", socket))
        if energy is not None and (package is None or package.flaw or not energy.flaw):
            joined[EnergyDomain("package", socket)] = energy
            joined.pop(EnergyDomain("package", ALL_SOCKETS), None)
    return joined


def read_utilisation(reading: GpuReading, card: int, meters: Mapping[int, int]) -> float | None:
    """Return the mean utilisation of an APU's partitions, 0 to 1; None if unknown.

    meters: card by index of a further partition.
    """
    parts = [one for one in reading.cards if meters.get(one.index, one.index) == card]
    if any(one.index in reading.without_utilization for one in parts):
        return None
    return sum(one.ce_util for one in parts) / 100 / max(1, len(parts))


def use_of_apu(cores: DomainUse, card: DomainUse, utilisation: float | None) -> DomainUse:
    """Return the use of an APU by its cores and its GPU.

    cores, card: use of each. utilisation: of the GPU, 0 to 1. The active power of the GPU and the
    cores is not measured apart: the fully used GPU takes `_GPU` times that of all cores. The bounds
    span `_LEAST_GPU` to `_MOST_GPU`. Idle energy is halved between cores and GPU.
    """
    busy = cores.busy / max(1, cores.held)
    shares = [0.0, 0.5, 1.0]
    if not card.busy or utilisation == 0:
        shares = [0.0]
    elif utilisation is not None:
        shares = [gpu * utilisation / (gpu * utilisation + busy)
                  for gpu in (_LEAST_GPU, _GPU, _MOST_GPU)]  # fmt: skip
    claims: dict[int, DomainClaim] = {}
    nothing = DomainClaim(0, 0, 0, 0)
    for job in {*cores.claims, *card.claims}:
        first, second = cores.claims.get(job, nothing), card.claims.get(job, nothing)
        own, least, most = (
            [
                share * other / max(1, card.busy) + (1 - share) * one / max(1, cores.busy)
                for share in shares
            ]
            for one, other in (
                (first.busy, second.busy), (first.least, second.least), (first.most, second.most),
            )
        )  # fmt: skip
        held = first.held / max(1, cores.held) + second.held / max(1, card.held)
        claims[job] = DomainClaim(
            round(_SCALE * own[len(own) // 2]),
            round(_SCALE * held / 2),
            int(_SCALE * min(least)),
            min(_SCALE, round(_SCALE * max(most))),
        )
    is_busy = cores.busy > 0 or shares[-1] > 0
    return DomainUse(claims, _SCALE if is_busy else 0, _SCALE)
