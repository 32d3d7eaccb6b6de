"""Slurm jobs told by ancestors, of live processes that look like slurmstepd."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.sonar.process import ProcessSelection
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.machine.node import Node

DAEMON = """
printf slurmstepd > /proc/$$/comm
/bin/sleep 600 &
echo $!
wait
"""
NOBODY = 65534

Started = tuple[subprocess.Popen[str], int]


def start_daemon(title: str, user: int) -> Started:
    """A live process that looks like slurmstepd, and the pid of its child."""
    process = subprocess.Popen(
        [title], executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        user=user, cwd="/",
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(DAEMON)
    process.stdin.close()
    child = int(process.stdout.readline())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
        time.sleep(0.01)
    return process, child


def jobs(source: ProcfsSource | PsutilSource) -> dict[int, int]:
    """Return the job of each process, by pid, at one reading."""
    return {process.pid: process.job for process in source.read()}


@pytest.fixture
def daemons() -> Iterator[dict[str, Started]]:
    started = {
        "step": start_daemon("slurmstepd: [424242.0]", 0),
        "extern": start_daemon("slurmstepd: [424242.extern]", 0),
        "impostor": start_daemon("slurmstepd: [424242.0]", NOBODY),
    }
    yield started
    for process, child in started.values():
        process.kill()
        process.wait()
        os.kill(child, 9)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("kind", [ProcfsSource, PsutilSource])
def test_both_sources_tell_the_jobs_of_live_processes(
    daemons: dict[str, Started], kind: type[ProcfsSource | PsutilSource]
) -> None:
    source = kind(Node(), ProcessSelection())
    found = jobs(source)
    assert {found[process.pid] for process, _ in daemons.values()} == {0}
    step, extern, impostor = (daemons[name][1] for name in ("step", "extern", "impostor"))
    assert (found[step], found[extern], found[impostor]) == (424242, 0, 0)

    for process, _ in daemons.values():
        process.kill()
        process.wait()
    found = jobs(source)
    source.close()

    assert (found[step], found[impostor]) == (424242, 0)
