"""The machine that runs the tests, as ccagent sees it, against ps, psutil and the kernel."""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ccagent.agents.sonar.process import Process, ProcessSelection
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.machine.node import Node
from tests.support.running import until
from tests.support.schema import validate

CCAGENT = [sys.executable, "-m", "ccagent"]
NOBODY = pwd.getpwnam("nobody").pw_uid
SAMPLE = ("sample", "--once", "--set", "source=procfs")
"""Not from the kernel programs, which may be loaded on this machine."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CCAGENT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


UNPRIVILEGED = f"""
from ccagent.machine.bpf import pins
pins.DIRECTORY = "/nonexistent"
import os, ccagent.commands.main, ccagent.commands.once, ccagent.agents.sonar.agent
import ccagent.agents.sonar.sources.procfs
import ccagent.agents.sonar.sources, ccagent.transports.stdout
import ccagent.commands.start, ccagent.config.options
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ccagent.commands.main.cli(["sample", "--once"])
"""
"""ccagent as the user nobody, also where nobody may not read the interpreter's files."""


def ps() -> dict[int, tuple[str, str, int, float]]:
    """User, command, parent and CPU seconds of each process, as ps tells them."""
    text = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,euser:32=,ppid=,cputimes=,state=,comm="],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: dict[int, tuple[str, str, int, float]] = {}
    for line in text.splitlines():
        pid, user, ppid, seconds, _, command = line.split(None, 5)
        found[int(pid)] = (user, command, int(ppid), float(seconds))
    return found


def private_memory(pid: int) -> int | None:
    """RssAnon of /proc/PID/status in KB: what `resident_memory` means."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return 0


@pytest.fixture
def other_users() -> Iterator[list[int]]:
    """Some processes of another user: asleep, busy, with memory, and a zombie."""
    # The interpreter may be where only root can read: it starts as root and then gives that up.
    become = f"import os, time; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    zombie = "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)"
    scripts = [
        "print(flush=True); os.execv('/bin/sleep', ['sleep', '600'])",
        "x = bytearray(50_000_000); print(flush=True); time.sleep(600)",
        "print(flush=True)\nwhile True: pass",
        f"if os.fork() == 0: os._exit(0)\n{zombie}; print(flush=True); time.sleep(600)",
    ]
    started = [
        subprocess.Popen([sys.executable, "-c", become + text], stdout=subprocess.PIPE)
        for text in scripts
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    sleeping = {started[0].pid: "sleep", started[1].pid: "", started[3].pid: ""}
    for pid, command in sleeping.items():
        until(partial(sleeps, pid, command))
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.communicate()


def sleeps(pid: int, command: str = "") -> bool:
    """Return whether a process sleeps, in a program of this name."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return rest.split()[0] == "S" and command in name


def test_every_process_that_ps_shows_throughout_is_in_the_sample(other_users: list[int]) -> None:
    before = ps()
    memory = {pid: private_memory(pid) for pid in before}
    result = run(*SAMPLE)
    memory_after = {pid: private_memory(pid) for pid in before}
    after = ps()

    envelope = validate("SampleEnvelope", result.stdout)
    sampled = {
        process["pid"]: (job["user"], process)
        for job in envelope["data"]["attributes"]["jobs"]
        for process in job["processes"]
    }
    lasting = [pid for pid in before if pid in after and before[pid][:3] == after[pid][:3]]
    assert set(other_users) <= set(lasting)
    for pid in lasting:
        user, command, ppid, seconds = before[pid]
        sampled_user, process = sampled[pid]
        # Users of containers and of Slurm's tests have no name here; ps prints their numbers.
        assert sampled_user in {user, f"_user_{user}"}
        assert steady(process["cmd"]) == steady(command)
        assert process.get("ppid", 0) == ppid
        # ps cuts fractions of a second off, and counts no children.
        assert seconds - 1 <= process.get("cpu_time", 0) <= after[pid][3] + 2 + reaped(pid)
        first, last = memory[pid], memory_after[pid]
        # That of others on this machine may come and go in between.
        if first is not None and first == last and pid in other_users:
            assert process.get("resident_memory", 0) == pytest.approx(first, rel=0.05, abs=64)


def steady(command: str) -> str:
    """A command without what changes: whether it has ended, and the work of a kernel worker."""
    command = command.removesuffix(" <defunct>")
    return re.split("[-+]", command)[0] if command.startswith("kworker/") else command


