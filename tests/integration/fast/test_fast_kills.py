"""No answer is lost and none comes twice, whoever is killed with -9."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ccagent.agents.fast import session
from ccagent.agents.fast.runtime import FastRuntime
from ccagent.machine.node import Node
from tests.integration.fast.conftest import FastDaemon, FastSite
from tests.support.effort import IS_NIGHTLY
from tests.support.fast_scheduler import PATIENCE
from tests.support.mqtt_broker import wait_for

if TYPE_CHECKING:
    from tests.support.fast_scheduler import FastScheduler

_KILLS = 20 if IS_NIGHTLY else 8


def test_a_killed_agent_answers_each_request_once(
    fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    """It is killed at moments around the answer: before, while it is stored, sent, released."""
    daemon = FastDaemon(fast_site)
    names: list[str] = []
    try:
        for kill in range(_KILLS):
            fast_scheduler.wait_for_task("init", kill + 1)
            names.append(fast_scheduler.init_agent(["Node Cpu usage"], 1 + kill))
            if kill % 2:
                # At the very moment at which the scheduler has the answer.
                wait_for(lambda: bool(fast_scheduler.answers(names[-1])), PATIENCE)
            else:
                time.sleep(0.04 * kill / _KILLS)
            daemon.kill()
            daemon.start()
        fast_scheduler.wait_for_task("init", _KILLS + 1)
        _assert_each_is_answered_once(fast_scheduler, names)
        # The last one that was accepted is in force, although nobody sent it again.
        wait_for(lambda: "every 20 s" in daemon.log, PATIENCE)
    finally:
        daemon.stop()


def test_a_killed_broker_loses_no_answer(
    fast_site: FastSite, fast_scheduler: FastScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each restart of the broker the agent registers and is configured again."""
    monkeypatch.setattr(session, "_LONGEST_PAUSE_OF_SERVED", 0.1)
    monkeypatch.setattr(session, "_FIRST_PAUSE", 0.1)
    runtime = FastRuntime(Node(hostname="c1", cluster="fox"), fast_site.settings())
    runtime.start()
    names: list[str] = []
    try:
        for kill in range(_KILLS):
            fast_scheduler.wait()
            fast_scheduler.wait_for_task("init", kill + 1)
            names.append(fast_scheduler.init_agent(["Node Cpu usage"], 1 + kill))
            if kill % 2:
                fast_scheduler.answer(names[-1])
            fast_site.broker.save()
            fast_site.broker.kill()
            fast_scheduler.lost()
            fast_site.broker.start()
        fast_scheduler.wait()
        fast_scheduler.wait_for_task("init", _KILLS + 1)
        _assert_each_is_answered_once(fast_scheduler, names)
    finally:
        runtime.close()


def _assert_each_is_answered_once(scheduler: FastScheduler, names: list[str]) -> None:
    wait_for(lambda: all(scheduler.answers(name) for name in names), PATIENCE)
    assert {scheduler.answer(name)["status"] for name in names} == {"accepted"}
    # An answer that came twice would be before this one.
    scheduler.answer(scheduler.init_agent(["Node Cpu usage"], 20))
    assert [len(scheduler.answers(name)) for name in names] == [1] * len(names)
