"""A running job on its own node: the control group counts all of it, the daemon saw its peak."""

from __future__ import annotations

from typing import Any

from ccagent.machine.cgroup.counters import JobCounters
from ccagent.views.job.local import KeptJob, ask_daemon, make_figures
from ccagent.views.job.rules import JobReport, make_report
from tests.unit.views.top.support import CARDS, G, snapshot, top_job

COUNTERS = JobCounters(
    cpu_time=int(31.0 * 11560e9), oom_kills=0, pressure_memory=11_560_000, io_read=5
)
KEPT = KeptJob(since=0.0, last=60.0, samples=380, memory_peak=int(110 * G))


def report(kept: KeptJob | None, counters: JobCounters | None, **more: Any) -> JobReport:
    job = top_job(7, **more)
    return make_report(make_figures(job, snapshot(cards=CARDS), counters, kept))


def test_cpu_time_is_that_of_the_control_group() -> None:
    found = report(KEPT, COUNTERS)
    assert found.efficiency.cpu is not None
    assert round(found.efficiency.cpu.percent, 1) == 96.9
    assert found.figures.nodes[0].memory_pressure == 0.1
    assert (found.figures.state, found.figures.samples, found.level) == ("RUNNING", 380, "hint")


def test_the_peak_is_what_the_daemon_saw_or_what_is_now() -> None:
    assert report(KEPT, COUNTERS).figures.nodes[0].memory_peak == 110 * G
    assert report(None, COUNTERS).figures.nodes[0].memory_peak == 101 * G
    assert report(None, COUNTERS).level == "ok"


def test_an_idle_job_is_bad() -> None:
    found = report(None, JobCounters(cpu_time=10**9))
    assert [one.rule for one in found.findings] == ["cpu-zero"]


def test_without_a_control_group_cpu_is_unknown() -> None:
    assert report(None, None).efficiency.cpu is None


def test_cards_of_a_moment_are_no_mean() -> None:
    found = report(None, COUNTERS, gpus=(1, 2))
    assert [one.rule for one in found.findings] == ["gpu-unknown"]


def test_no_daemon_is_no_error() -> None:
    assert ask_daemon(7, "/nowhere/status.sock") == (None, None)
