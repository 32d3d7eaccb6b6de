"""Metrics of ccagent itself: its process, and in the daemon its agents and sinks."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from ccagent.agents.metrics.readers.base import NODE, Count, Scope
from ccagent.agents.metrics.readers.own_counters import OwnCountersReader
from ccagent.counters import AgentCounters, DaemonCounters, SinkCounters
from ccagent.errors import NotHereError
from ccagent.machine.counters import Rates
from ccagent.machine.node import Node
from tests.support.tree import TreeNode


def agent(name: str) -> Scope:
    return Scope("node", "", "agent", name)


def sink(name: str) -> Scope:
    return Scope("node", "", "sink", name)


class Daemon:
    """A node whose daemon has counted what the test says."""

    def __init__(self, root: Path) -> None:
        self.agents = {"sample": AgentCounters(), "metrics": AgentCounters()}
        self.sinks = {"store": SinkCounters(), "file": SinkCounters()}
        self.node = TreeNode(root)
        self.node.own_counters = lambda: DaemonCounters(self.agents, self.sinks)
        self.reader = OwnCountersReader()
        self._rates: Rates[Scope] = Rates()
        self._moment = 0.0
        self.tick()

    def tick(self) -> dict[tuple[str, Scope], float]:
        """Advance the clock by ten seconds and return the metrics."""
        self._moment += 10
        found: dict[tuple[str, Scope], float] = {}
        counts: list[Count] = []
        for each in self.reader.read(self.node):
            if isinstance(each, Count):
                counts.append(each)
            else:
                found[each.metric, each.scope] = each.value
        rates = self._rates.of(counts, self.reader.metrics, self._moment)
        return found | {(metric, scope): rate for metric, rate, scope in rates}


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def test_agents_are_counted_together_and_one_by_one(daemon: Daemon) -> None:
    daemon.agents["sample"] = AgentCounters(samples=4, errors=2, skipped=1, cpu_seconds=0.5)
    daemon.agents["metrics"] = AgentCounters(samples=6, errors=1)
    found = daemon.tick()
    assert found["ccagent_samples", NODE] == 1.0
    assert found["ccagent_errors", NODE] == pytest.approx(0.3)
    assert found["ccagent_skipped", NODE] == pytest.approx(0.1)
    assert found["ccagent_agent_samples", agent("sample")] == pytest.approx(0.4)
    assert found["ccagent_agent_errors", agent("metrics")] == pytest.approx(0.1)
    assert found["ccagent_agent_skipped", agent("sample")] == pytest.approx(0.1)
    assert found["ccagent_agent_cpu", agent("sample")] == pytest.approx(5.0)
    assert found["ccagent_agent_cpu", agent("metrics")] == 0.0


def test_sinks_are_counted_together_and_one_by_one(daemon: Daemon) -> None:
    daemon.sinks["store"] = SinkCounters(
        queued=50, backlog=30, backlog_bytes=9000, sent=20, acknowledged=10, retried=10, rejected=5,
        dropped=5,
    )  # fmt: skip
    daemon.sinks["file"] = SinkCounters(queued=10, backlog=1, backlog_bytes=500, sent=10)
    found = daemon.tick()
    assert {key: found[f"ccagent_{key}", NODE] for key in (
        "queued", "sent", "acknowledged", "retried", "rejected", "dropped", "backlog",
        "backlog_bytes",
    )} == {
        "queued": 6.0, "sent": 3.0, "acknowledged": 1.0, "retried": 1.0, "rejected": 0.5,
        "dropped": 0.5, "backlog": 31, "backlog_bytes": 9500,
    }  # fmt: skip
    assert found["ccagent_sink_backlog", sink("store")] == 30
    assert found["ccagent_sink_backlog_bytes", sink("file")] == 500
    assert found["ccagent_sink_dropped", sink("store")] == pytest.approx(0.5)


def test_one_that_begins_anew_leaves_no_trace_in_the_sum(daemon: Daemon) -> None:
    daemon.agents = {"sample": AgentCounters(samples=100), "metrics": AgentCounters(samples=1000)}
    daemon.tick()
    daemon.agents = {"sample": AgentCounters(samples=2), "metrics": AgentCounters(samples=1010)}
    assert daemon.tick()["ccagent_samples", NODE] == pytest.approx(1.2)
    del daemon.agents["sample"]
    assert daemon.tick()["ccagent_samples", NODE] == 0.0


def test_a_sink_without_a_name_to_send_counts_in_the_sum(daemon: Daemon) -> None:
    daemon.sinks = {name: SinkCounters(backlog=2) for name in ("", "a\nb", "c\\", "nats://h:4222")}
    found = daemon.tick()
    assert found["ccagent_backlog", NODE] == 8
    by_sink = [scope.stype_id for metric, scope in found if metric == "ccagent_sink_backlog"]
    assert by_sink == ["nats://h:4222"]


def test_the_process_has_cpu_time_and_memory() -> None:
    reader = OwnCountersReader()
    process = psutil.Process()
    before = sum(process.cpu_times()[:2])
    told = {each.metric: each.value for each in reader.read(Node())}
    after = sum(process.cpu_times()[:2])
    assert set(told) == {"ccagent_cpu", "ccagent_mem_used"}
    assert before - 0.02 <= told["ccagent_cpu"] / 1e6 <= after + 0.02
    assert told["ccagent_mem_used"] == pytest.approx(process.memory_info().rss, rel=0.1)
    assert reader.absent["ccagent_errors"] == "only the daemon counts this"
    assert "ccagent_cpu" not in reader.absent


def test_a_cpu_that_is_busy_is_a_hundred_percent() -> None:
    rates: Rates[Scope] = Rates()
    reader = OwnCountersReader()
    first, _ = reader.read(Node())
    assert isinstance(first, Count)
    rates.of([first], reader.metrics, 0.0)
    one_more = first._replace(value=first.value + 1_000_000)
    assert rates.of([one_more], reader.metrics, 1.0) == [("ccagent_cpu", 100.0, NODE)]


def test_every_metric_is_told_by_the_daemon(daemon: Daemon) -> None:
    assert {metric for metric, _ in daemon.tick()} == set(daemon.reader.metrics)


def test_a_handful_is_sent_without_being_asked_for() -> None:
    assert {name for name, metric in OwnCountersReader.metrics.items() if metric.is_default} == {
        "ccagent_cpu", "ccagent_mem_used", "ccagent_errors", "ccagent_backlog", "ccagent_dropped",
    }  # fmt: skip


def test_a_recorded_machine_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="a recorded machine has no ccagent"):
        OwnCountersReader().read(TreeNode(tmp_path))
