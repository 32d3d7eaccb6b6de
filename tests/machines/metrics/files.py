"""Files below proc and sys, as the kernel writes them.

Source: the functions named below, of Linux 4.18 and 6.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.machines.hardware import cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Files = dict[str, str]

_ZEROES = "0 " * 300


class Reading:
    """One of the two readings of a machine: counters are asked for with what they grow by."""

    def __init__(self, *, is_second: bool) -> None:
        self.is_second = is_second

    def __call__(self, first: int, growth: int, wraps_at: int = 0) -> int:
        """Return a counter. wraps_at: after it comes 0 again."""
        value = first + growth * self.is_second
        return value - wraps_at - 1 if wraps_at and value > wraps_at else value


def spaced(numbers: Iterable[object]) -> str:
    """Return words with spaces between them."""
    return " ".join(map(str, numbers))


def below(directory: str, files: Mapping[str, object]) -> Files:
    """Return files of one line in a directory."""
    return {f"{directory}/{name}": f"{content}\n" for name, content in files.items()}


def stat(
    ticks: Mapping[int, Sequence[int]], *, interrupts: int, switches: int, processes: int
) -> str:
    """/proc/stat (show_stat() in fs/proc/stat.c): by cpu the ticks in its ten states."""
    lines = [f"cpu  {spaced(map(sum, zip(*ticks.values(), strict=True)))}"]
    lines += [f"cpu{number} {spaced(ticks[number])}" for number in sorted(ticks)]
    lines += [
        f"intr {interrupts} {_ZEROES.rstrip()}",
        f"ctxt {switches}",
        "btime 1795000000",
        f"processes {processes}",
        "procs_running 3",
        "procs_blocked 1",
        "softirq 31030500 2 7030910 3 262212 95344 0 212 15117103 0 8524714",
    ]
    return "".join(f"{line}\n" for line in lines)


def meminfo(sizes: Mapping[str, int]) -> str:
    """/proc/meminfo (meminfo_proc_show()): KB by name, but numbers of huge pages."""
    return "".join(
        f"{name + ':':<15} {size:8d}{'' if name.startswith('HugePages_') else ' kB'}\n"
        for name, size in sizes.items()
    )


def node_meminfo(number: int, sizes: Mapping[str, int]) -> str:
    """node*/meminfo (node_read_meminfo() in drivers/base/node.c): KB by name."""
    return "".join(
        f"Node {number} {name + ':':<15}{size:8d} kB\n" for name, size in sizes.items()
    ) + "".join(f"Node {number} HugePages_{name}:{0:6d}\n" for name in ("Total", "Free", "Surp"))


def vmstat(events: Mapping[str, int]) -> str:
    """/proc/vmstat (vmstat_show()): the events among others."""
    names = {"nr_free_pages": 30_000_001, "numa_hit": 77_000_001, "pgpgin": 5, "pgpgout": 6}
    return "".join(f"{name} {value}\n" for name, value in (names | dict(events)).items())


def pressure(some: tuple[str, int] | None, full: tuple[str, int] | None) -> str:
    """/proc/pressure/* (psi_show()): mean of ten seconds as it is printed, and us in all."""
    lines = {"some": some, "full": full}
    return "".join(
        f"{name} avg10={told[0]} avg60=0.61 avg300=0.62 total={told[1]}\n"
        for name, told in lines.items()
        if told is not None
    )


def net_dev(traffic: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> str:
    """/proc/net/dev (dev_seq_printf_stats()): of each interface eight counters received and sent.

    bytes, packets, errs, drop, fifo, frame, compressed, multicast; the last three of those sent
    are colls, carrier, compressed.
    """
    rows = [
        "Inter-|   Receive                                                |  Transmit",
        (
            " face |bytes    packets errs drop fifo frame compressed multicast|"
            "bytes    packets errs drop fifo colls carrier compressed"
        ),
    ]
    for name, (received, sent) in traffic.items():
        words = f"{name:>6}: {{:7d}} {{:7d}} {{:4d}} {{:4d}} {{:4d}} {{:5d}} {{:10d}} {{:9d}}"
        words += " {:8d} {:7d} {:4d} {:4d} {:4d} {:5d} {:7d} {:10d}"
        rows.append(words.format(*received, *sent))
    return "".join(f"{row}\n" for row in rows)


def interfaces(names: Mapping[str, Iterable[str]]) -> Files:
    """/sys/class/net: what is in the directory of each interface, which tells what it is."""
    return {
        f"sys/class/net/{name}/{file}": "1\n"
        for name, files in names.items()
        for file in ("ifindex", *files)
    }


def diskstats(disks: Iterable[tuple[int, int, str, Sequence[int]]]) -> str:
    """/proc/diskstats (diskstats_show()): major, minor, name, counters.

    Those are reads, merged, sectors, ms; writes, merged, sectors, ms; in flight, ms busy, ms in
    sum; with Linux 4.18 four of discards, with 5.5 two of flushes.
    """
    return "".join(
        f"{major:4d} {minor:7d} {name} {spaced(counters)}\n"
        for major, minor, name, counters in disks
    )


def rapl(zones: Mapping[str, tuple[str, int, int]]) -> Files:
    """/sys/class/powercap: by zone its name, uJ and the largest value of its counter."""
    files: Files = {"sys/class/powercap/intel-rapl/enabled": "1\n"}
    for zone, (name, energy, largest) in zones.items():
        told = {"name": name, "energy_uj": energy, "max_energy_range_uj": largest, "enabled": 1}
        files |= below(f"sys/class/powercap/{zone}", told)
    return files


def hwmon(
    number: int, name: str, sensors: Iterable[tuple[int, str, int]], device: str = ""
) -> Files:
    """/sys/class/hwmon/hwmonN: number, label and millidegrees of each sensor.

    device: the directory of the device that it belongs to, which lists it.
    """
    directory = f"sys/class/hwmon/hwmon{number}"
    files = below(directory, {"name": name})
    for index, label, value in sensors:
        told = {f"temp{index}_label": label, f"temp{index}_input": value}
        files |= below(directory, told | {f"temp{index}_crit": 100_000})
    if device:
        files |= below(f"{device}/hwmon/hwmon{number}", {"name": name})
    return files


def rdma_port(device: str, *, state: str, rate: str, layer: str, **counters: int) -> Files:
    """/sys/class/infiniband/DEVICE/ports/1."""
    port = f"sys/class/infiniband/{device}/ports/1"
    told = {"state": state, "rate": rate, "link_layer": layer, "lid": "0x2"}
    others = {"symbol_error": 0, "link_downed": 1, "port_rcv_errors": 0, "port_xmit_wait": 987}
    return below(port, told) | below(f"{port}/counters", counters | others)


def pmu(
    name: str,
    number: int,
    formats: Mapping[str, str],
    *,
    cpus: str = "",
    events: Mapping[str, str] | None = None,
) -> Files:
    """/sys/bus/event_source/devices/NAME: its type, where the terms of events go, its cpus."""
    directory = f"sys/bus/event_source/devices/{name}"
    files = below(directory, {"type": number} | ({"cpumask": cpus} if cpus else {}))
    return (
        files | below(f"{directory}/format", formats) | below(f"{directory}/events", events or {})
    )


def nfs_operations(retransmissions: int, versions: Mapping[int, Sequence[int]]) -> str:
    """/proc/net/rpc/nfs (rpc_proc_show()): calls, retransmissions, refreshes; then by version."""
    lines = ["net 0 0 0 0", f"rpc 91000017 {retransmissions} 91000018"]
    lines += [f"proc{version} {len(n)} {spaced(n)}" for version, n in versions.items()]
    return "".join(f"{line}\n" for line in lines)


def nfs_mount(source: str, point: str, version: str, read: int, written: int) -> str:
    """A mount in /proc/self/mountstats (nfs_show_stats()): B from and to the server."""
    kind = "nfs4" if version[0] == "4" else "nfs"
    more = (
        "\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x803,acl=0x3,sessions,pnfs=not configured\n"
        if kind == "nfs4"
        else ""
    )
    return (
        f"device {source} mounted on {point} with fstype {kind} statvers=1.1\n"
        f"\topts:\trw,vers={version},rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp\n"
        "\tage:\t4711\n"
        "\tcaps:\tcaps=0x3ffdf,wtmult=512,dtsize=32768,bsize=0,namlen=255\n"
        f"{more}"
        "\tsec:\tflavor=1,pseudoflavor=1\n"
        "\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0\n"
        f"\tbytes:\t101 102 103 104 {read} {written} 107 108\n"
        f"\tRPC iostats version: 1.1  p/v: 100003/{version[0]} (nfs)\n"
        "\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726\n"
        "\tper-op statistics\n"
        "\t        NULL: 1 1 0 44 24 0 0 0 0\n"
        "\t        READ: 1298 1298 0 207680 1210292152 6 79386 79407 0\n"
        "\n"
    )


def numa_nodes(members: Mapping[int, Iterable[int]]) -> Files:
    """/sys/devices/system/node: the cpus of each NUMA node."""
    base = "sys/devices/system/node"
    files = {f"{base}/online": cpu_list(members) + "\n"}
    return files | {f"{base}/node{n}/cpulist": cpu_list(c) + "\n" for n, c in members.items()}
