"""Metrics of the hardware's counters, counted by a stand-in with exact rates, and live."""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.perf import plan as perf_tables
from ccagent.agents.metrics.perf.call import (
    CYCLES,
    INSTRUCTIONS,
    Counts,
    Field,
    PerfCall,
    PerfEvent,
    encode,
    explain_error,
    parse_counts,
    parse_format,
    parse_terms,
    parse_time_page,
    parse_type,
)
from ccagent.agents.metrics.perf.plan import EventTable, choose, read_table
from ccagent.agents.metrics.perf.reader import PerfReader
from ccagent.agents.metrics.readers.base import Count, Gauge, Scope
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.cpus import CpuIdentity, identify
from ccagent.machine.node import Node
from tests.support.perf_counters import StandIn

DEVICES = "sys/bus/event_source/devices"

# The formats as the kernel has them: arch/x86/events/intel/core.c and uncore_snbep.c,
# arch/x86/events/amd/core.c and uncore.c, drivers/perf/arm_pmuv3.c, arm_cspmu/nvidia_cspmu.c.
INTEL = {"event": "config:0-7", "umask": "config:8-15"}
AMD = {"event": "config:0-7,32-35", "umask": "config:8-15"}
AMD_DF = {"event": "config:0-7,32-35,59-60", "umask": "config:8-15"}
AMD_DF_2 = {"event": "config:0-7,32-37", "umask": "config:8-15,24-27"}
AMD_UMC = {"event": "config:0-7", "rdwrmask": "config:8-9"}
MSR = {"event": "config:0-63"}
ARM = {"event": "config:0-15", "long": "config1:0"}
NVIDIA_SCF = {"event": "config:0-31"}
FORMATS = {
    "cpu": AMD,
    "armv8_pmuv3_0": ARM,
    "uncore_imc_0": INTEL,
    "amd_df": AMD_DF_2,
    "amd_umc_0": AMD_UMC,
    "nvidia_scf_pmu_0": NVIDIA_SCF,
}

SKYLAKE = ("GenuineIntel", 6, 0x55)
SAPPHIRE_RAPIDS = ("GenuineIntel", 6, 0x8F)
ZEN2 = ("AuthenticAMD", 0x17, 0x31)
ZEN4 = ("AuthenticAMD", 0x19, 0x11)
ZEN5 = ("AuthenticAMD", 0x1A, 0x02)

CORE, MSRS, UMC = 4, 9, 20
APERF, MPERF, TSC = (PerfEvent(MSRS, number) for number in (1, 2, 0))
"""The stand-in counts what it is told: here cycles at 3 GHz for half of the time."""
AWAKE_HALF = {APERF: 1_500_000_000, MPERF: 1_000_000_000, TSC: 2_000_000_000}


def x86_cpuinfo(vendor: str, family: int, model: int) -> str:
    block = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nstepping\t: 1\n\n"
    return "".join(f"processor\t: {number}\n{block}" for number in range(2))


def arm_cpuinfo(part: int) -> str:
    return (
        "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part:#x}\nCPU revision\t: 0\n\n"
    )


class Machine:
    """A machine below a directory, two sockets of one hardware thread each."""

    def __init__(self, root: Path, cpuinfo: str) -> None:
        self.root = root
        self.node = Node(root=str(root), hostname="c1", cluster="test.org")
        self.write("proc/cpuinfo", cpuinfo)
        self.write("proc/sys/kernel/perf_event_paranoid", "2\n")
        self.online("0-1")
        for cpu in range(2):
            path = f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
            self.write(path, f"{cpu}\n")
        self.write(f"{DEVICES}/software/type", "1\n")

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def online(self, cpus: str) -> None:
        self.write("sys/devices/system/cpu/online", cpus + "\n")

    def pmu(
        self,
        name: str,
        number: int,
        formats: dict[str, str],
        cpus: str = "",
        events: dict[str, str] | None = None,
    ) -> None:
        self.write(f"{DEVICES}/{name}/type", f"{number}\n")
        for term, bits in formats.items():
            self.write(f"{DEVICES}/{name}/format/{term}", bits + "\n")
        for event, terms in (events or {}).items():
            self.write(f"{DEVICES}/{name}/events/{event}", terms + "\n")
        if cpus:
            self.write(f"{DEVICES}/{name}/cpumask", cpus + "\n")


def x86(root: Path, cpu: tuple[str, int, int]) -> Machine:
    machine = Machine(root, x86_cpuinfo(*cpu))
    machine.pmu("cpu", CORE, INTEL if cpu[0] == "GenuineIntel" else AMD)
    events = {"tsc": "event=0x00", "aperf": "event=0x01", "mperf": "event=0x02"}
    machine.pmu("msr", MSRS, MSR, events=events)
    return machine


def raw(event: int, umask: int, number: int = CORE) -> PerfEvent:
    return PerfEvent(number, umask << 8 | event)


