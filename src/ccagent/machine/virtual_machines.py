"""Virtual machines of QEMU on this node: found by pid files, scopes and command lines; their jobs.

Any user may start a process that calls itself a machine. So a name belongs to the process in a pid
file of libvirt, else to that in a scope of machine.slice (both are root's), else to the oldest.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import MACHINE_STATES, machine_scopes
from ccagent.machine.procfs.process_files import parse_stat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree import ElementTree as ET

    from ccagent.machine.node import Node

_CONTROLLERS = ("cpuacct", "memory", "cpuset")
_COMMANDS = (b"qemu", b"kvm")
_SCANNED_EVERY = 2.0
_LARGEST = 1024 * 1024
_LONGEST_NAME = 256
_MOST_SCANNED = 100_000
_MOST = 1000
_PLACE = ("domain", "bus", "slot", "function")

PciAddress = tuple[int, ...]
"""Domain, bus, slot and function."""


class VirtualMachine(NamedTuple):
    """A running machine. start: start of its process in ticks since boot."""

    name: str
    process_id: int
    start: int


def read_start(node: Node, process: int) -> int | None:
    """Return the start of a process in ticks since boot; None without the process.

    Pid and start together identify a process: pids are reused.
    """
    try:
        return parse_stat(node.read_single(f"proc/{process}/stat")).starttime
    except CcagentError:
        return None


def parse_guest_name(cmdline: bytes) -> str:
    """Return the machine's name in /proc/PID/cmdline of QEMU; empty without one.

    The option is `-name guest=NAME,debug-threads=on` or `-name NAME`; a comma in a name is doubled.
    Source: qemu-options.hx of QEMU, `-name`.
    """
    words = cmdline.split(b"\0")
    for option, value in itertools.pairwise(words):
        if option in {b"-name", b"--name"}:
            parts = value.replace(b",,", b"\0").split(b",")
            found = next((part[6:] for part in parts if part.startswith(b"guest=")), b"")
            if not found and b"=" not in parts[0]:
                found = parts[0]
            name = found.replace(b"\0", b",").decode("utf-8", "replace")
            return name if name.isprintable() and len(name) <= _LONGEST_NAME else ""
    return ""


def read_guest_name(node: Node, process: int) -> str:
    """Return the name of the machine that a process runs; empty for another process."""
    try:
        return parse_guest_name(node.read(f"proc/{process}/cmdline", limit=_LARGEST))
    except CcagentError:
        return ""


def read_pid_file(node: Node, directory: str, name: str) -> int:
    """Return the process of a machine by libvirt's pid file; 0 without it.

    The pid of a machine that ended badly may be another's now.
    """
    try:
        text = node.read_start(f"{directory}/{name}.pid", 20).strip()
    except CcagentError:
        return 0
    is_there = text.isdigit() and read_guest_name(node, int(text)) == name
    return int(text) if is_there else 0


def parse_pci_device(xml: str) -> tuple[PciAddress, str]:
    """Return the address of a PCI device in libvirt's list, and its vendor and device: 15b3:1004.

    Source: libvirt's reference of node devices.
    """
    device = _parse_xml(xml)
    place = tuple(int(device.findtext(f"capability/{tag}") or "0", 0) for tag in _PLACE)
    ids = (device.find(f"capability/{tag}") for tag in ("vendor", "product"))
    return place, ":".join(f"{int(e.get('id', '0'), 0) if e is not None else 0:04x}" for e in ids)


def parse_host_devices(xml: str) -> list[PciAddress]:
    """Return the addresses on the host of the PCI devices that a definition has."""
    sources = _parse_xml(xml).iterfind("devices/hostdev[@type='pci']/source/address")
    return [tuple(int(each.get(tag, "0"), 0) for tag in _PLACE) for each in sources]


def _parse_xml(xml: str) -> ET.Element:
    from xml.etree import ElementTree as ET  # seldom used, and large

    return ET.fromstring(xml)  # noqa: S314 - of libvirt


class MachineFinder:
    """Finds the machines of a node. All processes are looked through every two seconds.

    directory: of libvirt's pid files. has_others: also find machines without such a file.
    """

    def __init__(self, directory: str = MACHINE_STATES, *, has_others: bool = True) -> None:
        self._directory = directory.strip("/")
        self._has_others = has_others
        self._known: dict[str, VirtualMachine] = {}
        self._scan_at = 0.0

    def look(self) -> None:
        """Look through all processes with the next `find`: a machine was started."""
        self._scan_at = 0.0

    def find(self, node: Node) -> list[VirtualMachine]:
        """Return the running machines, at most 1000, by name."""
        now = node.clock.monotonic()
        found: dict[str, VirtualMachine] = {}
        processes = [*self._trusted(node)]
        if not self._has_others:
            others: list[int] = []
        elif now >= self._scan_at:
            self._scan_at = now + _SCANNED_EVERY
            others = [*_scan(node)]
        else:
            others = [machine.process_id for machine in self._known.values()]
        starts = {process: read_start(node, process) for process in {*processes, *others}}
        others.sort(key=lambda process: (starts[process] or 0, process))
        for process in [*processes, *others]:
            start = starts[process]
            if start is not None and (name := self._name(node, process, start)):
                found.setdefault(name, VirtualMachine(name, process, start))
        self._known = dict(sorted(found.items())[:_MOST])
        return [*self._known.values()]

    def _name(self, node: Node, process: int, start: int) -> str:
        """Return the name of the machine of a process. A command line is read once."""
        for machine in self._known.values():
            if (machine.process_id, machine.start) == (process, start):
                return machine.name
        return read_guest_name(node, process)

    def _trusted(self, node: Node) -> Iterator[int]:
        """Yield the processes in pid files and in scopes."""
        files = [name for name in node.list_names(self._directory) if name.endswith(".pid")]
        for name in files[:_MOST]:
            if process := read_pid_file(node, self._directory, name.removesuffix(".pid")):
                yield process
        if not self._has_others:
            return
        seen: set[str] = set()
        for name, _, directory in machine_scopes(node, _CONTROLLERS):
            process = 0 if name in seen else next(iter(list_pids(node, directory)), 0)
            if process:
                seen.add(name)
                yield process


def _scan(node: Node) -> Iterator[int]:
    """Yield the processes whose command is QEMU's."""
    for name in node.list("proc")[:_MOST_SCANNED]:
        if name.isdigit():
            try:
                command = node.read_single(f"proc/{name}/comm")
            except CcagentError:
                continue
            if command.startswith(_COMMANDS):
                yield int(name)
