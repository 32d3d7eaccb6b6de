"""Power at the node's input by DCMI, from ipmi-dcmi or ipmitool in a separate process.

A call takes 10 ms to seconds, and some controllers sometimes fail. Nodes of one chassis may share
the reading.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ccagent.agents.energy.domains import NODE_METER
from ccagent.agents.energy.sources.base import EnergySource
from ccagent.agents.energy.sources.integral import PowerIntegral
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.background import GRACE, PATIENCE, RepeatedCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import EnergyDomain, MeasuredEnergy
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

COMMANDS = (
    ("ipmi-dcmi", "--get-system-power-statistics"),
    ("ipmitool", "dcmi", "power", "reading"),
)
_POWER = re.compile(
    rb"^\s*(?:Current Power|Instantaneous power reading)\s*:\s*([0-9]{1,6})\s*[Ww]atts\s*$",
    re.MULTILINE,
)
_STATE = re.compile(
    rb"^\s*(?:Power Measurement|Power reading state is)\s*:\s*(.{1,40}?)\s*$", re.MULTILINE
)
_ACTIVE = frozenset({b"active", b"activated"})
_OUTPUT_LIMIT = 64 * 1024
_AGE = 3
"""Intervals for which the last power is valid while calls fail."""


class DcmiReading(NamedTuple):
    """Power in uW, and the time at which the program ended."""

    microwatts: int
    moment: float


def parse_dcmi(content: bytes) -> int:
    """Parse the output of either program. Return uW. Raise UnparsableError."""
    power, state = _POWER.search(content), _STATE.search(content)
    if power is None:
        raise UnparsableError(f"no power in the output: {content.strip()[:80]!r}")
    if state is not None and state[1].lower() not in _ACTIVE:
        raise UnparsableError(f"the measurement of power is {state[1].decode('ascii', 'replace')}")
    watts = int(power[1])
    if watts <= 0:
        raise UnparsableError("the power is 0 W")  # some controllers return this during their start
    return watts * 1_000_000


class DcmiSource(EnergySource):
    """Queries the BMC at its own interval in the background; power is constant in between."""

    name: ClassVar[str] = "dcmi"
    is_slow: ClassVar[bool] = True

    def __init__(self, command: tuple[str, ...], every: float, time_limit: float) -> None:
        super().__init__()
        self._command = command
        self._every = every
        self._time_limit = time_limit
        self._call: RepeatedCall[DcmiReading] = RepeatedCall("", every)
        self._integral = PowerIntegral(self.name, _AGE * every + time_limit)
        self._answered = -1.0

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the check of the meters of the node."""
        from ccagent.agents.energy.checks import require_dcmi

        programs = self._command[:1] or tuple(command[0] for command in COMMANDS)
        yield require_dcmi(node, programs, is_configured=bool(self._command))

    def prepare_reading(self, node: Node) -> None:
        """Start the program if it is due."""
        self.errors = []
        self._call.begin(
            node.clock.time(), lambda: self._ask(node), self.errors, is_due=self.is_patient
        )

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Return the energy up to now, by the last power."""
        wait = self._time_limit + GRACE if self.is_patient else PATIENCE
        answer = self._call.result(wait, self.errors)
        if answer is not None:
            self._answered = answer.moment
            self._integral.add(answer.microwatts, answer.moment)
        now = node.clock.uptime()
        if self._answered >= 0 and now - self._answered <= self._integral.longest_gap:
            self._integral.add(self._integral.microwatts, now)
        taken = self._integral.take()
        return {} if taken is None else {NODE_METER: taken}

    def close(self) -> None:
        """Wait for a running program; it has a time limit."""
        self._call.is_over()

    def _ask(self, node: Node) -> DcmiReading:
        """Run the program, in a thread. Raise CcagentError."""
        for command in (self._command,) if self._command else COMMANDS:
            try:
                output = node.run(command, time_limit=self._time_limit, output_limit=_OUTPUT_LIMIT)
            except NotHereError:
                continue
            try:
                return DcmiReading(parse_dcmi(output), node.clock.uptime())
            except UnparsableError as error:
                raise ProgramError(f"{command[0]}: {error}") from error
        names = self._command[0] if self._command else "ipmi-dcmi or ipmitool"
        raise ProgramError(f"{names} is needed, and not installed: see agents.energy.dcmi-command")
