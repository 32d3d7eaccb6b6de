"""Messages as ClusterCockpit's cc-metric-collector sends them, made anew from a seed.

The forms are those of its documentation: integers with the suffixes `i` and `u`, shortest floats,
tags in lexical order, metadata such as the unit as a tag on request. The collectors run in
parallel, so each interval has another order. A flush ends a message after any line.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATES = ("cpu_user", "cpu_nice", "cpu_system", "cpu_idle", "cpu_iowait", "cpu_irq", "cpu_used")
_THREAD = ("ipc", "clock", "flops_any", "instructions")
_MEMORY = ("mem_total", "mem_free", "mem_buffers", "mem_cached", "mem_available", "swap_total",
           "mem_sreclaimable", "mem_shared", "mem_used")  # fmt: skip
_DEVICES = ("/dev/nvme0n1p2", "/dev/nvme1n1p1", "/dev/mapper/vg-home")
_CARD = (("nv_fb_mem_total", "MByte"), ("nv_fb_mem_used", "MByte"), ("nv_util", "%"),
         ("nv_mem_util", "%"), ("nv_temp", "degC"), ("nv_power_usage", "watts"),
         ("nv_sm_clock", "MHz"), ("nv_energy", "Joules"))  # fmt: skip
_NANOSECONDS = 10**9


class CollectorLine(NamedTuple):
    """A line without node and time. tags: those besides cluster and hostname. value: as written."""

    metric: str
    tags: dict[str, str]
    value: str
    unit: str


class CollectorSettings(NamedTuple):
    """Settings of the collectors. precision: `s`, the default of its sinks, or `ns`.

    has_units: the unit is a tag. has_states: the cards send modes, whose values are strings.
    """

    precision: str = "ns"
    has_units: bool = False
    has_states: bool = False
    hwthreads: int = 72
    cards: int = 4
    line_end: str = "\n"


DEFAULTS = CollectorSettings()


def collector_messages(
    node: str, time: int, seed: int, settings: CollectorSettings = DEFAULTS
) -> Iterator[bytes]:
    """Yield the messages of one interval of a node. time: in s since 1970."""
    chosen = random.Random(f"{seed} {node} {time}")
    lines: list[str] = []
    collectors = [list(lines_of) for lines_of in _collectors(chosen, settings)]
    moments = [time * _NANOSECONDS + chosen.randrange(_NANOSECONDS // 2) for _ in collectors]
    while any(collectors):
        number = chosen.choice([n for n, rest in enumerate(collectors) if rest])
        count = chosen.randint(1, 40)
        moment = moments[number] if settings.precision == "ns" else time
        taken, collectors[number] = collectors[number][:count], collectors[number][count:]
        # Most collectors take the time of each value, the others that of the reading.
        step = 137 * (number % 2) if settings.precision == "ns" else 0
        lines += [_text(line, node, moment + step * n, settings) for n, line in enumerate(taken)]
    begin = 0
    while begin < len(lines):
        end = begin + chosen.randint(60, 700)
        yield "".join(lines[begin:end]).encode()
        begin = end


def _text(line: CollectorLine, node: str, moment: int, settings: CollectorSettings) -> str:
    tags = {"cluster": "fox", "hostname": node} | line.tags
    if line.unit and settings.has_units:
        tags["unit"] = line.unit
    pairs = "".join(f",{name}={tags[name]}" for name in sorted(tags))
    return f"{line.metric}{pairs} value={line.value} {moment}{settings.line_end}"


def _float(chosen: random.Random, most: float) -> str:
    """Return a float as Go's shortest form: `1e+06`, `42`, `0.125`."""
    value = chosen.choice([0.0, float(chosen.randrange(100)), chosen.random() * most, most * 1e6])
    return f"{value:.15g}" if value == int(value) else repr(value)


def _collectors(
    chosen: random.Random, settings: CollectorSettings
) -> Iterator[Iterator[CollectorLine]]:
    node = {"type": "node"}
    threads = [{"type": "hwthread", "type-id": f"{n}"} for n in range(settings.hwthreads)]
    memory = chosen.sample(_MEMORY, len(_MEMORY))  # a Go map has no order
    yield (
        CollectorLine(name, tags, _float(chosen, 100), "Percent")
        for tags in (node, *threads)
        for name in chosen.sample(_STATES, len(_STATES))
    )
    yield iter([CollectorLine("num_cpus", node, f"{settings.hwthreads}i", "")])
    yield (CollectorLine(name, node, _float(chosen, 5e8), "kByte") for name in memory)
    yield (
        CollectorLine(
            name, {"device": device, "type": "node"}, f"{chosen.randrange(2000)}u", "GBytes"
        )
        for device in _DEVICES
        for name in ("disk_total", "disk_free")
    )
    yield iter([CollectorLine("part_max_used", node, f"{chosen.randrange(100)}i", "percent")])
    yield (
        CollectorLine(name, node, _float(chosen, 72), "")
        for name in ("load_one", "load_five", "load_fifteen")
    )
    yield iter([CollectorLine(name, node, f"{chosen.randrange(900)}i", "")
                for name in ("proc_run", "proc_total")])  # fmt: skip
    port = {"device": "mlx5_0", "lid": "0x2a", "port": "1", "type": "node"}
    yield (
        CollectorLine(name, port, f"{chosen.randrange(10**12)}i", "bytes")
        for name in ("ib_recv", "ib_xmit", "ib_recv_pkts", "ib_xmit_pkts")
    )
    yield (
        CollectorLine(name, {"stype": "network", "stype-id": device, "type": "node"},
                      f"{chosen.randrange(10**12)}i", "bytes")
        for device in ("eth0", "ib0")
        for name in ("net_bytes_in", "net_bytes_out", "net_pkts_in", "net_pkts_out")
    )  # fmt: skip
    yield (
        CollectorLine(name, tags, _float(chosen, 3e9), "") for tags in threads for name in _THREAD
    )
    yield (
        CollectorLine(name, {"type": "socket", "type-id": f"{socket}"}, _float(chosen, 2e5), unit)
        for socket in range(2)
        for name, unit in (("mem_bw", "MBytes/s"), ("rapl_average_power", "Watt"))
    )
    yield _cards(chosen, settings)


def _cards(chosen: random.Random, settings: CollectorSettings) -> Iterator[CollectorLine]:
    for card in range(settings.cards):
        tags = {"type": "accelerator", "type-id": f"00000000:{0x10 + card:02X}:00.0"}
        for name, unit in _CARD:
            yield CollectorLine(name, tags, _float(chosen, 700), unit)
        if settings.has_states:
            yield CollectorLine("nv_ecc_mode", tags, '"OFF"', "")
