"""Run and wait times of hwthreads, out of /proc/schedstat."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import Scope
from ccagent.agents.metrics.readers.cpu import SchedstatReader
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.counters import Rates
from ccagent.machine.procfs.system import SchedulerTimes, parse_schedstat
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.tree import TreeNode

# Two of the eight hwthreads of a server with version 15, the mask of a domain shortened:
# systemd/systemd, issue 404.
RECORDED = b"""\
version 15
timestamp 4855039882
cpu0 188037 0 1573906835 574514540 339919368 4004785195 1501182590913299 8420652801903980 22467416634
domain0 00000000,00000011 134649152 89534074 19713977 798211662 109752875 197773 172178 89361899 \
2335911 2136442 65868 30733663 347352 337 1095 2135347 604381376 387782326 80163252 3173762028 \
385055253 75881 1792212 385990114 1721 23 1698 0 0 0 0 0 0 1802526934 1024138408 0
cpu1 240297 0 1652691900 649274775 300474859 3986346559 1487405059640541 8160206669741573 22470648751
domain0 00000000,00000022 101129555 65939355 17488230 3938517273 78818577 200632 210924 65728432 \
2818129 2515557 104746 42129311 509671 1533 1915 2513642 608968434 392706477 80098673 3261436001 \
"""  # noqa: E501 - as it was recorded


def test_a_recorded_machine() -> None:
    assert parse_schedstat(RECORDED) == {
        0: SchedulerTimes(1501182590913299, 8420652801903980, 22467416634),
        1: SchedulerTimes(1487405059640541, 8160206669741573, 22470648751),
    }


def test_ten_seconds_later(tmp_path: Path) -> None:
    # In 10 s hwthread 0 ran tasks for 7.5 s, while others waited for 12.5 s, in 4000 turns.
    node, reader, rates = TreeNode(tmp_path), SchedstatReader(), Rates[Scope]()
    node.write("schedstat", RECORDED)
    assert list(rates.of(reader.read(node), reader.metrics, 100.0)) == []
    later = RECORDED.replace(
        b"1501182590913299 8420652801903980 22467416634",
        b"1501190090913299 8420665301903980 22467420634",
    )
    node.write("schedstat", later)
    found = {
        (metric, scope.type_id): value
        for metric, value, scope in rates.of(reader.read(node), reader.metrics, 110.0)
    }
    assert found == {
        ("cpu_load_core", "0"): pytest.approx(2.0),
        ("sched_run", "0"): pytest.approx(75),
        ("sched_wait", "0"): pytest.approx(125),
        ("sched_timeslices", "0"): pytest.approx(400),
        ("cpu_load_core", "1"): 0,
        ("sched_run", "1"): 0,
        ("sched_wait", "1"): 0,
        ("sched_timeslices", "1"): 0,
    }


def test_the_places_are_hwthreads(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    node.write("schedstat", RECORDED)
    scopes = {each.scope for each in SchedstatReader().read(node)}
    assert scopes == {Scope("hwthread", "0"), Scope("hwthread", "1")}


def test_a_kernel_without_statistics(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        SchedstatReader().read(TreeNode(tmp_path))


def test_nothing_is_read_unless_it_is_wanted(tmp_path: Path) -> None:
    reader = SchedstatReader()
    reader.wanted = frozenset({"cpu_user"})
    assert list(reader.read(TreeNode(tmp_path))) == []
    assert not any(metric.is_default for metric in reader.metrics.values())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version 15\ntimestamp 1\n",
        b"version 14\ncpu0 1 2 3 4 5 6 7 8 9\n",
        b"version 15\ncpu0 1 2 3 4 5 6 7 8 9 10 11 12\n",
        b"version 15\ncpu0 1 2 3 4 5 6 7 8\n",
        b"version 15\ncpu0 1 2 3 4 5 6 7 8 99999999999999999999\n",
        b"cpu0 1 2 3 4 5 6 7 8 9\n",
    ],
)
def test_what_is_no_schedstat(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_schedstat(content)


_NUMBERS = st.lists(st.integers(-1, 2**65), min_size=8, max_size=10)


@given(
    st.binary()
    | st.lists(_NUMBERS).map(
        lambda rows: (
            b"version 17\n"
            + "".join(f"cpu{n} {' '.join(map(str, row))}\n" for n, row in enumerate(rows)).encode()
        )
    )
)
def test_any_content_is_understood_or_unparsable(content: bytes) -> None:
    with contextlib.suppress(UnparsableError):
        found = parse_schedstat(content)
        assert found
        assert all(0 <= each <= LARGEST_UINT for times in found.values() for each in times)
