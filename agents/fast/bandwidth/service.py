"""Service for requested measurements: refusals, and the running measurement."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ccagent.agents.fast.bandwidth.core_owners import find_owners
from ccagent.agents.fast.bandwidth.measuring import ENOUGH_SHARE, measure
from ccagent.agents.fast.bandwidth.reference import read_reference
from ccagent.agents.fast.bandwidth.topology import read_cpus
from ccagent.agents.fast.messages.structures import BandwidthResponse
from ccagent.errors import CcagentError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.agents.fast.session.kept_state import MonitoredMachine
    from ccagent.machine.node import Node

_SHOWN = 4


def check_cores(node: Node, cores: Sequence[int], machines: Iterable[MonitoredMachine]) -> str:
    """Return why these cores must not be measured, or "". Raise CcagentError without CPU data."""
    cpus = read_cpus(node)
    missing = sorted(set(cores) - set(cpus))
    if missing:
        return f"no core {_listed(missing)} on this node"
    owners = find_owners(node, machines, cpus)
    owned = [core for core in cores if core in owners]
    if owned:
        return f"core {_listed(owned)} is owned by {owners[owned[0]]}"
    return ""


def measure_now(
    node: Node, cores: Sequence[int], directory: str, machines: Iterable[MonitoredMachine]
) -> BandwidthResponse:
    """Measure the available bandwidth of cores if allowed; else return the reason in `details`."""
    wanted = tuple(cores)
    try:
        reason = check_cores(node, wanted, machines)
        if reason:
            return BandwidthResponse(cores=wanted, details=reason)
        reference = read_reference(node, directory)
        measured = measure(node, wanted)
    except CcagentError as error:
        return BandwidthResponse(cores=wanted, details=str(error))
    is_valid = measured.share >= ENOUGH_SHARE
    details = ""
    if not is_valid:
        details = (
            f"invalid: the probe got {100 * measured.share:.0f} % of the time of its cores,"
            f" and needs {100 * ENOUGH_SHARE:.0f} %"
        )
    return BandwidthResponse(
        cores=wanted,
        value=reference.value_of(measured.bandwidth, len(wanted)),
        is_valid=is_valid,
        cpu_share=round(measured.share, 3),
        bandwidth=round(measured.bandwidth),
        details=details,
    )


class BandwidthService:
    """Measures for a scheduler, one request at a time and within the allowed rate."""

    def __init__(self, node: Node, directory: str, shortest_interval: float) -> None:
        self._node = node
        self._directory = directory
        self._interval = shortest_interval
        self._lock = threading.Lock()
        self._is_busy = False
        self._next_at = 0.0

    def start(
        self,
        cores: Sequence[int],
        machines: Sequence[MonitoredMachine],
        when_done: Callable[[BandwidthResponse], None],
    ) -> str:
        """Start a measurement; return why it is refused, or "". when_done: gets the response."""
        now = self._node.clock.monotonic()
        with self._lock:
            if self._is_busy:
                return "another measurement is running"
            if now < self._next_at:
                return f"the last measurement was less than {self._interval:g} s ago; see max-rate"
            self._is_busy = True
            self._next_at = now + self._interval

        def work() -> None:
            try:
                response = measure_now(self._node, cores, self._directory, machines)
            except Exception as error:  # noqa: BLE001 - a request must be answered after any error
                logger.exception("agent fast: a measurement failed")
                response = BandwidthResponse(cores=tuple(cores), details=f"failed: {error}")
            with self._lock:
                self._is_busy = False
            when_done(response)

        try:
            threading.Thread(target=work, name="fast measurement", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._is_busy = False
            return f"can't start a thread: {error}"
        return ""


def _listed(cores: Sequence[int]) -> str:
    more = ", ..." if len(cores) > _SHOWN else ""
    return ", ".join(map(str, cores[:_SHOWN])) + more
