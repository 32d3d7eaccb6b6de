"""Reference bandwidth of an idle node, by number of cores, for comparison with measurements."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.fast.bandwidth.measuring import ENOUGH_SHARE, measure
from ccagent.agents.fast.bandwidth.topology import compact_order, read_processor
from ccagent.agents.state_file import read_state
from ccagent.errors import CcagentError, NotHereError, ProgramError
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

_FILE = "mmbwmon.reference"
_LARGEST = 1024 * 1024
_EACH_UP_TO = 8
_ATTEMPTS = 3
LEAST_VALUE = 0.33
"""Minimum value of a response, by the specification."""


class BandwidthReference(msgspec.Struct, frozen=True, kw_only=True):
    """B/s by number of cores, and the processor of the measurement."""

    model: str
    cpus: tuple[int, ...]
    kernel: str
    by_count: dict[int, float]
    time: float

    def expected(self, count: int) -> float:
        """Return the B/s of this number of idle cores, interpolated between measured numbers."""
        if count in self.by_count:
            return self.by_count[count]
        counts = sorted(self.by_count)
        below = max((each for each in counts if each < count), default=counts[0])
        above = min((each for each in counts if each > count), default=counts[-1])
        if below == above:
            return self.by_count[below]
        part = (count - below) / (above - below)
        return self.by_count[below] + part * (self.by_count[above] - self.by_count[below])

    def value_of(self, bandwidth: float, count: int) -> float:
        """Return the reached share of the idle bandwidth, 0.33 to 1."""
        return round(min(1.0, max(LEAST_VALUE, bandwidth / self.expected(count))), 3)


def counts_to_measure(cpus: int) -> list[int]:
    """Return the numbers of cores to measure: each up to eight, then in steps of 50 %."""
    counts = [*range(1, min(cpus, _EACH_UP_TO) + 1)]
    while counts[-1] < cpus:
        counts.append(min(cpus, counts[-1] * 3 // 2))
    return counts


def measure_reference(node: Node, tell: Callable[[int, float, float], None]) -> BandwidthReference:
    """Measure the reference: the median of three attempts for each number of cores.

    tell: called with cores, B/s and share of each measurement. Raise CcagentError if it fails or
    the node is not idle.
    """
    processor = read_processor(node)
    order = compact_order(node, processor.cpus)
    found: dict[int, float] = {}
    for count in counts_to_measure(len(order)):
        attempts = [measure(node, order[:count]) for _ in range(_ATTEMPTS)]
        share = min(each.share for each in attempts)
        bandwidth = sorted(each.bandwidth for each in attempts)[_ATTEMPTS // 2]
        tell(count, bandwidth, share)
        if share < ENOUGH_SHARE:
            raise ProgramError(
                f"{count} cores: the probe got {100 * share:.0f} % of their time: the node is"
                " not idle; drain it and measure again"
            )
        found[count] = bandwidth
    return BandwidthReference(
        model=processor.model,
        cpus=processor.cpus,
        kernel=processor.kernel,
        by_count=found,
        time=node.clock.time(),
    )


def read_reference(node: Node, directory: str) -> BandwidthReference:
    """Return the reference of this node from the state directory.

    Raise NotHereError, with the fix, if it is missing or of another processor, CPUs or kernel.
    """
    found = None
    if directory:
        found = read_state(
            os.path.join(directory, _FILE), BandwidthReference, _LARGEST, "measure it again"
        )
    hint = "on the idle node, run: ccagent fast reference"
    if found is None or not found.by_count or min(found.by_count.values()) <= 0:
        raise NotHereError(f"no reference; {hint}")
    now = read_processor(node)
    for what, old, new in (
        ("processor", found.model, now.model),
        ("CPUs", found.cpus, now.cpus),
        ("kernel", found.kernel, now.kernel),
    ):
        if old != new:
            raise NotHereError(f"the reference is of another {what}; {hint}")
    return found


def write_reference(directory: str, reference: BandwidthReference) -> str:
    """Write a reference; return the file. Raise CcagentError if that fails."""
    path = os.path.join(directory, _FILE)
    try:
        replace_file(path, msgspec.msgpack.encode(reference))
    except OSError as error:
        raise CcagentError(f"{path}: {error.strerror}") from error
    return path