def reaped(pid: int) -> float:
    """Return the most CPU seconds that the children that it waited for can have used so far."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return math.inf  # it has ended: nobody knows any more
    return float(times.children_user + times.children_system)


def test_a_busy_process_is_busy_and_a_zombie_is_marked(other_users: list[int]) -> None:
    found: list[Any] = []

    def has_worked() -> bool:
        """On a busy machine it may not have got a processor during the tenth of a second."""
        envelope = validate("SampleEnvelope", run(*SAMPLE).stdout)
        jobs = envelope["data"]["attributes"]["jobs"]
        found[:] = [process for job in jobs for process in job["processes"]]
        return any(p["pid"] == other_users[2] and p.get("cpu_util", 0) > 5 for p in found)

    until(has_worked)
    by_pid = {process["pid"]: process for process in found}
    assert "cpu_util" not in by_pid[other_users[0]]
    assert by_pid[other_users[1]]["resident_memory"] > 48_000
    (zombie,) = [p for p in found if p.get("ppid") == other_users[3]]
    assert zombie["cmd"].endswith(" <defunct>")


def test_both_sources_tell_the_same_of_sleeping_processes(other_users: list[int]) -> None:
    node = Node()
    procfs, oracle = ProcfsSource(node, ProcessSelection()), PsutilSource(node, ProcessSelection())
    first = {process.pid: process for process in procfs.read()}
    other = {process.pid: process for process in oracle.read()}
    again = {process.pid: process for process in procfs.read()}
    procfs.close()

    quiet = [pid for pid, process in first.items() if process == again.get(pid)]
    assert set(other_users[:2]) <= set(quiet)
    for pid in quiet:
        assert comparable(first[pid]) == pytest.approx(comparable(other[pid]), abs=0.02), pid


def comparable(process: Process) -> dict[str, float]:
    """The numbers of a process, and its strings as numbers; without what psutil can't tell."""
    values = {name: getattr(process, name) for name in process.__struct_fields__}
    values["command"] = steady(process.command)  # that of a kernel worker comes and goes
    del values["data_cancelled"], values["cpu_util"]
    return {k: hash(v) if isinstance(v, str) else float(v) for k, v in values.items()}


def test_the_psutil_source_gives_valid_samples() -> None:
    result = run("sample", "--once", "--set", "source=psutil")
    attributes = validate("SampleEnvelope", result.stdout)["data"]["attributes"]
    assert any(p["pid"] == 1 for job in attributes["jobs"] for p in job["processes"])


def test_a_reused_pid_never_has_the_cpu_time_of_the_one_before() -> None:
    node = Node()
    source = ProcfsSource(node, ProcessSelection())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.5)
    source.read()
    until(lambda: next(p for p in source.read() if p.pid == busy.pid).cpu_util > 0)
    busy.kill()
    busy.wait()
    sleeper = process_with_pid(busy.pid)
    try:
        (process,) = [p for p in source.read() if p.pid == busy.pid]
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
        source.close()

    assert sleeper == busy.pid
    assert process.command == "sleep"
    assert process.cpu_seconds < 0.1


def process_with_pid(pid: int) -> int:
    """Start `sleep` with a pid of our choice (/proc/sys/kernel/ns_last_pid, root only)."""
    for _ in range(1000):
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
            file.write(str(pid - 1))
        child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
        if child == pid:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    raise AssertionError(f"pid {pid} was not to be had")


def test_an_unprivileged_user_gets_everything_but_others_io(other_users: list[int]) -> None:
    del other_users
    result = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED], capture_output=True, text=True, check=False
    )

    attributes = validate("SampleEnvelope", result.stdout)["data"]["attributes"]
    assert result.returncode == 0
    assert result.stderr.count("I/O counters") == 1
    processes = {p["pid"]: p for job in attributes["jobs"] for p in job["processes"]}
    assert processes[1]["resident_memory"] > 0
    assert "data_read" not in processes[1]
    assert "errors" not in attributes


@pytest.mark.parametrize("option", ["hidepid=1", "hidepid=2"])
def test_hidepid_costs_what_it_hides_and_is_said_once(option: str, other_users: list[int]) -> None:
    """In a mount namespace of its own: /proc mounted again with hidepid."""
    script = f'mount -t proc -o {option} proc /proc && exec "$0" -c "$1"'
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, UNPRIVILEGED],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    attributes = validate("SampleEnvelope", result.stdout)["data"]["attributes"]
    found = {p["pid"] for job in attributes["jobs"] for p in job["processes"]}
    assert 1 not in found
    assert other_users[0] in found
    assert result.stderr.count("hidepid") == 1
    assert "errors" not in attributes


def test_in_a_container_it_sees_what_is_inside() -> None:
    """A process namespace of its own, with its own /proc."""
    result = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *CCAGENT, "sample", "--once"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    attributes = validate("SampleEnvelope", result.stdout)["data"]["attributes"]
    processes = [p for job in attributes["jobs"] for p in job["processes"]]
    assert [process["pid"] for process in processes] == [1]
    assert result.stderr == ""


FILTERS = [
    {"system_jobs": False},
    {"users": ("root",)},
    {"commands": ("k", "python")},
    {"cpu_time": 0.5},
]


