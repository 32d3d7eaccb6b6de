"""What the programs tell of processes: the values of /proc, and the sums of ended ones."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.machine.bpf import loading, pins, status
from ccagent.machine.bpf.process_records import EndedKey, Task
from ccagent.machine.bpf.status import Objects, objects
from tests.support.ended_records import Ended
from tests.support.kernel_programs import (
    NOBODY,
    NODE,
    SOURCES,
    JobGroup,
    hierarchy,
    own_directory,
    read_ended,
    read_tasks,
)
from tests.support.process_values import (
    ProcFiles,
    anonymous_pages,
    read_proc,
    slack_of_proc,
    values_of_proc,
    values_of_task,
)
from tests.support.running import until

THREADS = """
import os, threading, time

def work():
    begin = time.thread_time()
    while time.thread_time() - begin < 0.1:
        os.getppid()
    ready.append(None)
    time.sleep(60)

ready = []
threading.Thread(target=lambda: None).start()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
memory = bytearray(50_000_000)
with open("/dev/null", "wb") as null, open("/dev/zero", "rb") as zero:
    null.write(zero.read(3_000_000))
while len(ready) < 3:
    time.sleep(0.01)
print(flush=True)
time.sleep(60)
"""

OTHER_USER = f"""
import os, time
os.setsid()
os.setresuid({NOBODY}, {NOBODY - 1}, {NOBODY - 2})
if os.fork() == 0:
    os._exit(0)
