"""Tables of the events of processor models, in the directory events.

The kernel has events for cycles and instructions of every processor. Events of floating-point
operations and memory traffic differ by model. Each table names its sources.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from ccagent.errors import ConfigurationError
from ccagent.machine.procfs.cpuinfo import parse_cpuinfo

_DIRECTORY = os.path.join(os.path.dirname(__file__), "events")
_ENDING = ".toml"


class CpuIdentity(NamedTuple):
    """Model of a processor.

    vendor: vendor_id on x86_64, implementer's number on aarch64. family: on aarch64 the version of
    the architecture. model: on aarch64 the part number.
    """

    vendor: str
    family: int
    model: int

    def __str__(self) -> str:
        return f"{self.vendor} family {self.family:#x} model {self.model:#x}"


class CpuModels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processors of a table. models: inclusive ranges."""

    vendor: str
    family: int
    models: list[tuple[int, int]]

    def has(self, cpu: CpuIdentity) -> bool:
        """Return whether a processor is in this set."""
        return (self.vendor, self.family) == cpu[:2] and any(
            first <= cpu.model <= last for first, last in self.models
        )


class CoreEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Core event, and the floating-point operations per count.

    event: perf's notation. flops_any: operations of an event that does not distinguish precision.
    """

    name: str
    event: str
    flops_sp: float = 0.0
    flops_dp: float = 0.0
    flops_any: float = 0.0


class MemoryEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory event, and the bytes per count.

    channels: number of channels. step: distance between their event codes.
    """

    name: str
    event: str
    bytes: float
    channels: int = 1
    step: int = 0

    def events(self) -> list[str]:
        """Return the event of each channel in perf's notation, starting with `event=`."""
        name, _, rest = self.event.partition(",")
        if self.channels == 1:
            return [self.event]
        first = int(name.removeprefix("event="), 16)
        return [f"event={first + i * self.step:#x},{rest}" for i in range(self.channels)]


class MemoryTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events that together count memory traffic.

    pmus: name pattern of the PMUs. group: largest number of events in a group.
    """

    pmus: str
    group: int
    events: list[MemoryEvent]


class EventTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Events of some models of processors.

    sources: documents of the events. cpus: processor models. pmus: name pattern of the core PMU.
    reference: event that counts at the rate of the system's time counter while a core is awake;
    empty if none exists. memory: alternatives; the first available one is used.
    """

    name: str
    sources: list[str]
    cpus: list[CpuModels]
    pmus: str
    reference: str = ""
    events: list[CoreEvent] = []
    memory: list[MemoryTraffic] = []


def identify(cpuinfo: bytes) -> CpuIdentity | None:
    """Return the model of the first processor in /proc/cpuinfo (or its start); None if unknown."""
    for block in parse_cpuinfo(cpuinfo):
        if "CPU implementer" in block:
            names = ("CPU implementer", "CPU architecture", "CPU part")
        else:
            names = ("vendor_id", "cpu family", "model")
        vendor, family, model = (block.get(name, "") for name in names)
        try:
            return CpuIdentity(vendor, int(family, 0), int(model, 0))
        except ValueError:
            continue
    return None


def table_names() -> list[str]:
    """Return the names of all tables, sorted."""
    return sorted(
        name.removesuffix(_ENDING) for name in os.listdir(_DIRECTORY) if name.endswith(_ENDING)
    )


def read_table(name: str) -> EventTable:
    """Read a table of the package. Raise ConfigurationError if it is invalid."""
    with open(os.path.join(_DIRECTORY, name + _ENDING), "rb") as file:
        content = file.read()
    try:
        return msgspec.toml.decode(content, type=EventTable)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{name}{_ENDING}: {error}") from error


def choose(cpu: CpuIdentity | None) -> EventTable | None:
    """Return the table of a processor; None without one."""
    if cpu is None:
        return None
    tables = (read_table(name) for name in table_names())
    return next((table for table in tables if any(kind.has(cpu) for kind in table.cpus)), None)