def values(gauges: list[Gauge], metric: str) -> dict[str, float]:
    return {gauge.scope.type_id: gauge.value for gauge in gauges if gauge.metric == metric}


def read_after(reader: PerfReader, machine: Machine, call: StandIn, seconds: int) -> list[Gauge]:
    call.let_pass(seconds)
    return reader.read(machine.node)


def first_gauges(machine: Machine, call: StandIn, seconds: int = 10) -> list[Gauge]:
    reader = PerfReader(call=call)
    assert reader.read(machine.node) == []
    return read_after(reader, machine, call, seconds)


# Events as numbers


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"config:0-7\n", Field(0, tuple(range(8)))),
        (b"config:21\n", Field(0, (21,))),
        (b"config1:0\n", Field(1, (0,))),
        (b"config2:0-1,4\n", Field(2, (0, 1, 4))),
        (b"config:0-7,32-35,59-60\n", Field(0, (*range(8), 32, 33, 34, 35, 59, 60))),
        (b"config:0-63", Field(0, tuple(range(64)))),
    ],
)
def test_formats_are_places_of_bits(content: bytes, field: Field) -> None:
    assert parse_format(content) == field


@pytest.mark.parametrize(
    "content",
    [b"", b"config", b"config:", b"config3:0", b"config:8-7", b"config:64", b"config:0-7,3-9",
     b"config:1,1", b"event:0-7", b"config:0-", b"config:-1", b"config:0 - 7", b"config:0\nx"],
)  # fmt: skip
def test_what_is_no_format_is_an_error(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_format(content)


@given(st.binary() | st.from_regex(rb"config[0-3]?:[0-9]{1,3}(-[0-9]{1,3}){0,2}(,[0-9-]{0,5})*"))
def test_whatever_a_format_says_the_bits_are_those_of_a_word(content: bytes) -> None:
    try:
        field = parse_format(content)
    except UnparsableError:
        return
    assert field.word in {0, 1, 2}
    assert 0 <= field.bits[0] <= field.bits[-1] < 64
    assert sorted(set(field.bits)) == list(field.bits)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("event=0x04,umask=0x03\n", {"event": 4, "umask": 3}),
        ("event=12", {"event": 12}),
        ("config=0xffffffffffffffff", {"config": 2**64 - 1}),
        ("event=0x0a, edge", {"event": 10, "edge": 1}),
    ],
)
def test_terms(text: str, terms: dict[str, int]) -> None:
    assert parse_terms(text) == terms