print(flush=True)
time.sleep(60)
"""

SPIN = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done"


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    with own_directory() as place:
        assert loading.load(place).complaint == ""
        yield place


@pytest.fixture(scope="module")
def children() -> Iterator[list[int]]:
    """Processes of many kinds, which have settled."""
    python = [sys.executable, "-c"]
    commands = [
        [*python, THREADS],
        [*python, OTHER_USER],
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep 60"],
        ["sh", "-c", "echo; kill -STOP $$"],
    ]
    started = [subprocess.Popen(each, stdout=subprocess.PIPE) for each in commands]
    for process in started:
        assert process.stdout is not None
        process.stdout.read(1)
    pids = {process.pid for process in started}
    last: list[dict[int, bytes]] = [{}]

    def is_settled() -> bool:
        """Return whether nothing of them has changed for a while, and none wants to run."""
        time.sleep(0.3)
        found = {pid: files.stat for pid, files in read_proc().items()}
        fields = {pid: stat.rpartition(b")")[2].split() for pid, stat in found.items()}
        last.append({p: found[p] for p, f in fields.items() if {p, int(f[1])} & pids})
        return last[-1] == last[-2] and all(fields[pid][0] != b"R" for pid in last[-1])

    until(is_settled)
    yield [process.pid for process in started]
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def both(directory: str, children: list[int]) -> dict[int, tuple[Task, ProcFiles]]:
    """Each process that /proc told the same of before the reading and after."""
    before = read_proc()
    tasks = read_tasks(directory)
    after = read_proc()
    assert {*before} & {*after} <= {*tasks}
    same = {pid: (tasks[pid], told) for pid, told in before.items() if after.get(pid) == told}
    assert {*children} <= {*same}
    return same


def test_identity_times_and_io_are_those_of_proc(both: dict[int, tuple[Task, ProcFiles]]) -> None:
    for task, files in both.values():
        assert values_of_task(task) == values_of_proc(files)


def test_anonymous_memory_is_that_of_proc(both: dict[int, tuple[Task, ProcFiles]]) -> None:
    slack = slack_of_proc()
    for task, files in both.values():
        assert abs(task.anon_pages - anonymous_pages(files)) <= slack


def test_threads_users_namespaces_and_stopped_ones(
    both: dict[int, tuple[Task, ProcFiles]], children: list[int]
) -> None:
    threads, other, outer, stopped = (both[pid][0] for pid in children)
    assert threads.num_threads == 4
    assert threads.runtime > 300_000_000
    assert threads.anon_pages * os.sysconf("SC_PAGE_SIZE") > 50_000_000
    assert min(threads.rchar, threads.wchar) >= 3_000_000
    assert (other.ruid, other.euid, other.suid) == (NOBODY, NOBODY - 1, NOBODY - 2)
    assert other.pid == other.pgid == other.sid
    assert chr(stopped.state) == "T"
    (zombie,) = (task for task, _ in both.values() if task.ppid == other.pid)
    assert (chr(zombie.state), zombie.anon_pages) == ("Z", 0)
    (inner,) = (task for task, _ in both.values() if task.ppid == outer.pid)
    assert (inner.namespace_level, outer.namespace_level, outer.namespace) == (1, 0, 0)
    assert inner.namespace == os.stat(f"/proc/{inner.pid}/ns/pid").st_ino


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_process_has_the_ids_of_its_control_groups(directory: str, version: str) -> None:
    with hierarchy(version) as root:
        group = JobGroup(root, f"ccagent-test-{os.getpid()}", "cgroup.procs")
        try:
            join = f"echo $$ > {group.path}/cgroup.procs; echo; exec sleep 60"
            with subprocess.Popen(["sh", "-c", join], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.read(1)
                task = read_tasks(directory)[process.pid]
                process.kill()
            assert (task.cpuacct if version == "v1" else task.cgroup) == group.inode
        finally:
            group.remove()


def entries_of(directory: str, job: int) -> dict[EndedKey, Ended]:
    return {key: ended for key, ended in read_ended(directory).entries.items() if key.job == job}


def wait_for_processes(directory: str, job: int, number: int) -> float:
    """Wait until the kernel has freed them; give the share that it passed over (see the README)."""
    counts = [-1]

    def settled() -> bool:
        time.sleep(0.3)
        counts.append(sum(one.processes for one in entries_of(directory, job).values()))
        return counts[-1] in counts[-4:-1] and number * 0.9 <= counts[-1] <= number

    until(settled, 30)
    return 1 - counts[-1] / number


@pytest.mark.parametrize(
    ("version", "path", "usage"),
    [
        ("v1", "slurm_test{pid}/uid_0/job_{job}/step_{step}", "cpuacct.usage"),
        ("v2", "system.slice/test{pid}_slurmstepd.scope/job_{job}/step_{step}/user", "cpu.stat"),
    ],
)
def test_what_200_short_processes_of_a_job_used_is_within_2_percent_of_the_group_s_own_count(
    directory: str, version: str, path: str, usage: str
) -> None:
    job = random.SystemRandom().randrange(4_000_000_000, 1 << 32)  # another one for a rerun
    used = 0
    with hierarchy(version) as root:
        for step in range(2):
            name = path.format(pid=os.getpid(), job=job, step=step)
            group = JobGroup(root, name, usage)
            try:
                # Children, children of children, and orphans.
                group.run(
                    f"for n in $(seq 25); do ({SPIN}); (({SPIN}) & {SPIN}); ({SPIN}) & done; wait"
                )
                used += group.runtime()
            finally:
                group.remove()
    # Each round has four; and the shell and seq, a step.
    missed = wait_for_processes(directory, job, 2 * (25 * 4 + 2))
    entries = entries_of(directory, job)
    assert {(key.cgroup, key.cpuacct, key.pgid, key.euid) for key in entries} == {(0, 0, 0, 0)}
    assert {key.command for key in entries} == {b"sh", b"seq"}
    assert sum(ended.runtime for ended in entries.values()) == pytest.approx(
        used * (1 - missed), rel=0.02
    )


@pytest.mark.parametrize(
    ("version", "path"),
    [
        ("v1", "test{pid}/slurm/uid_0/job_77001"),
        ("v1", "slurmtest{pid}/uid_0/job_77001"),
        ("v1", "slurm_{pid}/user_0/job_77001"),
        ("v1", "slurm_{pid}/uid_0/job_77001x/job_77001"),
        ("v1", "slurm_{pid}/uid_0/job_99999999999"),
        ("v1", "slurm_{pid}/uid_0/job_"),
        ("v2", "user.slice/{pid}_slurmstepd.scope/job_77001"),
        ("v2", "system.slice/{pid}slurmstepd.scope/job_77001"),
        ("v2", "system.slice/_slurmstepd.scope/job_77001"),
        ("v2", "system.slice/{pid}_slurmstepd.scopes/job_77001"),
        ("v2", "system.slice/{pid}.service/job_77001"),
    ],
)
def test_a_group_that_only_looks_like_a_job_is_none(
    directory: str, version: str, path: str
) -> None:
    with hierarchy(version) as root:
        group = JobGroup(root, path.format(pid=os.getpid()), "cgroup.procs")
        inode = group.inode
        group.run("true; true; true")
        group.remove()

    def entries() -> list[EndedKey]:
        found = read_ended(directory).entries
        return [key for key in found if inode in {key.cgroup, key.cpuacct}]

    until(entries)
    assert {key.job for key in entries()} == {0}
    assert {key.command for key in entries()} <= {b"sh", b"true"}


def test_an_ended_process_has_its_group_user_and_command(directory: str) -> None:
    script = f"""
