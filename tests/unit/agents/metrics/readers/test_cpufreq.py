"""Frequencies of hwthreads, out of /sys/devices/system/cpu."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.presets import apply_preset
from ccagent.agents.metrics.readers.base import Gauge, Scope
from ccagent.agents.metrics.readers.cpu import CpufreqReader, parse_frequency
from ccagent.errors import NotHereError, UnparsableError
from tests.support.tree import TreeNode

CPUS = "../sys/devices/system/cpu"

# cpu0 to cpu3 of a server with Linux 6.6.14: HeinleinSupport/check_mk_extensions, issue 151.
RECORDED = ("3392895\n", "3393756\n", "1397416\n", "1396725\n")


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.write(f"{CPUS}/online", "0-3\n")
    for number, text in enumerate(RECORDED):
        node.write(f"{CPUS}/cpu{number}/cpufreq/scaling_cur_freq", text)
    return node


def frequencies(reader: CpufreqReader, node: TreeNode) -> dict[Scope, float]:
    found = list(reader.read(node))
    assert {each.metric for each in found} <= set(reader.metrics)
    return {each.scope: each.value for each in found}


def hwthread(number: int) -> Scope:
    return Scope("hwthread", str(number))


def test_kilohertz_are_hertz_of_each_hwthread(node: TreeNode) -> None:
    assert frequencies(CpufreqReader(), node) == {
        hwthread(0): 3_392_895_000,
        hwthread(1): 3_393_756_000,
        hwthread(2): 1_397_416_000,
        hwthread(3): 1_396_725_000,
    }


def test_the_front_end_has_megahertz(node: TreeNode) -> None:
    (first, *_) = CpufreqReader().read(node)
    how = apply_preset("clustercockpit", first.metric, CpufreqReader.metrics[first.metric].unit)
    assert how.unit == "MHz"
    assert first.value * how.factor == pytest.approx(3392.895)


def test_a_hwthread_that_is_offline_has_none(node: TreeNode) -> None:
    node.write(f"{CPUS}/online", "0,2\n")
    assert set(frequencies(CpufreqReader(), node)) == {hwthread(0), hwthread(2)}


def test_what_the_driver_does_not_know_is_left_out_and_told_once(node: TreeNode) -> None:
    node.write(f"{CPUS}/cpu1/cpufreq/scaling_cur_freq", "<unknown>\n")
    node.write(f"{CPUS}/cpu2/cpufreq/scaling_cur_freq", "0\n")
    reader = CpufreqReader()
    assert set(frequencies(reader, node)) == {hwthread(0), hwthread(3)}
    assert reader.errors == [
        "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq: not a frequency: b'<unknown>\\n'"
    ]
    node.write(f"{CPUS}/cpu1/cpufreq/scaling_cur_freq", "800000\n")
    node.write(f"{CPUS}/cpu2/cpufreq/scaling_cur_freq", "800000\n")
    assert Gauge("cpufreq", 800_000_000, hwthread(1)) in list(reader.read(node))
    assert reader.errors == []


def test_a_machine_without_scaling_has_none(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    with pytest.raises(NotHereError):
        CpufreqReader().read(node)
    node.write(f"{CPUS}/online", "0-1\n")
    with pytest.raises(NotHereError, match="no hwthread with cpufreq/scaling_cur_freq"):
        CpufreqReader().read(node)


def test_nothing_is_read_unless_it_is_wanted(tmp_path: Path) -> None:
    reader = CpufreqReader()
    reader.wanted = frozenset({"clock"})
    assert list(reader.read(TreeNode(tmp_path))) == []
    assert not any(metric.is_default for metric in reader.metrics.values())


@pytest.mark.parametrize(
    "content", [b"", b"-1\n", b"0\n", b"<unknown>\n", b"1 2\n", b"9" * 30, b"100000001\n"]
)
def test_what_is_no_frequency(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_frequency(content)


@given(st.binary(max_size=30) | st.integers().map(lambda number: b"%d\n" % number))
def test_any_content_is_understood_or_unparsable(content: bytes) -> None:
    with contextlib.suppress(UnparsableError):
        assert 0 < parse_frequency(content) <= 10**11
