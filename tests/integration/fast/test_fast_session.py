"""A scheduler by the specification talks to the daemon through a broker with TLS."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.fast.conftest import FastDaemon, FastSite
from tests.support.fast_scheduler import PATIENCE, values
from tests.support.running import CCAGENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fast_scheduler import FastScheduler

NODE_KPIS = ["Node memory usage", "Node Cpu usage", "Node Network Interconnect bandwidth"]


@pytest.fixture
def daemon(fast_site: FastSite, fast_scheduler: FastScheduler) -> Iterator[FastDaemon]:
    daemon = FastDaemon(fast_site, "mmbwmon = true\nmax-rate = 2.0")
    fast_scheduler.wait_for_task("init")
    yield daemon
    daemon.stop()


def test_an_agent_registers_and_reports_what_it_was_told_to(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    (init,) = fast_scheduler.of_task("init")
    assert init.document == {"task": "init", "source": "c1", "hostname": "c1"}
    assert init.topic == "fast/agent/c1/status"

    sent = time.monotonic()
    name = fast_scheduler.init_agent(NODE_KPIS, 1)
    assert fast_scheduler.answer(name) == {
        "task": "configuration", "source": "c1", "status": "accepted", "id": name,
    }  # fmt: skip
    reports = fast_scheduler.wait_for_task("KPI", 4)
    assert list(values(reports[-1])) == [NODE_KPIS[0], NODE_KPIS[1], NODE_KPIS[2]]
    assert "result" not in reports[-1].document
    # The fourth is due four seconds after the configuration; a busy machine only delays it.
    assert all(each.moment >= sent + number for number, each in enumerate(reports, 1))
    assert not any(each.is_retained for each in fast_scheduler.reports)


def test_a_new_configuration_takes_the_place_of_the_old_one(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    fast_scheduler.answer(fast_scheduler.init_agent(NODE_KPIS, 1))
    fast_scheduler.wait_for_task("KPI")
    name = fast_scheduler.init_agent(["Node Cpu usage"], 1, level="")
    fast_scheduler.answer(name)
    seen = fast_scheduler.reports.index(fast_scheduler.answers(name)[0])
    # A report of the old configuration may have been on its way.
    for report in fast_scheduler.wait_for_task("KPI", 3, after=seen)[1:]:
        assert list(values(report)) == ["Node Cpu usage"]


def test_a_configuration_that_is_denied_changes_nothing(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 1))
    denied = fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 0))
    assert denied["status"] == "denied"
    assert denied["details"] == "repeat: 0 s, at least 1 s (max-rate of the node)"
    denied = fast_scheduler.answer(fast_scheduler.init_agent(["Node colour"], 1))
    assert denied["status"] == "denied"
    assert denied["details"].startswith("KPI.categories: unknown: 'Node colour'; allowed: ")
    seen = len(fast_scheduler.reports)
    assert values(fast_scheduler.wait_for_task("KPI", 1, after=seen)[0]).keys() == {
        "Node Cpu usage"
    }


def test_an_agent_that_ends_says_so(daemon: FastDaemon, fast_scheduler: FastScheduler) -> None:
    assert daemon.stop() == 0
    (quit_,) = fast_scheduler.wait_for_task("quit")
    assert quit_.document["source"] == "c1"


def test_the_broker_says_that_a_killed_agent_is_gone(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    daemon.kill()
    (quit_,) = fast_scheduler.wait_for_task("quit")
    assert quit_.document["source"] == "c1"


def test_garbage_is_answered_or_ignored_and_changes_nothing(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    task = "fast/agent/c1/task/init_agent"
    for text in (
        "[",
        "&a [*a]",
        "\0",
        "task: [",
        "!!python/object/apply:os.abort []",
        "",
        "{" * 50_000,
    ):
        fast_scheduler.send(task, text)
    fast_scheduler.send("fast/migfra/c1/result", "result: vm exploded")
    name = fast_scheduler.init_agent(["Node Cpu usage"], 1)
    assert fast_scheduler.answer(name)["status"] == "accepted"
    denied = [each for each in fast_scheduler.of_task("configuration") if "id" not in each.document]
    assert {each.document["status"] for each in denied} == {"denied"}
    assert "refused" in daemon.log


def test_the_status_shows_what_is_in_force(
    daemon: FastDaemon, fast_scheduler: FastScheduler
) -> None:
    fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 1))
    fast_scheduler.wait_for_task("KPI")
    command = [*CCAGENT, "fast", "status", "--config", str(daemon.file)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "state          monitoring" in shown
    assert "Node Cpu usage; every 1 s; set by fast/agent/c1/task/init_agent" in shown
    told = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    assert json.loads(told)["configuration"]["repeat"] == 1
    assert json.loads(told)["kpis"]["node"].keys() == {"Node Cpu usage"}


def test_only_who_the_access_list_names_can_configure(
    daemon: FastDaemon, fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    job = fast_site.scheduler("job")
    try:
        name = job.init_agent(["Node Cpu usage"], 1)
    finally:
        job.stop()
    other = fast_scheduler.init_agent(["Node memory usage"], 1)
    assert fast_scheduler.answer(other)["status"] == "accepted"
    assert not fast_scheduler.answers(name)


def test_applications_send_their_kpis_to_the_sinks(
    fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    out = fast_site.directory / "out"
    daemon = FastDaemon(
        fast_site,
        f'relay = "all"\nevery = "1s"\n[sinks.files]\nurl = "dir:{out}"\nformat = "line"',
    )
    try:
        fast_scheduler.wait_for_task("init")
        job = fast_site.scheduler("job")
        try:
            written = ""
            deadline = time.monotonic() + PATIENCE
            while "fast_app_memory_usage" not in written:
                assert time.monotonic() < deadline, daemon.log
                job.send(
                    "fast/application/77/KPIs",
                    "---\ntask: KPIs\nsource: 77\nsupported_KPI:\n  - memory usage : 5\n---",
                )
                time.sleep(0.2)
                written = "".join(each.read_text() for each in out.rglob("*") if each.is_file())
        finally:
            job.stop()
        assert "fast_app_memory_usage,cluster=fox,hostname=c1,stype=job,stype-id=77" in written
        assert "fast_node_cpu,cluster=fox,hostname=c1,type=node" in written
    finally:
        daemon.stop()
