"""Online CPUs with their sockets, dies and cores, the model of the CPUs, and NUMA nodes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.interpreter import python
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_cpu_list, parse_cpuinfo, parse_topology_id
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node


CPUS = "sys/devices/system/cpu"
_CPUINFO = "proc/cpuinfo"
_HEAD = 4096

_ARM_CORES = {
    0x41: {
        0xD03: "Cortex-A53",
        0xD04: "Cortex-A35",
        0xD05: "Cortex-A55",
        0xD07: "Cortex-A57",
        0xD08: "Cortex-A72",
        0xD09: "Cortex-A73",
        0xD0A: "Cortex-A75",
        0xD0B: "Cortex-A76",
        0xD0C: "Neoverse N1",
        0xD0D: "Cortex-A77",
        0xD40: "Neoverse V1",
        0xD41: "Cortex-A78",
        0xD42: "Cortex-A78AE",
        0xD44: "Cortex-X1",
        0xD46: "Cortex-A510",
        0xD47: "Cortex-A710",
        0xD48: "Cortex-X2",
        0xD49: "Neoverse N2",
        0xD4D: "Cortex-A715",
        0xD4E: "Cortex-X3",
        0xD4F: "Neoverse V2",
        0xD80: "Cortex-A520",
        0xD81: "Cortex-A720",
        0xD82: "Cortex-X4",
        0xD83: "Neoverse V3AE",
        0xD84: "Neoverse V3",
        0xD85: "Cortex-X925",
        0xD87: "Cortex-A725",
        0xD8E: "Neoverse N3",
    },
    0x42: {0x516: "Vulcan"},
    0x43: {0x0A1: "ThunderX", 0x0AF: "ThunderX2"},
    0x46: {0x001: "A64FX", 0x003: "MONAKA"},
    0x48: {0xD01: "Kunpeng 920 (TSV110)", 0xD02: "HIP09", 0xD06: "HIP12"},
    0x4E: {0x003: "Denver", 0x004: "Carmel", 0x010: "Olympus"},
    0x50: {0x000: "X-Gene"},
    0x51: {0xC00: "Falkor", 0x001: "Oryon X1"},
    0x61: {
        0x022: "Apple M1 Icestorm",
        0x023: "Apple M1 Firestorm",
        0x024: "Apple M1 Pro Icestorm",
        0x025: "Apple M1 Pro Firestorm",
        0x028: "Apple M1 Max Icestorm",
        0x029: "Apple M1 Max Firestorm",
        0x032: "Apple M2 Blizzard",
        0x033: "Apple M2 Avalanche",
        0x034: "Apple M2 Pro Blizzard",
        0x035: "Apple M2 Pro Avalanche",
        0x038: "Apple M2 Max Blizzard",
        0x039: "Apple M2 Max Avalanche",
    },
    0x6D: {0xD49: "Azure Cobalt 100"},
    0xC0: {0xAC3: "Ampere-1", 0xAC4: "Ampere-1A"},
}
"""Cores by `CPU implementer` and `CPU part` (MIDR_EL1).

Source: ARM_CPU_IMP_* and *_CPU_PART_* in Linux arch/arm64/include/asm/cputype.h.
"""


class CpuLocation(NamedTuple):
    """Location of a hwthread. socket, die, core: the kernel's numbers; -1 if it has none."""

    number: int
    socket: int
    die: int
    core: int


def read_online(node: Node) -> list[int]:
    """Return the online hwthreads, ascending. Raise as read_parsed does."""
    return read_parsed(node, f"{CPUS}/online", parse_cpu_list)


def read_topology_id(node: Node, cpu: int, name: str) -> int:
    """Return `physical_package_id`, `die_id` or `core_id` of a hwthread; -1 if unknown.

    Raise as read_parsed does.
    """
    return read_parsed(node, f"{CPUS}/cpu{cpu}/topology/{name}", parse_topology_id)


def read_socket(node: Node, cpu: int) -> int:
    """Return the socket of a hwthread; 0 if the kernel has no socket numbers."""
    return max(0, read_topology_id(node, cpu, "physical_package_id"))


def read_location(node: Node, cpu: int) -> CpuLocation:
    """Return the location of a hwthread. Raise as read_parsed does."""
    socket = read_topology_id(node, cpu, "physical_package_id")
    core = read_topology_id(node, cpu, "core_id")
    try:
        die = read_topology_id(node, cpu, "die_id")
    except NotHereError:  # before Linux 5.3
        die = 0
    return CpuLocation(cpu, socket, die, core)


