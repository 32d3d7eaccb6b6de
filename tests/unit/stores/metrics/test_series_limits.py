"""New series: how many a sender may make, and what happens to the values that are known."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.machine.node import Node
from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.checking import printable_lines
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.general import LineMessage
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.own_metrics import _format, _ingested
from ccagent.stores.metrics.series_limits import MemoryPlan, SeriesLimits, plan_memory
from ccagent.stores.metrics.store import MetricStore
from tests.unit.stores.metrics import support
from tests.unit.stores.metrics.support import NOW, data, line, new_ingest, new_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ccagent.stores.metrics.responses import StoreResponse


def cores(numbers: Iterable[int], host: str = "n1", value: float = 1) -> bytes:
    return "".join(
        f"load,cluster=fox,hostname={host},type=core,type-id={number} value={value} {NOW}\n"
        for number in numbers
    ).encode()


def post(ingest: LineIngest, body: bytes, address: str = "192.0.2.1") -> StoreResponse:
    api = StoreApi(ingest._store, ingest, GroupCommit(None, "write"))
    return support.post(api, body, address=address)


def body_of(response: StoreResponse) -> dict[str, Any]:
    assert isinstance(response.body, bytes)
    found: dict[str, Any] = json.loads(response.body)
    return found


def limited(store: MetricStore, **limits: Any) -> LineIngest:
    return new_ingest(store, series=SeriesLimits(store, **limits))


def test_a_sender_makes_so_many_series_of_a_node_in_an_hour() -> None:
    times = [NOW]
    store = MetricStore(new_store().catalogue, lambda: times[0])
    ingest = limited(store, of_node=300)
    answer = post(ingest, cores(range(1000)))
    found = body_of(answer)
    assert answer.status == 429
    assert (found["stored"], found["refused"], found["bad"]) == (300, 700, 700)
    assert "partial write: 700 values refused, 300 stored: address 192.0.2.1" in found["error"]
    assert found["lines"][0]["line"] == 301
    assert answer.more == b"Retry-After: %d\r\n" % (3600 - NOW % 3600)
    # Known series are stored, in the same message and alone.
    assert body_of(post(ingest, cores([*range(5), 5000])))["stored"] == 5
    assert post(ingest, cores(range(300))).status == 200
    # Other nodes, other senders and the next hour have their own.
    assert post(ingest, cores(range(300), "n2")).status == 200
    assert post(ingest, cores(range(1000, 1300)), "192.0.2.2").status == 200
    times[0] += 3600
    assert post(ingest, cores(range(2000, 2300))).status == 200
    assert ingest.series.refused == 701


def test_a_limit_within_the_new_series_of_a_level_admits_the_first_ones() -> None:
    store = MetricStore(MetricCatalogue({"*": StoredMetric(60, None)}), lambda: NOW)
    ingest = limited(store, of_node=5)
    for host in ("n1", "n2"):  # the second one with known names: its lines are one run
        body = "".join(
            f"m{n},cluster=fox,hostname={host} value={n} {NOW}\n" for n in range(7)
        ).encode()
        for _ in range(2):
            found = body_of(post(ingest, body))
            assert (found["stored"], found["refused"]) == (5, 2)
            assert [bad["line"] for bad in found["lines"]] == [6, 7]
        level = store.root.find(("fox", host))
        assert level is not None
        values = {name: one.group.column_bounds(one.column) for name, one in level.series.items()}
        assert values == {f"m{n}": (0, 1) for n in range(5)}
        assert [data(store, NOW, NOW + 60, f"m{n}", host) for n in range(5)] == [
            [n] for n in range(5)
        ]


def test_invented_nodes_have_half_of_the_memory_for_values() -> None:
    times = [NOW]
    store = MetricStore(new_store().catalogue, lambda: times[0])
    plan = MemoryPlan(1 << 20, 0)
    ingest = limited(store, of_sender=plan.series_of_sender, retention=48 * 3600)
    for number in range(12):
        post(ingest, cores(range(10), f"invented{number}"))
    assert store.series == 120
    answer = post(ingest, cores(range(10), "invented12"))
    assert (answer.status, body_of(answer)["stored"]) == (429, 8)
    assert "192.0.2.1 has made 128 series during the retention" in body_of(answer)["error"]
    assert answer.more == b"Retry-After: %d\r\n" % (48 * 3600 - NOW % (48 * 3600))
    # Known series, other senders, and the time after the retention have their own.
    assert post(ingest, cores(range(10), "invented0")).status == 200
    assert post(ingest, cores(range(10), "n1"), "192.0.2.2").status == 200
    times[0] += 48 * 3600
    assert post(ingest, cores(range(10), "n2")).status == 200


@pytest.mark.parametrize("cause", ["process", "values", "series"])
def test_a_full_store_refuses_new_series_alone(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ccagent.stores.metrics.series_limits._BETWEEN", -1)
    store, resident = new_store(), [0]
    limits = SeriesLimits(
        store,
        most=100 if cause == "series" else 10**6,
        memory=1 << 30,
        resident=lambda: resident[0],
    )
    ingest = new_ingest(store, series=limits)
    assert post(ingest, cores(range(100))).status == 200
    if cause == "process":
        resident[0] = 2 << 30
    store.is_full = cause == "values"
    answer = post(ingest, cores(range(101)))
    assert (answer.status, body_of(answer)["stored"]) == (507, 100)
    assert "new series are refused" in body_of(answer)["error"]
    assert store.series == 100


def test_bad_lines_and_refused_series_are_both_listed() -> None:
    ingest = limited(new_store(), of_node=1)
    answer = post(ingest, (line("load", 1) + line("load", "x") + line("power", 1)).encode())
    found = body_of(answer)
    assert (answer.status, found["stored"], found["bad"], found["refused"]) == (429, 1, 2, 1)
    assert [one["line"] for one in found["lines"]] == [2, 3]


def test_what_each_sender_costs_is_counted() -> None:
    ingest = limited(new_store(), of_node=10)
    body = cores(range(11))
    post(ingest, body)
    post(ingest, line("load", 1).encode(), "192.0.2.2")
    first, second = ingest.senders.dearest()
    assert first == {
        "sender": "address 192.0.2.1", "messages": 1, "bytes": len(body), "new_series": 10,
        "refused_lines": 1,
    }  # fmt: skip
    assert second["sender"] == "address 192.0.2.2"
    post(ingest, line("load", 1).encode(), 'a"b\n')
    text = "\n".join(_format(_ingested(ingest)).decode().splitlines())
    assert text.count("# TYPE ccagent_store_sender_bytes_total counter") == 1
    assert 'ccagent_store_sender_messages_total{sender="address a\\"b\\\\n"} 1' in text
    table = printable_lines(text.encode())
    assert f'sender_bytes_total{{sender="address 192.0.2.1"}} {len(body)}\n' in table


@pytest.mark.slow
def test_unknown_lines_are_written_in_turns() -> None:
    """Between two pieces of at most 150 lines everything else goes on, whoever sends."""
    ingest = limited(new_store())
    done: list[int] = []
    turns = [0]

    async def write(number: int) -> None:
        message = LineMessage("", f"sender {number}")
        await ingest.write_in_turns(cores(range(3000), f"n{number}"), message)
        done.append(message.stored)

    async def write_all() -> None:
        writing = [asyncio.create_task(write(number)) for number in range(5)]
        while len(done) < 5:
            series = ingest._store.series
            await asyncio.sleep(0)
            assert ingest._store.series - series <= 150
            turns[0] += 1
        await asyncio.gather(*writing)

    asyncio.run(write_all())
    assert done == [3000] * 5
    assert turns[0] >= 5 * 3000 / 150


@pytest.mark.slow
def test_many_messages_of_a_sender_have_the_turns_of_one() -> None:
    ingest = limited(new_store())
    ended: list[str] = []

    async def write(number: int, sender: str) -> None:
        message = LineMessage("", sender)
        await ingest.write_in_turns(cores(range(1500), f"n{number}"), message)
        ended.append(sender)

    async def write_all() -> None:
        hostile = [asyncio.create_task(write(number, "hostile")) for number in range(50)]
        await asyncio.gather(write(99, "other"), *hostile)

    asyncio.run(write_all())
    # Of 50 messages of the same size that began before, one or two have ended.
    assert ended.index("other") <= 2


def test_a_line_without_a_time_has_that_of_the_piece_before() -> None:
    first = cores(range(149)) + f"load,cluster=fox,hostname=n1 value=1 {NOW - 600}\n".encode()
    body = first + b"power,cluster=fox,hostname=n1 value=2\n"
    store = new_store()
    assert new_ingest(store).write(body).stored == 151
    found = store.find(("fox", "n1"), "power")
    assert found is not None
    assert found.group.start == NOW - 630


@pytest.mark.parametrize(
    ("cap", "plan"),
    [("0B", MemoryPlan(0, 0)), ("auto", MemoryPlan(512 << 20, 858993459)),
     ("100MB", MemoryPlan(100 << 20, 858993459))],
)  # fmt: skip
def test_limits_of_memory_follow_the_control_group(
    cap: str, plan: MemoryPlan, tmp_path: Path
) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/ccagent-store.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1073741824\n")
    (group.parent / "memory.max").write_text("max\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/ccagent-store.service\n")
    assert plan_memory(cap, Node(root=str(tmp_path))) == plan