import os, time
while time.process_time() < 0.15:
    pass
open("/proc/self/comm", "wb").write(b"a\\n\\x80 b")
open("/dev/zero", "rb").read(999)
os.setpgid(0, 0)
os.setreuid({NOBODY}, {NOBODY - 1})
"""
    started = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]

    def found() -> list[tuple[EndedKey, Ended]]:
        entries = read_ended(directory).entries
        groups = {process.pid for process in started}
        return [(key, ended) for key, ended in entries.items() if key.pgid in groups]

    until(found)
    key, ended = found()[0]
    assert (key.euid, key.command) == (NOBODY - 1, b"a\n\x80 b")
    assert ended.processes == 1
    assert 150_000_000 < ended.runtime < 10_000_000_000
    assert ended.rchar > 999
    assert ended.max_pages > 100
    assert ended.since <= ended.last


def named(path: Path, name: str) -> str:
    """A command with a name that no other has had, also in a rerun, and that does nothing."""
    command = path / f"{name[:6]}-{os.urandom(4).hex()}"
    command.symlink_to("/bin/true")
    return str(command)


def groups_of(directory: str, command: str, number: int = 1) -> dict[int, int]:
    """Process groups that the command ended in, with the number of processes; waits for them."""
    key = os.path.basename(command).encode()

    def found() -> dict[int, int]:
        entries = read_ended(directory).entries
        groups: dict[int, int] = {}
        for each, ended in entries.items():
            if each.command == key:
                groups[each.pgid] = groups.get(each.pgid, 0) + ended.processes
        return groups

    until(lambda: sum(found().values()) >= number)
    return found()


def test_short_processes_in_groups_of_their_own_share_an_entry(
    directory: str, tmp_path: Path
) -> None:
    command = named(tmp_path, "alone")
    for _ in range(10):
        subprocess.run([command], check=True, process_group=0)
    assert groups_of(directory, command, 10) == {0: 10}


def test_short_processes_of_a_group_that_was_read_alive_have_it(
    directory: str, tmp_path: Path
) -> None:
    # So that a job under proctrack/linuxproc, known by its living processes, has what they start.
    command = named(tmp_path, "helper")
    script = f"read line; {command}; {command}; :"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, process_group=0) as shell:
        read_ended(directory)
        shell.communicate(b"go\n")
    assert groups_of(directory, command, 2) == {shell.pid: 2}


EXECUTING_THREAD = """
import os, sys, threading
threading.Thread(target=os.execv, args=(sys.argv[1], sys.argv[1:])).start()
threading.Event().wait()
"""


def test_a_process_in_which_another_thread_executes_a_program_counts_once(
    directory: str, tmp_path: Path
) -> None:
    # The leader exits, its process does not; its task is released under another thread's number.
    command = named(tmp_path, "thread")
    unseen: list[int] = []
    for number in (20, 40, 60):
        before = read_ended(directory).unseen
        for _ in range(20):
            subprocess.run([sys.executable, "-S", "-c", EXECUTING_THREAD, command], check=True)
        assert sum(groups_of(directory, command, number).values()) == number
        subprocess.run(["sh", "-c", "for n in $(seq 300); do (:); done"], check=True)
        unseen.append(read_ended(directory).unseen - before)
        assert sum(groups_of(directory, command, number).values()) == number
        if unseen[-1] < 10:
            break
    # Of other processes of a busy machine the kernel passes over some now and then.
    assert min(unseen) < 10


def test_the_total_counts_all(directory: str) -> None:
    for _ in range(20):
        subprocess.run(["true"], check=True)
    reading = read_ended(directory)
    assert reading.total.refused == 0
    assert reading.total.entries >= len(reading.entries)
    # It may be of the moment when the reading began.
    later = read_ended(directory).total
    assert later.processes >= sum(one.processes for one in reading.entries.values()) >= 20
    assert later.runtime >= sum(one.runtime for one in reading.entries.values())


# From here on each test loads programs of its own, in the same place.


def test_a_process_whose_release_is_not_seen_counts_when_its_place_is_used_again(
    tmp_path: Path,
) -> None:
    command = named(tmp_path, "unseen")
    with own_directory() as directory:
        loading.load(directory)
        os.unlink(f"{directory}/{pins.ON_FREE}")  # so that no release is seen
        for _ in range(20):
            subprocess.run([command], check=True)

        def unseen() -> int:
            # Others take the places of those that have ended.
            subprocess.run(["sh", "-c", "for n in $(seq 50); do (:); done"], check=True)
            return read_ended(directory).unseen

        until(lambda: unseen() > 20)
        (group, number), *rest = groups_of(directory, command).items()
        assert (group, rest) == (0, [])
        assert 1 <= number <= 20
        told = status.read_status(directory)
        assert told.freed_unseen is not None
        assert told.freed_unseen > 20
        reading = read_ended(directory)
        assert sum(each.processes for each in reading.entries.values()) >= reading.unseen


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Programs that take entries away after two seconds instead of 150."""
    directory = tmp_path_factory.mktemp("hasty")
    clang = directory / "clang"
    clang.write_text('#!/bin/sh\nexec clang -DSTALE_AFTER=2000000000ULL "$@"\n')
    clang.chmod(0o755)
    subprocess.run(
        [SOURCES / "build", directory], env=os.environ | {"CLANG": str(clang)}, check=True
    )
    return objects(str(directory))