@pytest.mark.parametrize(
    "text", ["", "event=", "event=0xg", "=1", "a=1,", "a=1,a=2", "a=-1", "a=٣"]
)
def test_what_are_no_terms_is_an_error(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse_terms(text)


@given(st.text())
def test_whatever_terms_say_their_values_are_unsigned(text: str) -> None:
    try:
        terms = parse_terms(text)
    except UnparsableError:
        return
    assert all(value >= 0 for value in terms.values())


@pytest.mark.parametrize(
    ("formats", "text", "config"),
    [
        (INTEL, "event=0xc7,umask=0x40", (0x40C7, 0, 0)),
        (AMD, "event=0x03,umask=0xaf", (0xAF03, 0, 0)),
        # As the kernel's own tools number them: dram_channel_data_controller_7 of Zen 2.
        (AMD_DF, "event=0x1c7,umask=0x38", (0x1_0000_38C7, 0, 0)),
        (AMD_DF_2, "event=0x2df,umask=0xbff", (0x2_0B00_FFDF, 0, 0)),
        (ARM, "event=0x80c0,long", (0x80C0, 1, 0)),
        (INTEL, "config1=0x12,event=0x01", (1, 0x12, 0)),
        (INTEL, "config2=7", (0, 0, 7)),
    ],
)
def test_terms_are_put_where_the_formats_say(
    formats: dict[str, str], text: str, config: tuple[int, int, int]
) -> None:
    fields = {name: parse_format(value.encode()) for name, value in formats.items()}
    assert encode(parse_terms(text), fields) == config


@pytest.mark.parametrize("text", ["event=0x1f,umask=0x7fe", "event=0x1000", "thresh=1"])
def test_what_a_pmu_can_not_count_is_an_error(text: str) -> None:
    fields = {name: parse_format(value.encode()) for name, value in AMD.items()}
    with pytest.raises(UnparsableError):
        encode(parse_terms(text), fields)


@given(st.sets(st.integers(0, 63), min_size=1, max_size=32), st.data())
def test_what_is_put_in_can_be_taken_out(places: set[int], data: st.DataObject) -> None:
    field = Field(0, tuple(sorted(places)))
    value = data.draw(st.integers(0, 2 ** len(places) - 1))
    config, _, _ = encode({"event": value}, {"event": field})
    assert sum((config >> bit & 1) << place for place, bit in enumerate(field.bits)) == value
    assert config & ~sum(1 << bit for bit in places) == 0


@pytest.mark.parametrize("content", [b"", b"x\n", b"-1\n", b"1 2\n", b"1" * 10])
def test_what_is_no_type_is_an_error(content: bytes) -> None:
    assert parse_type(b"4\n") == 4
    with pytest.raises(UnparsableError):
        parse_type(content)


# Tables


def all_tables() -> list[tuple[str, EventTable]]:
    return [(name, read_table(name)) for name in perf_tables.table_names()]


@pytest.mark.parametrize(("name", "table"), all_tables())
def test_each_table_is_complete_and_consistent(name: str, table: EventTable) -> None:
    assert any(source.startswith("https://") for source in table.sources)
    assert len(table.sources) >= 2
    assert table.cpus
    assert all(first <= last for kind in table.cpus for first, last in kind.models)
    (pmu,) = (pmu for pmu in ("cpu", "armv8_pmuv3_0") if re.fullmatch(table.pmus, pmu))
    texts = [event.event for event in table.events]
    assert len(set(texts)) == len(texts)
    checked(pmu, [*texts, table.reference] if table.reference else texts)
    told = {
        metric
        for event in table.events
        for metric in ("flops_sp", "flops_dp", "flops_any")
        if getattr(event, metric)
    }
    assert told in (set(), {"flops_any"}, {"flops_sp", "flops_dp"})
    for memory in table.memory:
        (pmu,) = (pmu for pmu in FORMATS if re.fullmatch(memory.pmus, pmu))
        texts = [text for event in memory.events for text in event.events()]
        assert len(set(texts)) == len(texts)
        assert all(event.bytes in {1, 32, 64} for event in memory.events)
        assert memory.group >= 1
        checked(pmu, texts)


def checked(pmu: str, texts: list[str]) -> None:
    fields = {name: parse_format(value.encode()) for name, value in FORMATS[pmu].items()}
    configs = [encode(parse_terms(text), fields) for text in texts]
    assert len(set(configs)) == len(texts)


def test_no_processor_is_in_two_tables() -> None:
    seen: dict[CpuIdentity, str] = {}
    for name, table in all_tables():
        for kind in table.cpus:
            for first, last in kind.models:
                for model in range(first, last + 1):
                    assert (
                        seen.setdefault(CpuIdentity(kind.vendor, kind.family, model), name) == name
                    )


@pytest.mark.parametrize("name", [name for name in perf_tables.table_names() if "intel" in name])
def test_an_event_of_intel_counts_as_many_operations_as_its_name_says(name: str) -> None:
    events = read_table(name).events
    assert len(events) == 8
    for event in events:
        bits = re.search(r"(\d+)B_PACKED", event.name)
        is_double = event.name.endswith("DOUBLE")
        elements = int(bits[1]) // (64 if is_double else 32) if bits else 1
        expected = (0, elements) if is_double else (elements, 0)
        assert (event.flops_sp, event.flops_dp) == expected


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (x86_cpuinfo("GenuineIntel", 6, 0x55), "Intel Skylake-SP, Cascade Lake-SP, Cooper Lake"),
        (x86_cpuinfo("GenuineIntel", 6, 0x6A), "Intel Ice Lake-SP, Ice Lake-D"),
        (x86_cpuinfo("GenuineIntel", 6, 0xCF), "Intel Sapphire Rapids, Emerald Rapids"),
        (x86_cpuinfo("GenuineIntel", 6, 0xAD), "Intel Granite Rapids"),
        (x86_cpuinfo("AuthenticAMD", 0x17, 0x31), "AMD Zen 2"),
        (x86_cpuinfo("AuthenticAMD", 0x19, 0x01), "AMD Zen 3"),
        (x86_cpuinfo("AuthenticAMD", 0x19, 0xA0), "AMD Zen 4"),
        (x86_cpuinfo("AuthenticAMD", 0x1A, 0x11), "AMD Zen 5"),
        (arm_cpuinfo(0xD0C), "Arm Neoverse N1"),
        (arm_cpuinfo(0xD40), "Arm Neoverse V1"),
        (arm_cpuinfo(0xD4F), "Arm Neoverse V2, Neoverse N2"),
        (x86_cpuinfo("GenuineIntel", 6, 0x9E), ""),
        (x86_cpuinfo("AuthenticAMD", 0x17, 0x01), ""),
        (arm_cpuinfo(0xD4A), ""),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", ""),
        ("", ""),
    ],
)
def test_the_processor_chooses_the_table(cpuinfo: str, name: str) -> None:
    table = choose(identify(cpuinfo.encode()))
    assert (table.name if table else "") == name


