"""Whatever is killed during a migration: one machine, one definition, an answer that is true."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.machines.conftest import MachineSite
from tests.support.effort import IS_NIGHTLY
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMITED = 'bandwidth = 1\nmigration-limit = "12s"\n'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineSite]:
    """Two hosts whose migrations of a busy machine don't end, before they are aborted."""
    made = MachineSite(tmp_path_factory.mktemp("machines"))
    try:
        for framework in made.frameworks:
            framework.start('settle-limit = "10s"', LIMITED)
        yield made
    finally:
        made.stop()


@pytest.fixture
def busy(site: MachineSite) -> Iterator[str]:
    """A machine whose live migration does not end."""
    site.run("vm-1", guest="busy")
    yield "vm-1"
    site.remove("vm-1")


def _start_migration(site: MachineSite) -> str:
    """Start a migration, and wait until it copies memory."""
    task = site.scheduler.migrate("s1", "vm-1", "s2", migration_type="live")

    def copies() -> bool:
        return "Memory processed" in site.first.virsh("domjobinfo", "vm-1")

    until(copies)
    return task


def _check(site: MachineSite, answer: dict[str, Any], *, is_alive: bool = True) -> None:
    """Compare an answer with what libvirt and the guest show."""
    where = site.libvirt.where("vm-1")
    assert len(where) == 1, where
    host, state = where[0]
    assert (state == "running") == is_alive
    assert answer.get("host", "") == (host if is_alive else "")
    assert answer["state"] == state
    assert answer["status"] == ("success" if host == "s2" and is_alive else "error"), answer
    if is_alive:
        site.libvirt.lives("vm-1")


def _kill_service(site: MachineSite) -> None:
    site.frameworks[0].kill()
    site.frameworks[0].start('settle-limit = "10s"', LIMITED)


def _stop_service(site: MachineSite) -> None:
    site.frameworks[0].stop()
    site.frameworks[0].start('settle-limit = "10s"', LIMITED)


def _kill_source_daemon(site: MachineSite) -> None:
    site.first.kill()
    site.first.start()


def _kill_target_daemon(site: MachineSite) -> None:
    site.second.kill()
    site.second.start()


def _kill_broker(site: MachineSite) -> None:
    site.broker.kill()
    site.broker.start()


def _kill_target_machine(site: MachineSite) -> None:
    os.kill(site.second.process_of("vm-1"), signal.SIGKILL)


@pytest.mark.parametrize(
    "kill",
    [
        _kill_service, _stop_service, _kill_source_daemon, _kill_target_daemon,
        _kill_target_machine, _kill_broker,
    ],
    ids=["service", "stop", "source daemon", "target daemon", "target machine", "broker"],
)  # fmt: skip
def test_a_kill_during_the_copy_leaves_one_machine(
    site: MachineSite, busy: str, kill: Callable[[MachineSite], None]
) -> None:
    task = _start_migration(site)
    kill(site)
    answer = site.scheduler.answer(task)
    assert busy == answer["vm-name"]
    _check(site, answer)


def test_a_machine_that_is_killed_is_not_said_to_run(site: MachineSite, busy: str) -> None:
    task = _start_migration(site)
    os.kill(site.first.process_of(busy), signal.SIGKILL)
    _check(site, site.scheduler.answer(task), is_alive=False)


def test_a_migration_without_end_is_aborted(site: MachineSite, busy: str) -> None:
    site.frameworks[0].stop()
    site.frameworks[0].start("", LIMITED.replace("12s", "2s"))
    # A slow machine may copy memory for a moment only: nothing but the answer is waited for.
    task = site.scheduler.migrate("s1", "vm-1", "s2", migration_type="live")
    until(lambda: site.scheduler.answers(task), 180)
    answer = site.scheduler.answer(task)
    assert "aborted after 2 s" in answer["details"]
    assert busy == answer["vm-name"]
    _check(site, answer)


def test_kills_at_any_moment_leave_one_machine(site: MachineSite) -> None:
    """All steps of a migration are within its first two seconds."""
    chance = random.Random(7)
    for framework in site.frameworks:
        framework.stop()
        framework.start('settle-limit = "10s"')
    for _ in range(60 if IS_NIGHTLY else 4):
        where = site.libvirt.where("vm-1")
        if [state for _, state in where] != ["running"]:
            site.remove("vm-1")
            site.run("vm-1")
            where = site.libvirt.where("vm-1")
        source = ["s1", "s2"].index(where[0][0])
        first, second = site.libvirt.hosts[source], site.libvirt.hosts[1 - source]
        kind = chance.choice(("live", "warm"))
        task = site.scheduler.migrate(
            first.name, "vm-1", second.name, migration_type=kind, vcpu_map=[[0]]
        )
        moment = time.monotonic() + chance.uniform(0, 2)
        until(lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
        victim = chance.choice(("service", "first", "second", "first machine", "second machine"))
        if victim == "service":
            site.frameworks[source].kill()
            site.frameworks[source].start('settle-limit = "10s"')
        elif victim in {"first", "second"}:
            host = first if victim == "first" else second
            host.kill()
            host.start()
        else:
            host = first if victim == "first machine" else second
            with contextlib.suppress(ProcessLookupError):
                if process := host.process_of("vm-1"):
                    os.kill(process, signal.SIGKILL)
        answer = site.scheduler.answer(task)
        (place,) = site.libvirt.where("vm-1")
        is_alive = place[1] == "running"
        assert (answer["status"] == "success") == (is_alive and place[0] == second.name), victim
        # A machine may also be killed after the answer.
        assert answer.get("host", place[0]) == place[0] or not is_alive, victim


def test_a_peer_to_peer_migration_needs_no_service(tmp_path: Path) -> None:
    """The daemons finish it without the service; its next start answers."""
    site = MachineSite(tmp_path)
    try:
        for framework in site.frameworks:
            framework.is_peer_to_peer = True
            framework.start("", LIMITED)
        site.run("vm-1", guest="busy")
        task = site.scheduler.migrate("s1", "vm-1", "s2", migration_type="warm")
        until(lambda: "Memory processed" in site.first.virsh("domjobinfo", "vm-1"))
        site.frameworks[0].kill()
        site.frameworks[0].start("", LIMITED)
        answer = site.scheduler.answer(task)
        assert answer["status"] == "success"
        _check(site, answer)
        back = site.scheduler.answer(site.scheduler.migrate("s2", "vm-1", "s1"))
        assert (back["status"], back["host"]) == ("success", "s1")
        assert site.libvirt.where("vm-1") == [("s1", "running")]
        assert "Persistent:     yes" in site.first.virsh("dominfo", "vm-1")
    finally:
        site.stop()
