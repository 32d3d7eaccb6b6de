"""Collector of systemd's units, as node_exporter exposes them.

The source is systemctl. Its list of units costs one request, the properties of a unit one more, of
a hundred times the cost of a line of the list: they are asked only for sockets and timers, and once
for the type of a service. As JSON systemctl lists units only from systemd 246 on.
"""

from __future__ import annotations

import calendar
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotHereError, UnparsableError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node

_VERSION = gauge("node_systemd_version", "Detected systemd version", "version")
_RUNNING = gauge(
    "node_systemd_system_running",
    "Whether the system is operational (see 'systemctl is-system-running')",
)
_UNITS = gauge("node_systemd_units", "Summary of systemd unit states", "state")
_STATE = gauge("node_systemd_unit_state", "Systemd unit", "name", "state", "type")
_TRIGGER = gauge(
    "node_systemd_timer_last_trigger_seconds", "Seconds since epoch of last trigger.", "name"
)
_SOCKET = {
    "NAccepted": counter("node_systemd_socket_accepted_connections_total",
        "Total number of accepted socket connections", "name"),
    "NConnections": gauge("node_systemd_socket_current_connections",
        "Current number of socket connections", "name"),
    "NRefused": gauge("node_systemd_socket_refused_connections_total",
        "Total number of refused socket connections", "name"),
}  # fmt: skip
"""By property of a socket. node_exporter, too, has refused connections as a gauge."""
_LAST_TRIGGER = "LastTriggerUSec"
_STATES = ("active", "activating", "deactivating", "inactive", "failed")
_TYPED = (".service", ".mount")
_RELEASE = re.compile(r"[0-9]{3,}(?:\.[0-9]+)?", re.ASCII)
_ENVIRONMENT = {"TZ": "UTC"}
_TIME = "%a %Y-%m-%d %H:%M:%S UTC"
_MOST_AT_ONCE = 32
_OUTPUT_LIMIT = 16 * 1024 * 1024


class Unit(NamedTuple):
    """A unit: its name, whether its file was loaded, and its state."""

    name: str
    is_loaded: bool
    state: str


class SystemdCollector(Collector):
    """State of systemd and of its units in memory."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._types: dict[str, str] = {}
        self._is_excluded = re.compile(settings.node_exporter.systemd_exclude).fullmatch

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Ask systemd by systemctl. Raise NotHereError where it is not the init system.

        Raise ProgramError if systemd does not answer in time.
        """
        if not node.exists("run/systemd/system"):
            raise NotHereError("/run/systemd/system: this machine was not booted with systemd")
        (manager,) = self._show(node, "Version,SystemState", "") or ({},)
        units = parse_list(
            self._run(node, "list-units", "--all", "--plain", "--full", "--no-legend")
        )
        shown = [unit for unit in units if unit.is_loaded and not self._is_excluded(unit.name)]
        self._find_types(node, [unit.name for unit in shown])
        properties = ",".join((_LAST_TRIGGER, *_SOCKET))
        detailed = [unit.name for unit in shown if unit.name.endswith((".socket", ".timer"))]
        details = self._show(node, properties, *detailed)
        return name_units(manager, units, shown, self._types, details)

    def _run(self, node: Node, *arguments: str) -> str:
        command = [self.settings.systemctl, "--no-pager", *arguments]
        output = node.stream(
            command, time_limit=self.settings.time_limit.seconds, output_limit=_OUTPUT_LIMIT,
            environment=_ENVIRONMENT,
        )  # fmt: skip
        return b"".join(output).decode("utf-8", "replace")

    def _show(self, node: Node, properties: str, *units: str) -> list[dict[str, str]]:
        """Return the properties of units; with an empty name those of systemd itself."""
        if not units:
            return []
        names = [name for name in units if name]
        text = self._run(node, "show", f"--property=Id,{properties}", "--", *names)
        return parse_properties(text)

    def _find_types(self, node: Node, names: list[str]) -> None:
        """Learn the types of new services. Forget those of units that are gone."""
        typed = [name for name in names if name.endswith(_TYPED)]
        self._types = {name: self._types[name] for name in typed if name in self._types}
        new = [name for name in typed if name not in self._types]
        for start in range(0, len(new), _MOST_AT_ONCE):
            for unit in self._show(node, "Type", *new[start : start + _MOST_AT_ONCE]):
                self._types[unit.get("Id", "")] = unit.get("Type", "")


def parse_list(text: str) -> list[Unit]:
    """Parse the lines of `systemctl list-units`: UNIT LOAD ACTIVE SUB DESCRIPTION."""
    found: list[Unit] = []
    for line in text.split("\n"):
        words = line.split(maxsplit=3)
        if len(words) == 4:
            found.append(Unit(words[0], words[1] == "loaded", words[2]))
    return found


def parse_properties(text: str) -> list[dict[str, str]]:
    """Parse the output of `systemctl show`: lines `NAME=VALUE`, units separated by empty lines."""
    units: list[dict[str, str]] = []
    for block in text.split("\n\n"):
        pairs = (line.partition("=") for line in block.split("\n"))
        unit = {name: value for name, equals, value in pairs if equals}
        if unit:
            units.append(unit)
    return units


def parse_time(text: str) -> int:
    """Parse a time of systemctl in UTC. Return seconds since 1970; 0 for an unset time.

    Raise UnparsableError for any other text.
    """
    if text in {"", "n/a"}:
        return 0
    try:
        return calendar.timegm(time.strptime(text, _TIME))
    except ValueError as error:
        raise UnparsableError(f"systemctl: not a time: {text[:60]!r}") from error


def name_units(
    manager: Mapping[str, str],
    units: list[Unit],
    shown: list[Unit],
    types: Mapping[str, str],
    details: list[dict[str, str]],
) -> Iterator[FamilyRows]:
    """Yield the families. shown: units with series. details: properties of sockets and timers.

    Raise UnparsableError without a version, or for an invalid time.
    """
    version = manager.get("Version", "")
    release = _RELEASE.search(version)
    if release is None:
        raise UnparsableError(f"systemctl: no version of systemd in {version[:60]!r}")
    yield _VERSION, [((version,), float(release[0]))]
    if "SystemState" in manager:
        yield _RUNNING, [((), int(manager["SystemState"] == "running"))]
    counts: dict[str, int] = dict.fromkeys(_STATES, 0)
    for unit in units:
        counts[unit.state] = counts.get(unit.state, 0) + 1
    yield _UNITS, [((state,), count) for state, count in counts.items()]
    yield (
        _STATE,
        [
            ((unit.name, state, types.get(unit.name, "")), int(unit.state == state))
            for unit in shown
            for state in _STATES
        ],
    )
    triggers: list[tuple[Labels, float]] = [
        ((each["Id"],), parse_time(each[_LAST_TRIGGER]))
        for each in details
        if "Id" in each and _LAST_TRIGGER in each
    ]
    yield _TRIGGER, triggers
    for field, family in _SOCKET.items():
        yield (
            family,
            [
                ((each["Id"],), int(each[field]))
                for each in details
                if "Id" in each and each.get(field, "").isdecimal()
            ],
        )
