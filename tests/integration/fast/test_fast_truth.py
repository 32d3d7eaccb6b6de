"""KPIs against the kernel's own counters, and a virtual machine found by its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ccagent.agents.fast.applications import MonitoredApplication, list_tree
from ccagent.agents.fast.kpis import KpiReader
from ccagent.agents.fast.messages.structures import APPLICATION_CPU, APPLICATION_MEMORY
from ccagent.agents.fast.settings import FastSettings
from ccagent.machine.node import Node
from ccagent.machine.virtual_machines import read_start
from tests.integration.fast.conftest import FastDaemon, FastSite
from tests.support.fast_scheduler import PATIENCE, values
from tests.support.mqtt_broker import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fast_scheduler import FastReport, FastScheduler

_CGROUPS = Path("/sys/fs/cgroup")
_LOAD = """
import os, sys, time
held = bytearray(500_000_000)
for place in range(0, len(held), 4096):
    held[place] = 1
child = os.fork()
print("ready", flush=True)
while True:
    if not child:  # half a core
        time.sleep(0.01)
    until = time.monotonic() + 0.01
    while time.monotonic() < until:
        pass
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make control groups")


class Bracket(NamedTuple):
    """Counters of a control group, and the steady clock before and after they were read."""

    before: float
    cpu: int
    memory: int
    after: float


