"""Processors, memory and disks of a composed machine, and their files as the kernel writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """An online logical cpu; two with equal package and core are threads of that core."""

    number: int
    package: int
    core: int


def cpu_list(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel lists cpus and nodes: `0-2,4`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def cpu_files(
    cpus: Sequence[Cpu], *, offline: Sequence[int] = (), core_cpus: bool = True
) -> dict[str, str]:
    """Below sys/devices/system/cpu; `core_cpus`: Linux 5.3 and newer have core_cpus_list.

    The kernel removes the topology of a cpu that goes offline.
    """
    base = "sys/devices/system/cpu"
    online = [cpu.number for cpu in cpus]
    everything = cpu_list([*online, *offline])
    files = {
        f"{base}/online": cpu_list(online),
        f"{base}/possible": everything,
        f"{base}/present": everything,
    }
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        cores.setdefault((cpu.package, cpu.core), []).append(cpu.number)
    for cpu in cpus:
        topology = f"{base}/cpu{cpu.number}/topology"
        siblings = cpu_list(cores[cpu.package, cpu.core])
        files[f"{topology}/physical_package_id"] = str(cpu.package)
        files[f"{topology}/core_id"] = str(cpu.core)
        files[f"{topology}/thread_siblings_list"] = siblings
        if core_cpus:
            files[f"{topology}/core_cpus_list"] = siblings
    return {path: text + "\n" for path, text in files.items()}


def node_files(distances: Sequence[Sequence[int]]) -> dict[str, str]:
    """Below sys/devices/system/node: which NUMA nodes there are and how far from each other."""
    base = "sys/devices/system/node"
    files = {f"{base}/online": cpu_list(range(len(distances))) + "\n"}
    for number, row in enumerate(distances):
        files[f"{base}/node{number}/distance"] = " ".join(map(str, row)) + "\n"
    return files


def cpuinfo(cpus: Iterable[Mapping[str, object]]) -> str:
    """/proc/cpuinfo: a paragraph for each cpu, keys padded with a tab as the kernel does."""
    paragraphs: list[str] = []
    for cpu in cpus:
        lines = [f"{key}{_padding(key)}: {value}\n" for key, value in cpu.items()]
        paragraphs.append("".join(lines) + "\n")
    return "".join(paragraphs)


def _padding(key: str) -> str:
    return "\t\t" if len(key) < 8 else "\t" if len(key) < 16 else ""


def x86_cpu(
    cpu: Cpu, *, model: int, model_name: str, cores: int, siblings: int, megahertz: float
) -> dict[str, object]:
    """One paragraph of /proc/cpuinfo on x86_64."""
    return {
        "processor": cpu.number,
        "vendor_id": "GenuineIntel",
        "cpu family": 6,
        "model": model,
        "model name": model_name,
        "stepping": 8,
        "cpu MHz": f"{megahertz:.3f}",
        "cache size": "24576 KB",
        "physical id": cpu.package,
        "siblings": siblings,
        "core id": cpu.core,
        "cpu cores": cores,
        "fpu": "yes",
        "flags": "fpu vme de pse tsc msr pae sse sse2 ht lm constant_tsc avx avx2 avx512f",
        "bogomips": f"{megahertz * 2:.2f}",
    }


def arm_cpu(number: int, *, implementer: int, part: int) -> dict[str, object]:
    """One paragraph of /proc/cpuinfo on aarch64."""
    return {
        "processor": number,
        "BogoMIPS": "50.00",
        "Features": "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid",
        "CPU implementer": f"0x{implementer:02x}",
        "CPU architecture": 8,
        "CPU variant": "0x3",
        "CPU part": f"0x{part:03x}",
        "CPU revision": 1,
    }


def stat(cpus: Mapping[int, Sequence[int]], *, boot: int, created: int, running: int) -> str:
    """/proc/stat.

    cpus: by number the ticks in user, nice, system, idle, iowait, irq, softirq, steal, guest,
    guest_nice. boot: seconds since 1970. created: processes since boot.
    """
    lines = [f"cpu  {_spaced(map(sum, zip(*cpus.values(), strict=True)))}"]
    lines += [f"cpu{number} {_spaced(cpus[number])}" for number in sorted(cpus)]
    lines += [
        "intr 91230447 0 9 0 0 0 0 0 0 1",
        "ctxt 142617070",
        f"btime {boot}",
        f"processes {created}",
        f"procs_running {running}",
        "procs_blocked 0",
        "softirq 31030500 2 7030910 3 262212 95344 0 212 15117103 0 8524714",
    ]
    return "".join(line + "\n" for line in lines)


def _spaced(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def meminfo(sizes: Mapping[str, int]) -> str:
    """/proc/meminfo: KB by name."""
    return "".join(f"{name + ':':<15} {size:8d} kB\n" for name, size in sizes.items())


def diskstats(disks: Iterable[tuple[int, int, str, str]]) -> str:
    """/proc/diskstats: major, minor, name and the counters.

    There are 11 counters, with Linux 4.18 also 4 of discards, with 5.5 also 2 of flushes.
    """
    return "".join(
        f"{major:4d} {minor:7d} {name} {counters}\n" for major, minor, name, counters in disks
    )


def kernel_version(release: str, architecture: str = "x86_64") -> dict[str, str]:
    """The files that say which kernel runs, as uname(2) does."""
    return {
        "proc/version": f"Linux version {release}\n",
        "proc/sys/kernel/ostype": "Linux\n",
        "proc/sys/kernel/osrelease": f"{release}\n",
        "proc/sys/kernel/arch": f"{architecture}\n",
    }