def test_the_head_of_cpuinfo_is_enough() -> None:
    content = x86_cpuinfo(*ZEN4).encode()
    assert identify(content[: len(content) // 2 + 30]) == CpuIdentity(*ZEN4)


@given(st.binary())
def test_whatever_cpuinfo_says_some_table_or_none_is_chosen(content: bytes) -> None:
    cpu = identify(content)
    assert cpu is None or isinstance(cpu.model, int)


# What the kernel answers


def test_a_group_is_read_at_once() -> None:
    content = struct.pack("=5Q", 2, 10, 5, 2**64 - 1, 7)
    assert parse_counts(content) == Counts(10, 5, (2**64 - 1, 7))


@given(st.binary() | st.lists(st.integers(0, 5)).map(lambda n: struct.pack(f"={len(n)}Q", *n)))
def test_whatever_a_group_gives_there_is_one_value_for_each_counter(content: bytes) -> None:
    try:
        counts = parse_counts(content)
    except UnparsableError:
        return
    assert len(counts.values) * 8 + 24 == len(content)


def time_page(capabilities: int, shift: int, factor: int) -> bytes:
    return b"\0" * 40 + struct.pack("=QHHI", capabilities, 48, shift, factor) + b"\0" * 8


def test_the_time_page_tells_the_rate() -> None:
    assert parse_time_page(time_page(0b11110, 0, 40)) == 25_000_000
    assert parse_time_page(time_page(0b1000, 31, 2**31)) == 1_000_000_000


@pytest.mark.parametrize(
    "content",
    [time_page(0b0010, 31, 2**31), time_page(0b1000, 31, 0), time_page(0b1000, 64, 1), b"\0" * 55],
)
def test_a_time_page_may_not_tell_the_rate(content: bytes) -> None:
    assert parse_time_page(content) == 0


@pytest.mark.parametrize(
    ("number", "paranoid", "kind", "words"),
    [
        (errno.EACCES, "2", NotPermittedError, "CAP_PERFMON"),
        (errno.EACCES, "1", NotPermittedError, "perf_event_paranoid at 0 or less, and it is 1"),
        (errno.EACCES, "3", NotPermittedError, "CAP_PERFMON is not enough: set it to 2"),
        (errno.EPERM, "", NotPermittedError, "perf_event_paranoid at 0 or less"),
        (errno.EPERM, "-1", NotPermittedError, "a filter of system calls (of a container?)"),
        (errno.EMFILE, "2", NotPermittedError, "the hard limit is too low"),
        (errno.ENOENT, "2", NotHereError, "a virtual machine without a PMU?"),
        (errno.EOPNOTSUPP, "2", NotHereError, "a virtual machine without a PMU?"),
        (errno.ENOSYS, "2", NotHereError, "perf_event_open"),
        (errno.EBUSY, "2", UnparsableError, "Device or resource busy"),
    ],
)
def test_a_refusal_is_explained(
    number: int, paranoid: str, kind: type[CcagentError], words: str
) -> None:
    error = explain_error(OSError(number, ""), paranoid)
    assert type(error) is kind
    assert words in str(error)


# The reader


def test_an_intel_of_two_sockets(tmp_path: Path) -> None:
    machine = x86(tmp_path, SAPPHIRE_RAPIDS)
    for number in range(2):
        machine.pmu(f"uncore_imc_{number}", 30 + number, INTEL, cpus="0-1")
    machine.pmu("uncore_imc_free_running_0", 40, INTEL, cpus="0-1")
    call = StandIn(
        AWAKE_HALF
        | {
            CYCLES: 1_500_000_000,
            raw(0xC7, 0x01): 1000,
            raw(0xC7, 0x04): 100,
            raw(0xC7, 0x10): 10,
            raw(0xC7, 0x02): 5000,
            raw(0xC7, 0x08): 500,
            raw(0xC7, 0x20): 50,
            raw(0xC7, 0x80): 5,
            raw(0x05, 0xCF, 30): 1_000_000,
        },
        {
            (INSTRUCTIONS, 0): 3_000_000_000,
            (INSTRUCTIONS, 1): 750_000_000,
            (raw(0xC7, 0x40), 1): 1,
            (raw(0x05, 0xF0, 31), 0): 500_000,
            (raw(0x05, 0xF0, 31), 1): 250_000,
        },
    )
    gauges = first_gauges(machine, call)
    assert values(gauges, "clock") == {"0": 3e9, "1": 3e9}
    assert values(gauges, "ipc") == {"0": 2.0, "1": 0.5}
    assert values(gauges, "flops_dp") == {"0": 1240.0, "1": 1248.0}
    assert values(gauges, "flops_sp") == {"0": 7480.0, "1": 7480.0}
    assert values(gauges, "flops_any") == {"0": 9960.0, "1": 9976.0}
    assert values(gauges, "mem_bw") == {"0": 96e6, "1": 80e6}
    assert values(gauges, "perf_counted") == {"": 100.0}
    assert {gauge.metric: gauge.scope.type for gauge in gauges} == {
        metric: PerfReader.metrics[metric].type for metric in PerfReader.metrics
    }
    assert len(call.groups(0)) == 3


def test_prometheus_gets_operations_and_traffic_as_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = x86(tmp_path, SAPPHIRE_RAPIDS)
    reader = PerfReader(call=StandIn())
    hwthread = Scope("hwthread", "0")
    rates_of_readings: tuple[list[float], ...] = ([], [5.0], [7.0])
    readings = iter(rates_of_readings)
    moments = iter((1000.0, 1010.0, 1030.0))

    def read(_: Node) -> list[Gauge]:
        rates = next(readings)
        return [Gauge("flops_dp", rate, hwthread) for rate in rates] + [Gauge("ipc", 2, hwthread)]

    monkeypatch.setattr(reader, "read", read)
    monkeypatch.setattr(machine.node.clock, "monotonic", lambda: next(moments))
    ipc = Gauge("ipc", 2, hwthread)
    assert [*reader.read_raw(machine.node)] == [ipc]
    assert [*reader.read_raw(machine.node)] == [Count("flops_dp", 50, hwthread), ipc]
    assert [*reader.read_raw(machine.node)] == [Count("flops_dp", 190, hwthread), ipc]


def test_one_call_reads_all_of_a_hardware_thread(tmp_path: Path) -> None:
    machine = x86(tmp_path, SAPPHIRE_RAPIDS)
    call = StandIn()
    PerfReader(call=call).read(machine.node)
    (group,) = call.groups(0)
    assert group.events[:5] == [CYCLES, INSTRUCTIONS, APERF, MPERF, TSC]
    assert len(group.events) == 13


def test_what_does_not_fit_is_counted_in_turns_and_scaled(tmp_path: Path) -> None:
    machine = x86(tmp_path, SKYLAKE)
    call = StandIn(
        {
            CYCLES: 1_000_000_000,
            INSTRUCTIONS: 500_000_000,
            raw(0xC7, 0x10): 1000,
            raw(0xC7, 0x80): 1000,
        }
    )
    # With hyper-threading a core has four counters for each thread, cycles and instructions apart.
    call.room = 4
    call.limited = frozenset({CORE})
    gauges = first_gauges(machine, call)
    dp, sp = (0x01, 0x04, 0x10, 0x40), (0x02, 0x08, 0x20, 0x80)
    first, second = call.groups(0)
    assert first.events[5:] == [raw(0xC7, mask) for mask in dp]
    assert second.events == [raw(0xC7, mask) for mask in sp]
    assert values(gauges, "ipc")["0"] == 0.5
    assert values(gauges, "flops_dp")["0"] == 4000.0
    assert values(gauges, "flops_sp")["0"] == 16000.0
    assert values(gauges, "flops_any")["0"] == 24000.0
    assert values(gauges, "perf_counted") == {"": 50.0}


def test_a_group_that_never_has_room_is_split(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN5)
    rates = {CYCLES: 2_000_000, INSTRUCTIONS: 1_000_000, raw(3, 0x8F): 20, raw(3, 0x4F): 14}
    call = StandIn(AWAKE_HALF | rates, room=6, limited=frozenset({0, CORE}))
    call.taken = 1
    reader = PerfReader(call=call)
    reader.read(machine.node)
    assert [len(group.events) for group in call.groups(0)] == [9]
    assert read_after(reader, machine, call, 1) == [Gauge("perf_counted", 0.0)]
    assert [len(group.events) for group in call.groups(0)] == [5, 4]
    read_after(reader, machine, call, 1)
    gauges = read_after(reader, machine, call, 1)
    assert values(gauges, "ipc") == {"0": 0.5, "1": 0.5}
    assert values(gauges, "clock") == {"0": 3e9, "1": 3e9}
    assert values(gauges, "flops_any") == {"0": 54.0, "1": 54.0}
    assert values(gauges, "perf_counted") == {"": 50.0}


def test_a_counter_that_never_has_room_has_no_value(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, raw(3, 0x1F): 5}, room=2, limited=frozenset({CORE}))
    call.taken = 2
    reader = PerfReader(call=call)
    for _ in range(4):
        read_after(reader, machine, call, 1)
    gauges = read_after(reader, machine, call, 1)
    assert [gauge.metric for gauge in gauges if gauge.scope.type_id == "0"] == ["ipc"]


def test_where_precisions_are_not_told_apart_there_is_one_sum(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN2)
    machine.pmu("amd_df", 25, AMD_DF, cpus="0-1")
    channels = {
        PerfEvent(25, 0x3807 + (i & 3) * 0x40 + (i >> 2 << 32)): 1_000_000 for i in range(8)
    }
    call = StandIn({CYCLES: 1000, raw(3, 0xFF): 12_345} | channels, room=4, limited=frozenset({25}))
    reader = PerfReader(call=call)
    reader.read(machine.node)
    gauges = read_after(reader, machine, call, 8)
    assert values(gauges, "flops_any") == {"0": 12_345.0, "1": 12_345.0}
    assert values(gauges, "mem_bw") == {"0": 512e6, "1": 512e6}
    assert values(gauges, "flops_dp") == values(gauges, "flops_sp") == {}
    assert reader.absent == {
        "flops_sp": "perf: AMD Zen 2: no event counts it",
        "flops_dp": "perf: AMD Zen 2: no event counts it",
    }


def test_precisions_of_zen_5_are_told_apart(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN5)
    for number in range(2):
        machine.pmu(f"amd_umc_{number}", UMC + number, AMD_UMC, cpus=str(number))
    call = StandIn(
        {
            raw(3, 0x8F): 1,
            raw(3, 0xAF): 20,
            raw(3, 0x4F): 300,
            raw(3, 0x6F): 4000,
            PerfEvent(UMC, 0x0A): 1_000_000,
            PerfEvent(UMC + 1, 0x0A): 2_000_000,
        }
    )
    gauges = first_gauges(machine, call)
    assert values(gauges, "flops_dp")["0"] == 21.0
    assert values(gauges, "flops_sp")["0"] == 4300.0
    assert values(gauges, "flops_any")["0"] == 4342.0
    assert values(gauges, "mem_bw") == {"0": 64e6, "1": 128e6}


def test_older_kernels_count_memory_in_the_data_fabric(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    machine.pmu("amd_df", 25, AMD_DF_2, cpus="0-1")
    call = StandIn({PerfEvent(25, 0x07 << 24 | 0xFE << 8 | 0x1F): 1_000_000})
    gauges = first_gauges(machine, call)
    assert values(gauges, "mem_bw") == {"0": 64e6, "1": 64e6}
    assert len(call.groups(0)) == 1 + 48


def test_a_data_fabric_that_lacks_the_bits_is_not_used(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    machine.pmu("amd_df", 25, AMD_DF, cpus="0-1")
    reader = PerfReader(call=StandIn())
    reader.read(machine.node)
    assert "umask=0x7fe has no room in 8 bits" in reader.absent["mem_bw"]
    assert reader.errors == ["mem_bw: " + reader.absent["mem_bw"]]


@pytest.mark.parametrize(("part", "flops"), [(0xD40, 2005.0), (0xD4F, 1005.0)])
def test_arm_cores(tmp_path: Path, part: int, flops: float) -> None:
    machine = Machine(tmp_path, arm_cpuinfo(part))
    machine.pmu("armv8_pmuv3_0", 8, ARM)
    machine.pmu("nvidia_scf_pmu_0", 50, NVIDIA_SCF, cpus="0")
    call = StandIn(
        {
            CYCLES: 1_500_000_000,
            INSTRUCTIONS: 3_000_000_000,
            PerfEvent(8, 0x4004): 500_000_000,
            PerfEvent(8, 0x80C0): 1000,
            PerfEvent(8, 0x80C1): 5,
            PerfEvent(50, 0x1A5): 1000,
            PerfEvent(50, 0x1DB): 7,
        }
    )
    call.rate_of_time = 1e9
    gauges = first_gauges(machine, call)
    assert values(gauges, "clock") == {"0": 3e9, "1": 3e9}
    assert values(gauges, "ipc") == {"0": 2.0, "1": 2.0}
    assert values(gauges, "flops_any") == {"0": flops, "1": flops}
    assert values(gauges, "mem_bw") == ({"0": 32_007.0} if part == 0xD4F else {})


def test_without_a_rate_of_time_there_is_no_clock(tmp_path: Path) -> None:
    machine = Machine(tmp_path, arm_cpuinfo(0xD4F))
    machine.pmu("armv8_pmuv3_0", 8, ARM)
    reader = PerfReader(call=StandIn({CYCLES: 1000, PerfEvent(8, 0x4004): 10}))
    reader.read(machine.node)
    assert reader.absent["clock"] == "perf: the kernel has no rate of its time counter"


def test_of_an_unknown_processor_there_is_what_the_kernel_knows(tmp_path: Path) -> None:
    machine = x86(tmp_path, ("GenuineIntel", 6, 0x9E))
    call = StandIn(AWAKE_HALF | {CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    gauges = read_after(reader, machine, call, 1)
    assert {gauge.metric for gauge in gauges} == {"ipc", "clock", "perf_counted"}
    assert set(reader.absent) == {"flops_sp", "flops_dp", "flops_any", "mem_bw"}
    assert reader.absent["mem_bw"] == "perf: no table for GenuineIntel family 0x6 model 0x9e"
    assert reader.errors == []


def test_without_the_pmu_msr_there_is_no_clock(tmp_path: Path) -> None:
    machine = Machine(tmp_path, x86_cpuinfo(*ZEN4))
    machine.pmu("cpu", CORE, AMD)
    machine.pmu("msr", MSRS, MSR, events={"tsc": "event=0x00"})
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    gauges = read_after(reader, machine, call, 1)
    assert {gauge.metric for gauge in gauges} == {"ipc", "flops_any", "perf_counted"}
    assert "msr/events/aperf" in reader.absent["clock"]


def test_an_event_that_is_refused_costs_its_metrics(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN5)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000, raw(3, 0x8F): 5})
    call.refused = {raw(3, 0x6F): errno.EINVAL, MPERF: errno.EINVAL}
    reader = PerfReader(call=call)
    reader.read(machine.node)
    gauges = read_after(reader, machine, call, 1)
    assert {gauge.metric for gauge in gauges} == {"ipc", "flops_dp", "perf_counted"}
    assert set(reader.absent) == {"clock", "flops_sp", "flops_any", "mem_bw"}


def test_without_instructions_there_is_still_a_clock(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn(AWAKE_HALF | {CYCLES: 1000})
    call.refused = {INSTRUCTIONS: errno.ENOENT}
    reader = PerfReader(call=call)
    reader.read(machine.node)
    gauges = read_after(reader, machine, call, 1)
    assert values(gauges, "clock") == {"0": 3e9, "1": 3e9}
    assert values(gauges, "ipc") == {}
    assert "ipc" in reader.absent


@pytest.mark.parametrize(
    ("name", "content"), [("type", "x\n"), ("format/event", "config9:1\n"), ("format/umask", "")]
)
def test_a_file_of_the_pmu_that_is_wrong_costs_flops(
    tmp_path: Path, name: str, content: str
) -> None:
    machine = x86(tmp_path, ZEN4)
    machine.write(f"{DEVICES}/cpu/{name}", content)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    (error,) = reader.errors
    assert error.startswith("flops_sp, flops_dp, flops_any: /sys/bus/event_source/devices/cpu/")
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0, "1": 3.0}
    assert reader.errors == []


def test_memory_is_counted_whole_or_not_at_all(tmp_path: Path) -> None:
    machine = x86(tmp_path, SKYLAKE)
    for number in range(3):
        machine.pmu(f"uncore_imc_{number}", 30 + number, INTEL, cpus="0-1")
    call = StandIn({CYCLES: 1000})
    call.refused = {raw(0x04, 0x0C, 32): errno.EBUSY}
    reader = PerfReader(call=call)
    reader.read(machine.node)
    assert values(read_after(reader, machine, call, 1), "mem_bw") == {}
    assert "Device or resource busy" in reader.absent["mem_bw"]
    assert all(group.events[0].type < 30 for group in call.groups(0))


def test_a_counter_that_is_less_than_it_was_has_no_rate(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000, raw(3, 0x1F): 5})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    read_after(reader, machine, call, 10)
    call.groups(0)[0].values[1] = 0
    gauges = read_after(reader, machine, call, 1)
    assert values(gauges, "ipc") == {"1": 3.0}
    assert values(gauges, "flops_any") == {"0": 5.0, "1": 5.0}


def test_a_reading_at_once_has_no_rates(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    reader = PerfReader(call=StandIn({CYCLES: 1000}))
    assert [reader.read(machine.node) for _ in range(3)] == [[], [], []]


def test_a_group_that_can_not_be_read_costs_its_cpu(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    call.broken = {1}
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0}
    assert reader.errors == ["perf: cpu 1: Input/output error"]
    call.broken = set()
    read_after(reader, machine, call, 1)
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0, "1": 3.0}
    assert reader.errors == []


def test_a_group_that_makes_no_sense_costs_its_cpu(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    call.garbled = {0}
    assert values(read_after(reader, machine, call, 1), "ipc") == {"1": 3.0}
    (error,) = reader.errors
    assert error.startswith("perf: cpu 0: ")


def test_cpus_that_make_no_sense_leave_nothing_open(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn()
    reader = PerfReader(call=call)
    reader.read(machine.node)
    machine.online("1-0")
    with pytest.raises(UnparsableError):
        reader.read(machine.node)
    assert call.descriptors == set()


def test_cpus_come_and_go(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    reader = PerfReader(call=call)
    reader.read(machine.node)
    before = len(call.descriptors)
    machine.online("0")
    assert read_after(reader, machine, call, 1) == []
    assert len(call.descriptors) == before / 2
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0}
    machine.online("0-1")
    assert read_after(reader, machine, call, 1) == []
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0, "1": 3.0}
    assert len(call.descriptors) == before


def test_counters_are_let_go(tmp_path: Path) -> None:
    machine = x86(tmp_path, SKYLAKE)
    machine.pmu("uncore_imc_0", 30, INTEL, cpus="0-1")
    call = StandIn()
    reader = PerfReader(call=call)
    reader.read(machine.node)
    assert call.descriptors
    reader.close()
    assert call.descriptors == set()


def test_permission_that_comes_later_is_used(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn({CYCLES: 1000, INSTRUCTIONS: 3000})
    call.denied = errno.EACCES
    reader = PerfReader(call=call)
    for _ in range(2):
        with pytest.raises(NotPermittedError, match="0 or less, and it is 2"):
            reader.read(machine.node)
    assert call.calls == 2
    call.denied = 0
    assert reader.read(machine.node) == []
    assert values(read_after(reader, machine, call, 1), "ipc") == {"0": 3.0, "1": 3.0}


def test_permission_is_explained_without_the_sysctl_too(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    (tmp_path / "proc/sys/kernel/perf_event_paranoid").unlink()
    call = StandIn()
    call.denied = errno.EPERM
    with pytest.raises(NotPermittedError, match="CAP_PERFMON.*at 0 or less; CAP_PERFMON needed$"):
        PerfReader(call=call).read(machine.node)


def test_a_lack_of_descriptors_leaves_none_open(tmp_path: Path) -> None:
    machine = x86(tmp_path, SKYLAKE)
    call = StandIn()
    call.refused = {raw(0xC7, 0x80): errno.EMFILE}
    with pytest.raises(NotPermittedError, match="hard limit"):
        PerfReader(call=call).read(machine.node)
    assert call.descriptors == set()


def test_a_machine_without_counters_has_none(tmp_path: Path) -> None:
    machine = x86(tmp_path, ZEN4)
    call = StandIn()
    call.denied = errno.ENOENT
    with pytest.raises(NotHereError, match="a virtual machine without a PMU"):
        PerfReader(call=call).read(machine.node)


def test_a_recording_has_no_counters(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        PerfReader().read(x86(tmp_path, ZEN4).node)


# The machine itself

CPU_CLOCK, TASK_CLOCK, CONTEXT_SWITCHES = (PerfEvent(1, config) for config in (0, 1, 3))


@contextmanager
def open_live(events: list[PerfEvent]) -> Generator[tuple[PerfCall, int]]:
    call = PerfCall()
    descriptors: list[int] = []
    try:
        for event in events:
            try:
                descriptors.append(call.open(event, 0, descriptors[0] if descriptors else -1))
            except OSError as error:
                pytest.skip(str(explain_error(error, "")))
        call.enable(descriptors[0])
        yield call, descriptors[0]
    finally:
        for descriptor in reversed(descriptors):
            call.close(descriptor)


def delta(call: PerfCall, leader: int) -> Counts:
    before = parse_counts(call.read(leader))
    time.sleep(0.05)
    after = parse_counts(call.read(leader))
    values = (new - old for new, old in zip(after.values, before.values, strict=True))
    enabled, running = after.enabled - before.enabled, after.running - before.running
    return Counts(enabled, running, tuple(values))


def test_clocks_of_the_kernel_count_nanoseconds() -> None:
    with open_live([CPU_CLOCK, TASK_CLOCK, CONTEXT_SWITCHES]) as (call, leader):
        compute_deltas = delta(call, leader)
    assert compute_deltas.enabled == compute_deltas.running >= 50_000_000
    assert compute_deltas.values[0] == pytest.approx(compute_deltas.running, rel=0.1)
    assert compute_deltas.values[1] == pytest.approx(compute_deltas.running, rel=0.1)


def test_counters_of_several_pmus_count_in_one_group() -> None:
    node = Node()
    try:
        number = parse_type(node.read(f"{DEVICES}/msr/type"))
        node.read(f"{DEVICES}/msr/events/tsc")
    except CcagentError as error:
        pytest.skip(str(error))
    with open_live([CPU_CLOCK, PerfEvent(number, 0)]) as (call, leader):
        compute_deltas = delta(call, leader)
        rate = call.frequency(leader)
    ticks = compute_deltas.values[1] * 1e9 / compute_deltas.running
    assert 1e8 < ticks < 1e10
    assert rate == pytest.approx(ticks, rel=0.01) or rate == 0


def test_the_live_machine_counts_a_busy_loop_or_says_why_not() -> None:
    reader = PerfReader()
    refusal = ""
    try:
        reader.read(Node())
    except (NotHereError, NotPermittedError) as error:
        refusal = str(error)
    end = time.monotonic() + 0.3
    while not refusal and time.monotonic() < end:
        pass
    if refusal:
        assert re.search("PMU|CAP_PERFMON|filter of system calls", refusal)
        return
    gauges = reader.read(Node())
    reader.close()
    assert reader.errors == []
    assert 0.05 < max(values(gauges, "ipc").values()) < 10
    assert all(1e8 < clock < 1e10 for clock in values(gauges, "clock").values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_user_without_rights_is_told_what_helps() -> None:
    paranoid = Node().read("proc/sys/kernel/perf_event_paranoid").decode().strip()
    call = PerfCall()
    refusal = ""
    os.seteuid(65534)
    try:
        call.close(call.open(CPU_CLOCK, 0))
    except OSError as error:
        refusal = str(explain_error(error, paranoid))
    finally:
        os.seteuid(0)
    assert ("CAP_PERFMON" in refusal) == (int(paranoid) > 0)