@pytest.mark.parametrize("keys", FILTERS)
def test_both_sources_filter_the_same(keys: dict[str, Any], other_users: list[int]) -> None:
    node = Node()
    procfs = ProcfsSource(node, ProcessSelection(**keys))
    oracle = PsutilSource(node, ProcessSelection(**keys))
    procfs.begin()
    oracle.begin()
    time.sleep(0.2)
    first = {process.pid: process for process in procfs.read()}
    other = {process.pid: process for process in oracle.read()}
    last = {process.pid for process in procfs.read()}
    procfs.close()

    assert first.keys() & last <= other.keys() <= first.keys() | last
    busy = other_users[2]
    if busy in first:
        assert first[busy].cpu_util == pytest.approx(other[busy].cpu_util, abs=25)


def test_hostile_command_names_change_nothing_but_themselves(tmp_path: Any) -> None:
    names = [b"x) R 1 1 (y", b"two\nlines", b"\xff\xfe\xfd", b'q"uote\\', b"a,b=c d"]
    started: list[subprocess.Popen[bytes]] = []
    for name in names:
        path = os.path.join(os.fsencode(tmp_path), name)
        os.symlink("/bin/sleep", path)
        started.append(subprocess.Popen([path, "60"]))
    try:
        envelope = validate("SampleEnvelope", run(*SAMPLE).stdout)
        lines = run(*SAMPLE, "--format", "line").stdout.splitlines()
    finally:
        for process in started:
            process.kill()
            process.wait()

    found = {
        p["pid"]: p for job in envelope["data"]["attributes"]["jobs"] for p in job["processes"]
    }
    for name, process in zip(names, started, strict=True):
        assert found[process.pid]["cmd"] == name[:15].decode("utf-8", "replace")
        assert found[process.pid]["ppid"] == os.getpid()
    assert all(line.startswith(("cpu_load,", "mem_used,", "proc_", "job_")) for line in lines)


def test_short_lived_processes_never_disturb_a_sample() -> None:
    script = "while :; do /bin/true; done"
    storm = [subprocess.Popen(["sh", "-c", script]) for _ in range(3)]
    node = Node()
    source = ProcfsSource(node, ProcessSelection())
    try:
        for _ in range(200):
            processes = source.read()
            assert {os.getpid(), *(p.pid for p in storm)} <= {p.pid for p in processes}
            assert not source.errors
    finally:
        source.close()
        for process in storm:
            process.kill()
            process.wait()


MANY_SAMPLES = """
import os, subprocess
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.machine.node import Node

source = ProcfsSource(Node(), ProcessSelection())
for step in range(300):
    subprocess.run(["/bin/true"], check=True)
    source.read()
    if step in {100, 299}:
        print(len(os.listdir("/proc/self/fd")))
"""


def test_descriptors_do_not_grow() -> None:
    """Among processes of its own: the descriptors of all that live are kept."""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", MANY_SAMPLES],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    early, late = map(int, done.stdout.split())
    assert late == early


SHORT_OF_DESCRIPTORS = """
import json, os, resource, subprocess, sys
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.machine.node import Node

def shortage():
    if sys.argv[1] == "others":
        while True:  # other parts of the process open all that can be opened
            try:
                os.dup(0)
            except OSError:
                return
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))  # as by prlimit(1)

sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(40)]
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
source = ProcfsSource(Node(), ProcessSelection())
source.begin()
source.read()
sleepers += [subprocess.Popen(["sleep", "60"]) for _ in range(20)]
kept = len(os.listdir("/proc/self/fd"))
shortage()
found = [(process.pid, process.job, process.resident_memory) for process in source.read()]
again = [(process.pid, process.job, process.resident_memory) for process in source.read()]
errors = source.errors
source.close()
for sleeper in sleepers:
    sleeper.kill()
print(json.dumps({"kept": kept, "pids": [each.pid for each in sleepers], "found": found,
                  "again": again, "errors": errors}))
"""


@pytest.mark.parametrize("shortage", ["others", "lowered"])
def test_processes_are_read_by_opening_and_closing_for_want_of_descriptors(shortage: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_DESCRIPTORS, shortage],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["kept"] > 100
    assert told["errors"] == []
    for found in (told["found"], told["again"]):
        assert {os.getpid(), *told["pids"]} <= {pid for pid, _, _ in found}
        assert all(memory for pid, _, memory in found if pid in told["pids"])
    assert "limit of descriptors is reached" in done.stderr


def test_psutil_reports_what_it_cannot_open() -> None:
    script = """
import os, resource
from ccagent.agents.sonar.sources.psutil_source import PsutilSource
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.machine.node import Node
source = PsutilSource(Node(), ProcessSelection())
source.begin()
assert source.read()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
source.begin()
assert source.read() == []
print(source.errors)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "/proc: Too many open files" in done.stdout
