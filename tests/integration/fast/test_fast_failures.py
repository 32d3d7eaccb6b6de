"""A broker that is slow or refuses, messages that are too large, another agent of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from ccagent.config.duration import Duration
from tests.integration.fast.conftest import FastSite, running
from tests.support.fast_scheduler import PATIENCE
from tests.support.mqtt_broker import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fast_scheduler import FastScheduler


def test_answers_outlast_a_broker_that_falls_silent(
    fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    settings = structs.replace(fast_site.settings(), answer_limit=Duration("2s"))
    with running(settings) as runtime:
        fast_scheduler.wait_for_task("init")
        name = fast_scheduler.init_agent(["Node Cpu usage"], 1)
        fast_site.broker.pause()
        try:
            wait_for(
                lambda: (
                    "within 2 s" in str(runtime.describe().get("error"))
                    or bool(fast_scheduler.answers(name))
                ),
                PATIENCE,
            )
        finally:
            fast_site.broker.go_on()
        assert fast_scheduler.answer(name)["status"] == "accepted"


def test_a_message_that_is_too_large_is_dropped_by_the_broker(
    fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    with running(fast_site.settings()):
        fast_scheduler.wait_for_task("init")
        fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 1))
        fast_scheduler.send("fast/agent/c1/task/init_agent", "x" * 100_000)
        fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 2))
        assert len(fast_scheduler.of_task("init")) == 1


def test_a_message_that_is_too_large_costs_a_session_of_mqtt_3(
    fast_site: FastSite, fast_scheduler: FastScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    settings = structs.replace(fast_site.settings(), protocol="3.1.1")
    with running(settings):
        fast_scheduler.wait_for_task("init")
        fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 1))
        fast_scheduler.send("fast/agent/c1/task/init_agent", "x" * 100_000)
        fast_scheduler.wait_for_task("init", 2)
        assert "a too large message has ended the connection" in caplog.text
        fast_scheduler.answer(fast_scheduler.init_agent(["Node Cpu usage"], 2))
        assert len(fast_scheduler.of_task("init")) == 2


def test_two_agents_of_one_name_are_logged(
    fast_site: FastSite,
    fast_scheduler: FastScheduler,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = fast_site.settings()
    other = structs.replace(settings, state_directory=str(tmp_path / "other"))
    with running(settings):
        fast_scheduler.wait_for_task("init")
        with running(other):
            wait_for(lambda: "ccagent-fast-c1" in caplog.text, PATIENCE)


def test_a_second_agent_waits_for_the_directory(
    fast_site: FastSite, fast_scheduler: FastScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = fast_site.settings()
    with running(settings) as first:
        fast_scheduler.wait_for_task("init")
        with running(settings) as second:
            wait_for(lambda: "waiting for it" in caplog.text, PATIENCE)
            assert second.describe()["state"] == "starting"
            first.close()
            fast_scheduler.wait_for_task("init", 2)


def test_answers_that_may_not_be_published_are_logged(
    fast_site: FastSite, fast_scheduler: FastScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    access = fast_site.directory / "access"
    with running(fast_site.settings()):
        fast_scheduler.wait_for_task("init")
        access.write_text(access.read_text().replace("topic write fast/agent/c1/status\n", ""))
        fast_site.broker.reload()
        fast_scheduler.init_agent(["Node Cpu usage"], 1)
        wait_for(
            lambda: "refuses an answer to fast/agent/c1/status (reason 0x87)" in caplog.text,
            PATIENCE,
        )
