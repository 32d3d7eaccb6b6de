"""What the counters of each kind of processor count: the tables below events.

The kernel knows cycles and instructions of every processor; floating-point operations and memory
traffic have other events on each. A table names where its facts come from.
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
    """A kind of processor.

    vendor: as x86_64 names it, or the implementer's number on aarch64. family: on aarch64 the
    version of the architecture. model: on aarch64 the part.
    """

    vendor: str
    family: int
    model: int

    def __str__(self) -> str:
        return f"{self.vendor} family {self.family:#x} model {self.model:#x}"


class CpuModels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Processors that a table is for. models: ranges, both ends included."""

    vendor: str
    family: int
    models: list[tuple[int, int]]

    def has(self, cpu: CpuIdentity) -> bool:
        """Tell whether a processor is one of these."""
        return (self.vendor, self.family) == cpu[:2] and any(
            first <= cpu.model <= last for first, last in self.models
        )


class CoreEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event of a core, and how many floating-point operations one count of it stands for.

    event: in the words of perf. flops_any: where the precision can't be told.
    """

    name: str
    event: str
    flops_sp: float = 0.0
    flops_dp: float = 0.0
    flops_any: float = 0.0


class MemoryEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event of memory traffic, and the bytes that one count of it stands for.

    channels, step: it exists that many times, its event a step further each time.
    """

    name: str
    event: str
    bytes: float
    channels: int = 1
    step: int = 0

    def events(self) -> list[str]:
        """Give the event of each channel in the words of perf, `event=...` being its first."""
        name, _, rest = self.event.partition(",")
        if self.channels == 1:
            return [self.event]
        first = int(name.removeprefix("event="), 16)
        return [f"event={first + i * self.step:#x},{rest}" for i in range(self.channels)]


class MemoryTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to count memory traffic.

    pmus: a pattern of the names of the PMUs that count it together. group: how many of the events
    are counted at a time; the kernel takes turns.
    """

    pmus: str
    group: int
    events: list[MemoryEvent]


class EventTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the counters of some kinds of processors count.

    sources: where the facts can be read. cpus: what it is for. pmus: a pattern of the name of the
    PMU of its cores. reference: an event that counts at the rate of the system's counter of time
    while a core is awake, if there is one. memory: the first that the machine has is used.
    """

    name: str
    sources: list[str]
    cpus: list[CpuModels]
    pmus: str
    reference: str = ""
    events: list[CoreEvent] = []
    memory: list[MemoryTraffic] = []


def identify(cpuinfo: bytes) -> CpuIdentity | None:
    """Find the kind of the first processor in /proc/cpuinfo, or in its head; None if unknown."""
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
    """Give the names of all tables, sorted."""
    return sorted(
        name.removesuffix(_ENDING) for name in os.listdir(_DIRECTORY) if name.endswith(_ENDING)
    )


def read_table(name: str) -> EventTable:
    """Read a table of the package. Raises ConfigurationError for one that is wrong."""
    with open(os.path.join(_DIRECTORY, name + _ENDING), "rb") as file:
        content = file.read()
    try:
        return msgspec.toml.decode(content, type=EventTable)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{name}{_ENDING}: {error}") from None


def choose(cpu: CpuIdentity | None) -> EventTable | None:
    """Give the table for a kind of processor, None if there is none."""
    if cpu is None:
        return None
    tables = (read_table(name) for name in table_names())
    return next((table for table in tables if any(kind.has(cpu) for kind in table.cpus)), None)