def read_siblings(node: Node, cpu: int) -> list[int]:
    """Return the hwthreads of the core of a hwthread. Raise as read_parsed does."""
    directory = f"{CPUS}/cpu{cpu}/topology"
    try:
        return read_parsed(node, f"{directory}/core_cpus_list", parse_cpu_list)
    except NotHereError:  # name before Linux 5.3
        return read_parsed(node, f"{directory}/thread_siblings_list", parse_cpu_list)


def read_first_sibling(node: Node, cpu: int) -> int:
    """Return the first hwthread of the core of a hwthread; the hwthread itself if unknown.

    It identifies the core. `core_id` does not: it repeats in the dies and clusters of a socket.
    """
    try:
        return min(read_siblings(node, cpu), default=cpu)
    except CcagentError:
        return cpu


class Cpus(NamedTuple):
    """Counts of online cpus. If sockets or cores differ: the maximum."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int


class Core(NamedTuple):
    """One core: the id of its socket (-1: unknown to the kernel), its online threads."""

    socket: int
    threads: int


class _Described(msgspec.Struct):
    brand_raw: str = ""


def count_cores(cores: Iterable[Core]) -> Cpus | None:
    """Sum up cores; None if there are none."""
    cores = list(cores)
    sockets = Counter(core.socket for core in cores)
    if not sockets:
        return None
    return Cpus(len(sockets), max(sockets.values()), max(core.threads for core in cores))


def count_processors(blocks: list[dict[str, str]]) -> Cpus | None:
    """Sum up the blocks of /proc/cpuinfo; None if they describe no processor.

    x86_64 has `physical id`, `siblings` (threads of the socket) and `cpu cores` (its cores).
    On aarch64, ppc64le and riscv64 each processor counts as a core of one socket.
    """
    processors = [block for block in blocks if "processor" in block]
    if not processors:
        return None
    sockets = {block["physical id"] for block in processors if "physical id" in block}
    cores = max(_number(block.get("cpu cores")) for block in processors)
    siblings = max(_number(block.get("siblings")) for block in processors)
    if not sockets or not cores or not siblings:
        return Cpus(1, len({block["processor"] for block in processors}), 1)
    # Rounded up: only some cores of hybrid processors have several threads.
    return Cpus(len(sockets), cores, -(-siblings // cores))


def model_name(blocks: list[dict[str, str]]) -> str:
    """Return the model from the blocks of /proc/cpuinfo; empty if they have none.

    x86_64: `model name`. loongarch64: `Model Name`. ppc64le: `cpu` up to the comma, else the
    machine's `model`. aarch64: `CPU implementer` and `CPU part`. riscv64: `uarch`, else `isa`. The
    names of different cores are joined with ` + `.
    """
    name = _first(blocks, "model name") or _first(blocks, "Model Name")
    if not name:
        name = _first(blocks, "cpu").partition(",")[0].strip()
    if not name:
        name = _different(_arm_core(block) for block in blocks)
    if not name:
        name = _different(block.get("uarch", "") for block in blocks)
    if not name:
        name = _first(blocks, "isa") or _first(blocks, "model")
    return name


def read_cpus(node: Node, errors: list[CcagentError]) -> Cpus | None:
    """Count online cpus from /sys, else from /proc/cpuinfo; None if neither has them."""
    try:
        counted = count_cores(_read_cores(node, errors))
        return counted or count_processors(parse_cpuinfo(node.read(_CPUINFO)))
    except CcagentError as error:
        errors.append(error)
    return None


def read_model(node: Node, errors: list[CcagentError]) -> str:
    """Return the model from /proc/cpuinfo, else (live machine) from py-cpuinfo; may be empty."""
    try:
        # The first cpus suffice on x86_64. Each one costs the kernel microseconds.
        head = node.read_start(_CPUINFO, _HEAD)
        name = _first(parse_cpuinfo(head[: head.rfind(b"\n") + 1]), "model name")
        name = name or model_name(parse_cpuinfo(node.read(_CPUINFO)))
    except CcagentError as error:
        errors.append(error)
        name = ""
    if not name and node.is_live:
        name = ask_py_cpuinfo(node)
    return name


def ask_py_cpuinfo(node: Node) -> str:
    """Return the model of the live machine from py-cpuinfo; empty if that fails.

    py-cpuinfo needs a second of CPU time: it starts tools such as lscpu and measures the clock. It
    has no time limit, so it runs in a process with a limit.
    """
    command = [*python("from cpuinfo.cpuinfo import main; main()"), "--json"]
    try:
        output = node.run(command, time_limit=10.0, output_limit=1 << 20)
        return msgspec.json.decode(output, type=_Described).brand_raw.strip()
    except (CcagentError, ValueError):
        return ""


def _read_cores(node: Node, errors: list[CcagentError]) -> list[Core]:
    """Read the topology of each online cpu that is not a sibling of an earlier one.

    A cpu that can't be read is omitted. The first such cpu adds an error to `errors`.
    """
    try:
        online = read_online(node)
    except CcagentError as error:
        errors.append(error)
        return []
    left = set(online)
    cores: list[Core] = []
    failures: list[CcagentError] = []
    for cpu in online:
        if cpu not in left:
            continue
        try:
            socket = read_topology_id(node, cpu, "physical_package_id")
            siblings = read_siblings(node, cpu)
        except CcagentError as error:
            failures.append(error)
            continue
        threads = left.intersection(siblings) | {cpu}
        left -= threads
        cores.append(Core(socket, len(threads)))
    errors.extend(failures[:1])
    return cores


def _number(text: str | None) -> int:
    """Return the number in a field; 0 if there is none."""
    return int(text) if text and len(text) <= 5 and text.isascii() and text.isdigit() else 0


def _first(blocks: list[dict[str, str]], name: str) -> str:
    return next((block[name] for block in blocks if block.get(name)), "")


def _different(names: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(name for name in names if name))


def _arm_core(block: dict[str, str]) -> str:
    """Return the core name of an aarch64 block, or its numbers if the table lacks them."""
    implementer, part = block.get("CPU implementer"), block.get("CPU part")
    if not implementer or not part:
        return ""
    try:
        known = _ARM_CORES.get(int(implementer, 16), {}).get(int(part, 16))
    except ValueError:
        known = None
    return known or f"implementer {implementer}, part {part}"


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


def read_identity(node: Node) -> CpuIdentity | None:
    """Read the model of the first processor; None if unknown. Raise as Node.read does."""
    return identify(node.read_start(_CPUINFO, _HEAD))


_NODES = "sys/devices/system/node"
_NODE = re.compile(r"node(\d{1,9})", re.ASCII)


class Numa(NamedTuple):
    """nodes: number of nodes, 0 if unknown. distances: square matrix; empty if unknown."""

    nodes: int
    distances: list[list[int]]


def parse_distances(content: bytes) -> list[int]:
    """Parse node*/distance: distances to all online nodes in node order; 10 is the node itself.

    Raise UnparsableError for other content.
    """
    fields = content.split()
    if not all(field.isdigit() and len(field) <= 20 for field in fields):
        raise UnparsableError(f"not a list of distances: {content[:80]!r}")
    distances = [int(field) for field in fields]
    if max(distances, default=0) > LARGEST_UINT:
        raise UnparsableError(f"a distance is out of range: {content[:80]!r}")
    return distances


def node_numbers(names: list[str]) -> list[int]:
    """Parse the names in /sys/devices/system/node. Return the numbers of nodes, ascending.

    The numbers may have gaps. Nodes without memory or without cpus are included.
    """
    return sorted({int(match[1]) for name in names if (match := _NODE.fullmatch(name))})


def read_numa(node: Node, errors: list[CcagentError]) -> Numa:
    """Read /sys/devices/system/node. Unreadable files add an error to `errors`."""
    try:
        numbers = node_numbers(node.list(_NODES))
    except CcagentError as error:
        errors.append(error)
        return Numa(0, [])
    paths = [f"{_NODES}/node{number}/distance" for number in numbers]
    try:
        distances = [read_parsed(node, path, parse_distances) for path in paths]
    except CcagentError as error:
        errors.append(error)
        return Numa(len(numbers), [])
    if any(len(row) != len(numbers) for row in distances):
        lengths = ", ".join(str(len(row)) for row in distances)
        errors.append(
            UnparsableError(f"/{_NODES}: {len(numbers)} nodes, but lines of {lengths} distances")
        )
        return Numa(len(numbers), [])
    return Numa(len(numbers), distances)