def told_of(directory: str, command: str) -> list[Ended]:
    entries = read_ended(directory).entries
    key = os.path.basename(command).encode()
    return [ended for found, ended in entries.items() if found.command == key]


def test_an_entry_that_nobody_added_to_for_long_is_taken_away(
    hasty: Objects, tmp_path: Path
) -> None:
    command = named(tmp_path, "short")
    with own_directory() as directory:
        loading.load(directory, programs=hasty)
        subprocess.run([command], check=True)
        until(lambda: told_of(directory, command))
        (first,) = told_of(directory, command)
        assert first.processes == 1
        until(lambda: not told_of(directory, command))
        subprocess.run([command], check=True)
        until(lambda: told_of(directory, command))
        (second,) = told_of(directory, command)
        assert second.processes == 1
        assert second.since > first.last


def test_an_entry_stays_for_three_intervals_of_the_slowest_reader(
    hasty: Objects, tmp_path: Path
) -> None:
    command = named(tmp_path, "slow")
    with own_directory() as directory:
        loading.load(directory, programs=hasty)
        path = f"{directory}/{pins.ENDED}".lstrip("/")
        NODE.read(path, 1 << 28)
        time.sleep(2.4)
        NODE.read(path, 1 << 28)
        subprocess.run([command], check=True)
        until(lambda: told_of(directory, command))
        time.sleep(4)
        assert len(told_of(directory, command)) == 1
        until(lambda: not told_of(directory, command))
