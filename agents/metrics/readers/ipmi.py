"""Reader of sensors of the management controller, by ipmitool or ipmi-sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.agents.metrics.readers.ipmi_sensors import parse_ipmi_sensors
from ccagent.agents.metrics.readers.program_reader import (
    ProgramReader,
    ProgramReaderSettings,
)
from ccagent.errors import NotHereError, ProgramError, UnparsableError

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.program_reader import Programs
    from ccagent.machine.node import Node

_DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
_COMMANDS = (
    ("ipmitool", "-c", "sdr", "list", "full"),
    ("ipmi-sensors", "--comma-separated-output", "--quiet-cache", "--sdr-cache-recreate"),
)


class IpmiSettings(ProgramReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.ipmi]."""

    command: Annotated[
        tuple[str, ...],
        Meta(
            description="program and arguments that print sensors in the format of ipmitool or"
            " ipmi-sensors; empty: the installed one"
        ),
    ] = ()

    def __post_init__(self) -> None:
        self.check_command(self.command)


def _metric(unit: str, description: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=f"{description}, by sensor (stype sensor)",
        source="ipmitool -c sdr list full, or ipmi-sensors --comma-separated-output",
        aggregation="max",
        is_default=False,
    )


class IpmiReader(ProgramReader[IpmiSettings]):
    """Sensors of the BMC. The program takes seconds and runs only if a metric is wanted."""

    name = "ipmi"
    Settings = IpmiSettings
    metrics: ClassVar[dict[str, Metric]] = {
        "ipmi_temp": _metric("degC", "temperature"),
        "ipmi_fan": _metric("rpm", "fan speed"),
        "ipmi_voltage": _metric("V", "voltage"),
        "ipmi_current": _metric("A", "current"),
        "ipmi_power": _metric("W", "power"),
        "ipmi_share": _metric("%", "percentage, such as the duty cycle of a fan"),
    }

    def targets(self, node: Node) -> list[str]:
        """Return the device of the BMC; a configured command needs no device."""
        if self.settings.command:
            return []
        for device in _DEVICES:
            directory, _, name = device.rpartition("/")
            try:
                if name in node.list(directory):
                    return [device]
            except NotHereError:
                continue
        raise NotHereError(f"/{_DEVICES[0]}: no BMC; load ipmi_si and ipmi_devintf if there is one")

    def collect(
        self,
        programs: Programs,
        targets: list[str],  # noqa: ARG002 - only one target
    ) -> tuple[list[Gauge | Count], list[str]]:
        """Run the program and parse its output."""
        output = self._run(programs)
        try:
            sensors = parse_ipmi_sensors(output)
        except UnparsableError as error:
            raise ProgramError(f"{self._program()}: {error}") from error
        return [
            Gauge(f"ipmi_{kind}", value, Scope(stype="sensor", stype_id=name))
            for name, kind, value in sensors
        ], []

    def _run(self, programs: Programs) -> bytes:
        if self.settings.command:
            try:
                return programs.run(self.settings.command)
            except NotHereError as error:
                raise ProgramError(f"{error}; see agents.metrics.ipmi.command") from error
        for command in _COMMANDS:
            try:
                return programs.run(command)
            except NotHereError:
                continue
        raise ProgramError(
            "neither ipmitool nor ipmi-sensors is installed: install one of them,"
            " or set agents.metrics.ipmi.command"
        )

    def _program(self) -> str:
        return self.settings.command[0] if self.settings.command else "IPMI program"
