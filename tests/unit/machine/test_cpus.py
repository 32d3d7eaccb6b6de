"""sysinfo, cpus: counting sockets, cores and threads, and naming the model.

The texts of /proc/cpuinfo were written by hand in the form that the kernel of each architecture
prints, shortened to the lines that matter.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.cpus import (
    Core,
    Cpus,
    count_cores,
    count_processors,
    model_name,
    read_cpus,
    read_model,
)
from ccagent.machine.node import Node
from ccagent.machine.procfs.system import parse_cpu_list, parse_cpuinfo, parse_topology_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CPUS = "sys/devices/system/cpu"

XEON = "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"


def x86(number: int, physical: int, *, siblings: int, cores: int, name: str = XEON) -> str:
    return (
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
        f"model name\t: {name}\nphysical id\t: {physical}\nsiblings\t: {siblings}\n"
        f"core id\t\t: 0\ncpu cores\t: {cores}\nflags\t\t: fpu vme\npower management:\n\n"
    )


def arm(number: int, implementer: str, part: str) -> str:
    return (
        f"processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n"
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x3\n"
        f"CPU part\t: {part}\nCPU revision\t: 1\n\n"
    )


TWO_SOCKETS_SMT = "".join(x86(n, n // 2 % 2, siblings=4, cores=2) for n in range(8))
HYBRID = "".join(x86(n, 0, siblings=24, cores=16) for n in range(24))
VIRTUAL_X86 = "processor\t: 0\nmodel name\t: QEMU Virtual CPU\n\nprocessor\t: 1\n\n"
ALTRA = "".join(arm(n, "0x41", "0xd0c") for n in range(4))
OLD_ARM64 = (
    "Processor\t: AArch64 Processor rev 1 (aarch64)\nprocessor\t: 0\nprocessor\t: 1\n"
    "Features\t: fp asimd\nCPU implementer\t: 0x50\nCPU part\t: 0x000\n\nHardware\t: APM X-Gene\n"
)
POWER9 = (
    "".join(
        f"processor\t: {n}\ncpu\t\t: POWER9 (raw), altivec supported\n"
        "clock\t\t: 2050.000000MHz\nrevision\t: 2.2 (pvr 004e 1202)\n\n"
        for n in range(8)
    )
    + "timebase\t: 512000000\nplatform\t: PowerNV\nmodel\t\t: 8335-GTH\n"
    "machine\t\t: PowerNV 8335-GTH\nfirmware\t: OPAL\nMMU\t\t: Radix\n"
)
RISCV = "".join(
    f"processor\t: {n}\nhart\t\t: {n + 1}\nisa\t\t: rv64imafdc_zicntr\nmmu\t\t: sv39\n"
    "uarch\t\t: sifive,u74-mc\nmvendorid\t: 0x489\n\n"
    for n in range(4)
)


def blocks(text: str) -> list[dict[str, str]]:
    return parse_cpuinfo(text.encode())


def tree(root: Path, files: Mapping[str, str]) -> Node:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Node(root=str(root), hostname="n1", cluster="c1")


def topology(
    siblings: Mapping[int, str], sockets: Mapping[int, int], name: str = "core_cpus_list"
) -> dict[str, str]:
    """The files of cpus, whose numbers are the keys."""
    files: dict[str, str] = {}
    for cpu, listed in siblings.items():
        files[f"{CPUS}/cpu{cpu}/topology/{name}"] = f"{listed}\n"
        files[f"{CPUS}/cpu{cpu}/topology/physical_package_id"] = f"{sockets[cpu]}\n"
    return files


def counted(node: Node) -> Cpus | None:
    errors: list[CcagentError] = []
    result = read_cpus(node, errors)
    assert errors == []
    return result


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (b"0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]),
        (b"0\n", [0]),
        (b"\n", []),
        (b"", []),
        (b"65535\n", [65535]),
        (b"32-34\n\0", [32, 33, 34]),
    ],
)
def test_a_cpu_list_is_ranges_and_numbers(text: bytes, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    "text",
    [
        *(b"0-99999999999", b"99999999999", b"65536", b"0-", b"-1", b"1,,2", b"0 1", b"0x1"),
        *(b"3-1", b"1-4,3", b"1,1", b"a", b"\xff", b"0-1-2", b"+1", b"1_0", b"00000000000001"),
        *(b"0\0001", b"0\0\0"),
    ],
)
def test_what_no_kernel_writes_is_no_cpu_list(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_cpu_list(text)


def test_a_long_list_of_the_same_range_is_refused_at_once() -> None:
    with pytest.raises(UnparsableError):
        parse_cpu_list(b",".join([b"0-65535"] * 1_000_000))


@given(st.binary() | st.text("0123456789-, \n").map(str.encode))
def test_a_cpu_list_is_understood_or_unparsable(text: bytes) -> None:
    try:
        cpus = parse_cpu_list(text)
    except UnparsableError:
        return
    assert cpus == sorted(set(cpus))
    assert all(0 <= cpu <= 65535 for cpu in cpus)


@given(st.sets(st.integers(0, 65535)))
def test_single_numbers_come_back_from_a_cpu_list(cpus: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, sorted(cpus))).encode()) == sorted(cpus)


@given(st.binary())
def test_a_socket_is_understood_or_unparsable(text: bytes) -> None:
    with contextlib.suppress(UnparsableError):
        assert parse_topology_id(text) >= -1


def test_an_unknown_socket_is_minus_one() -> None:
    assert parse_topology_id(b"-1\n") == -1
    assert parse_topology_id(b"36\n") == 36


@given(st.binary() | st.text("processor: 0123\n\t").map(str.encode))
def test_any_cpuinfo_can_be_read(text: bytes) -> None:
    table = parse_cpuinfo(text)
    assert all(table)
    model_name(table)
    cpus = count_processors(table)
    assert cpus is None or min(cpus) >= 1


@pytest.mark.parametrize(
    ("text", "cpus", "model"),
    [
        pytest.param(TWO_SOCKETS_SMT, Cpus(2, 2, 2), XEON, id="x86_64"),
        pytest.param(HYBRID, Cpus(1, 16, 2), XEON, id="hybrid x86_64"),
        pytest.param(VIRTUAL_X86, Cpus(1, 2, 1), "QEMU Virtual CPU", id="virtual x86_64"),
        pytest.param(ALTRA, Cpus(1, 4, 1), "Neoverse N1", id="aarch64"),
        pytest.param(OLD_ARM64, Cpus(1, 2, 1), "X-Gene", id="old aarch64"),
        pytest.param(POWER9, Cpus(1, 8, 1), "POWER9 (raw)", id="ppc64le"),
        pytest.param(RISCV, Cpus(1, 4, 1), "sifive,u74-mc", id="riscv64"),
        pytest.param("", None, "", id="empty"),
        pytest.param("# processors    : 2\nbogomips per cpu: 1\n", None, "", id="s390x"),
    ],
)
def test_cpuinfo_of_each_architecture(text: str, cpus: Cpus | None, model: str) -> None:
    assert count_processors(blocks(text)) == cpus
    assert model_name(blocks(text)) == model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (arm(0, "0x41", "0xd03") + arm(1, "0x41", "0xd08"), "Cortex-A53 + Cortex-A72"),
        (arm(0, "0x48", "0xd01") * 2, "Kunpeng 920 (TSV110)"),
        (arm(0, "0x46", "0x001"), "A64FX"),
        (arm(0, "0x61", "0x022") + arm(1, "0x61", "0x023"),
         "Apple M1 Icestorm + Apple M1 Firestorm"),
        (arm(0, "0x41", "0xfff"), "implementer 0x41, part 0xfff"),
        (arm(0, "ARM", "?"), "implementer ARM, part ?"),
        (arm(0, "0x41", "0xd46") + arm(1, "0x41", "0xd4e"), "Cortex-A510 + Cortex-X3"),
        ("processor\t\t: 0\nModel Name\t\t: Loongson-3C5000\n", "Loongson-3C5000"),
        ("processor\t: 0\nisa\t: rv64imafdc\n", "rv64imafdc"),
        ("processor\t: 0\n\nmodel\t: 8335-GTH\n", "8335-GTH"),
        ("processor\t: 0\nclock\t: 1MHz\n", ""),
    ],
)  # fmt: skip
def test_models_that_are_put_together(text: str, model: str) -> None:
    assert model_name(blocks(text)) == model


def test_no_cores_are_no_count() -> None:
    assert count_cores([]) is None


def test_the_largest_socket_and_the_widest_core_count() -> None:
    assert count_cores([Core(0, 2), Core(0, 1), Core(0, 1), Core(1, 1)]) == Cpus(2, 3, 2)


def test_two_sockets_with_two_threads_a_core(tmp_path: Path) -> None:
    siblings = {n: f"{n % 4},{n % 4 + 4}" for n in range(8)}
    sockets = {n: n % 4 // 2 for n in range(8)}
    node = tree(tmp_path, {f"{CPUS}/online": "0-7\n", **topology(siblings, sockets)})
    assert counted(node) == Cpus(2, 2, 2)


def test_siblings_of_a_cpu_that_was_read_are_not_read(tmp_path: Path) -> None:
    files = {f"{CPUS}/online": "0-3\n", **topology({0: "0,2", 1: "1,3"}, {0: 0, 1: 0})}
    assert counted(tree(tmp_path, files)) == Cpus(1, 2, 2)


def test_a_hybrid_processor_has_the_threads_of_its_widest_cores(tmp_path: Path) -> None:
    siblings = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5", 6: "6", 7: "7"}
    files = topology(siblings, dict.fromkeys(siblings, 0))
    assert counted(tree(tmp_path, {f"{CPUS}/online": "0-7\n", **files})) == Cpus(1, 6, 2)


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    # cpu2 and cpu3 are offline: the kernel takes their topology away, here a stale list stays.
    files = {
        f"{CPUS}/online": "0-1,4-5\n",
        f"{CPUS}/cpu2/online": "0\n",
        **topology({0: "0,2", 1: "1,3", 4: "4,6", 5: "5,7"}, {0: 0, 1: 0, 4: 1, 5: 1}),
    }
    assert counted(tree(tmp_path, files)) == Cpus(2, 2, 1)


def test_the_name_before_linux_5_3(tmp_path: Path) -> None:
    files = topology({0: "0-1", 1: "0-1"}, {0: 0, 1: 0}, "thread_siblings_list")
    assert counted(tree(tmp_path, {f"{CPUS}/online": "0-1\n", **files})) == Cpus(1, 1, 2)


def test_cpus_without_a_known_socket_are_in_one(tmp_path: Path) -> None:
    files = topology({0: "0", 1: "1", 2: "2"}, {0: -1, 1: -1, 2: -1})
    assert counted(tree(tmp_path, {f"{CPUS}/online": "0-2\n", **files})) == Cpus(1, 3, 1)


def test_a_list_without_the_cpu_itself_still_makes_its_core(tmp_path: Path) -> None:
    files = topology({0: "1", 2: ""}, {0: 0, 2: 0})
    assert counted(tree(tmp_path, {f"{CPUS}/online": "0-2\n", **files})) == Cpus(1, 2, 2)


def test_cpus_that_can_not_be_read_are_left_out_and_said_once(tmp_path: Path) -> None:
    files = topology({0: "0", 1: "x", 2: "y", 3: "3"}, {0: 0, 1: 0, 2: 0, 3: 0})
    node = tree(tmp_path, {f"{CPUS}/online": "0-3\n", **files})
    errors: list[CcagentError] = []
    assert read_cpus(node, errors) == Cpus(1, 2, 1)
    assert [str(error) for error in errors] == [
        f"/{CPUS}/cpu1/topology/core_cpus_list: not a cpu: b'x'"
    ]


def test_without_sys_cpuinfo_is_counted(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"proc/cpuinfo": TWO_SOCKETS_SMT})
    assert read_cpus(node, errors) == Cpus(2, 2, 2)
    assert [type(error) for error in errors] == [NotHereError]


def test_without_anything_there_is_no_count_and_no_model(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = Node(root=str(tmp_path), hostname="n1", cluster="c1")
    assert read_cpus(node, errors) is None
    assert read_model(node, errors) == ""
    assert {type(error) for error in errors} == {NotHereError}


@pytest.mark.parametrize("text", [TWO_SOCKETS_SMT * 100, TWO_SOCKETS_SMT[:500], XEON * 200])
def test_the_model_stands_at_the_beginning_of_cpuinfo(tmp_path: Path, text: str) -> None:
    errors: list[CcagentError] = []
    expected = XEON if text.startswith("processor") else ""
    assert read_model(tree(tmp_path, {"proc/cpuinfo": text}), errors) == expected
    assert errors == []


def test_cores_far_down_in_cpuinfo_have_their_part_in_the_model(tmp_path: Path) -> None:
    text = "".join(arm(n, "0x41", "0xd05") for n in range(60)) + arm(60, "0x41", "0xd0b")
    node = tree(tmp_path, {"proc/cpuinfo": text})
    assert read_model(node, []) == "Cortex-A55 + Cortex-A76"