class LoadGroup:
    """A control group of the test, of version 1 or 2."""

    def __init__(self) -> None:
        name = f"ccagent-fast-{os.getpid()}"
        self.is_v1 = (_CGROUPS / "cpuacct").exists()
        tops = ("cpuacct", "memory") if self.is_v1 else ("",)
        self.directories = [_CGROUPS / top / name for top in tops]
        if not self.is_v1:
            (_CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory")
        for directory in self.directories:
            directory.mkdir()

    def command(self, *command: str) -> list[str]:
        """Return a command that puts itself into the group, and then runs another one."""
        enter = 'n=$1; shift; for i in $(seq $n); do echo $$ >"$1"; shift; done; exec "$@"'
        files = [str(directory / "cgroup.procs") for directory in self.directories]
        return ["sh", "-c", enter, "sh", str(len(files)), *files, *command]

    def read(self) -> Bracket:
        before = time.monotonic()
        if self.is_v1:
            cpu = int((self.directories[0] / "cpuacct.usage").read_text())
            memory = int((self.directories[1] / "memory.usage_in_bytes").read_text())
        else:
            fields = (self.directories[0] / "cpu.stat").read_text().split()
            cpu = 1000 * int(fields[fields.index("usage_usec") + 1])
            memory = int((self.directories[0] / "memory.current").read_text())
        return Bracket(before, cpu, memory, time.monotonic())

    def remove(self) -> None:
        for directory in self.directories:
            wait_for(partial(_is_removed, directory))


def _is_removed(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


@pytest.fixture
def group() -> Iterator[LoadGroup]:
    made = LoadGroup()
    yield made
    made.remove()


@pytest.fixture
def load(group: LoadGroup) -> Iterator[int]:
    """A process with a child in the group, which want 1.5 cores and hold 500 MB."""
    with subprocess.Popen(
        group.command(sys.executable, "-c", _LOAD), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def test_a_process_tree_is_measured_by_its_control_group(group: LoadGroup, load: int) -> None:
    node = Node(hostname="c1", cluster="fox")
    application = MonitoredApplication("", load, "vm-1", read_start(node, load))
    assert len(list_tree(node, load)) == 2
    reader = KpiReader(FastSettings())

    first = group.read()
    reader.read(node, [application])
    second = group.read()
    time.sleep(2.0)
    third = group.read()
    ((_, values),) = reader.read(node, [application]).applications
    fourth = group.read()

    # Our reading was somewhere between the two around it, at both ends.
    cpus = os.cpu_count() or 1
    least = (third.cpu - second.cpu) / (fourth.after - first.before) / 1e7 / cpus
    most = (fourth.cpu - first.cpu) / (third.before - second.after) / 1e7 / cpus
    share = values[APPLICATION_CPU]
    assert isinstance(share, float)
    assert 0.98 * least <= share <= 1.02 * most
    memory = values[APPLICATION_MEMORY]
    assert isinstance(memory, float)
    assert memory == pytest.approx(fourth.memory, rel=0.01)
    assert memory > 500_000_000


def test_a_tree_without_a_group_of_its_own_is_summed_up() -> None:
    """Beside a stranger in the same control group, so that its counters say too much."""
    node = Node(hostname="c1", cluster="fox")
    process = subprocess.Popen(
        [sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, start_new_session=True
    )
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            start = read_start(node, process.pid)
            application = MonitoredApplication("", process.pid, "vm-1", start)
            reader = KpiReader(FastSettings())
            reader.read(node, [application])
            time.sleep(0.5)
            ((_, values),) = reader.read(node, [application]).applications
        finally:
            os.killpg(process.pid, 9)
    assert 500_000_000 < float(values[APPLICATION_MEMORY]) < 1_200_000_000
    assert 0 < float(values[APPLICATION_CPU]) <= 110


def test_a_virtual_machine_is_found_by_its_process(
    fast_site: FastSite, fast_scheduler: FastScheduler
) -> None:
    daemon = FastDaemon(fast_site, has_machines=True)
    name = f"vm-{os.getpid()}"  # other tests may run machines
    machine = subprocess.Popen([
        "qemu-system-x86_64", "-display", "none", "-S", "-nodefaults", "-accel", "tcg",
        "-m", "64", "-name", f"guest={name}",
    ])  # fmt: skip
    try:
        fast_scheduler.wait_for_task("init")
        fast_scheduler.answer(
            fast_scheduler.init_agent([APPLICATION_MEMORY, APPLICATION_CPU, "expected runtime"], 1)
        )

        def reports(after: int = 0) -> list[FastReport]:
            found = fast_scheduler.of_task("KPI", after)
            return [each for each in found if name in str(each.document.get("job-description"))]

        wait_for(lambda: any(APPLICATION_CPU in values(each) for each in reports()), PATIENCE)
        report = reports()[-1]
        assert report.document["job-description"] == {
            "process-id": machine.pid,
            "vm-name": name,
        }
        resident = int(Path(f"/proc/{machine.pid}/statm").read_text().split()[1])
        expected = resident * os.sysconf("SC_PAGE_SIZE")
        assert values(report)[APPLICATION_MEMORY] == pytest.approx(expected, rel=0.05)
        assert values(report)["expected runtime"] == "low"

        stopped = fast_scheduler.stop_monitoring("", machine.pid)
        assert fast_scheduler.answer(stopped)["status"] == "success"
        seen = len(fast_scheduler.reports)
        wait_for(lambda: len(fast_scheduler.of_task("KPI", seen)) >= 2, PATIENCE)
        assert reports(seen) == []
    finally:
        machine.kill()
        machine.wait()
        daemon.stop()


def test_each_of_many_machines_is_reported_in_each_round(
    fast_site: FastSite, fast_scheduler: FastScheduler, tmp_path: Path
) -> None:
    """More than the broker takes at once without an acknowledgement (20)."""
    daemon = FastDaemon(fast_site, has_machines=True)
    qemu = tmp_path / "qemu-busybox"  # a process has the name of its file
    shutil.copy("/bin/busybox", qemu)
    machines = [
        subprocess.Popen(
            ["sh", "-c", "read forever", "-name", f"guest=vm-{number}"],
            executable=qemu,
            stdin=subprocess.PIPE,
        )
        for number in range(60)
    ]
    try:
        fast_scheduler.wait_for_task("init")
        fast_scheduler.answer(fast_scheduler.init_agent([APPLICATION_MEMORY], 1))

        def reported() -> list[int]:
            found = [each.document.get("job-description") for each in fast_scheduler.of_task("KPI")]
            return [each["process-id"] for each in found if each and each["process-id"] in pids]

        pids = {each.pid for each in machines}
        wait_for(lambda: len(reported()) >= 120, PATIENCE)
        assert set(reported()[:60]) == pids
        assert set(reported()[60:120]) == pids
    finally:
        for each in machines:
            each.kill()
            each.communicate()
        daemon.stop()
