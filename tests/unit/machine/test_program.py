"""Programs: what they print, what they get, and how those end that don't end by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from ccagent.errors import NotHereError, NotPermittedError, ProgramError
from ccagent.machine import program
from ccagent.machine.node import Node
from ccagent.machine.program import run, stream
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from pathlib import Path


def shell(script: str, *, time_limit: float = 10, output_limit: int = 1_000_000) -> bytes:
    return run(["sh", "-c", script], time_limit=time_limit, output_limit=output_limit)


def is_running(pid: int) -> bool:
    """Return whether a process still does something; one that waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_output_is_standard_output_alone() -> None:
    assert shell("echo out; echo complaint >&2") == b"out\n"


def test_arguments_meet_no_shell() -> None:
    arguments = ["$HOME", "*", "a b", ";", ""]
    assert run(["printf", "%s\\n", *arguments], time_limit=10, output_limit=1000) == (
        b"$HOME\n*\na b\n;\n\n"
    )


def test_a_node_runs_programs_too() -> None:
    assert Node(cluster="fox").run(["echo", "x"], time_limit=10, output_limit=10) == b"x\n"


def test_nothing_stands_in_standard_input() -> None:
    assert run(["cat"], time_limit=10, output_limit=10) == b""


def test_standard_input_may_be_larger_than_a_pipe_and_left_unread() -> None:
    given = os.urandom(1_000_000)
    parts = stream(["cat"], time_limit=30, output_limit=2_000_000, standard_input=given)
    assert b"".join(parts) == given
    assert list(stream(["true"], time_limit=30, output_limit=1, standard_input=given)) == []


def test_the_environment_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    printed = run(["env"], time_limit=10, output_limit=10_000).decode()
    assert sorted(printed.splitlines()) == ["LC_ALL=C", "PATH=/usr/bin:/bin"]


def test_programs_of_slurm_show_only_this_cluster_of_a_federation() -> None:
    printed = run_slurm(Node(), ["env"], time_limit=10, output_limit=10_000).decode()
    shown = {line.partition("=")[0] for line in printed.splitlines() if "_LOCAL=" in line}
    assert shown == {"SACCT_LOCAL", "SCONTROL_LOCAL", "SINFO_LOCAL", "SQUEUE_LOCAL"}
    assert "SLURM_TIME_FORMAT=%s" in printed


def test_without_a_path_the_usual_one_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert b"PATH=/usr/sbin:/usr/bin:" in run(["env"], time_limit=10, output_limit=10_000)


def test_there_is_no_such_program(tmp_path: Path) -> None:
    for name in ("no-such-program", str(tmp_path / "absent"), "/dev/null/program"):
        with pytest.raises(NotHereError, match=f"^{name}: no such program"):
            run([name], time_limit=1, output_limit=1)


def test_a_directory_of_the_path_that_may_not_be_searched_hides_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    script = (
        "import os, shutil, ccagent.machine.program as p\n"
        f"os.setuid(65534); os.environ['PATH'] = '/usr/bin:{tmp_path}'\n"
        "try: p.run(['no-such-program'], time_limit=1, output_limit=1)\n"
        "except p.NotHereError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert said == b"no-such-program: no such program\n"


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"text")
    with pytest.raises(NotPermittedError, match="not permitted"):
        run([str(file)], time_limit=1, output_limit=1)
    file.chmod(0o700)
    with pytest.raises(ProgramError, match="Exec format error"):
        run([str(file)], time_limit=1, output_limit=1)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "exit status 3: no message"),
        ("echo out; echo no device >&2; exit 1", "exit status 1: no device"),
        ("kill -KILL $$", "killed by SIGKILL: no message"),
        ("kill -40 $$", "killed by signal 40: no message"),
    ],
)
def test_a_failure_says_why(script: str, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        shell(script)
    assert str(caught.value) == f"sh: {said}"


def test_an_endless_complaint_is_cut() -> None:
    with pytest.raises(ProgramError, match="exit status 1") as caught:
        shell("head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1")
    assert len(str(caught.value)) < 100_000


def test_too_much_output_ends_a_program() -> None:
    begin = time.monotonic()
    with pytest.raises(ProgramError, match="^yes: printed more than 100000 bytes$"):
        run(["yes"], time_limit=10, output_limit=100_000)
    assert time.monotonic() - begin < 5


def test_as_much_as_the_limit_is_not_too_much() -> None:
    assert len(shell("head -c 1000 /dev/zero", output_limit=1000)) == 1000
    with pytest.raises(ProgramError, match="more than 999 bytes"):
        shell("head -c 1000 /dev/zero", output_limit=999)


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60 & echo $! > {file}; wait",
        "(sleep 60 & echo $! > {file}; wait) & wait",
        "trap '' TERM INT HUP; sleep 60 & echo $! > {file}; wait",
        "sleep 60 & echo $! > {file}; exec >&- 2>&-; wait",
        "sleep 60 & echo $! > {file}; exit 0",
    ],
)
def test_the_time_limit_ends_children_too(tmp_path: Path, script: str) -> None:
    file = tmp_path / "pid"
    begin = time.monotonic()
    with pytest.raises(ProgramError, match=r"^sh: not finished after 0\.3 s$"):
        shell(script.format(file=file), time_limit=0.3)
    assert 0.3 <= time.monotonic() - begin < 2
    child = int(file.read_text())
    deadline = time.monotonic() + 2
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_program_that_prints_now_and_then_has_no_more_time() -> None:
    begin = time.monotonic()
    with pytest.raises(ProgramError, match="not finished"):
        shell("while :; do echo x; sleep 0.05; done", time_limit=0.3)
    assert time.monotonic() - begin < 2


def test_it_can_be_ended_from_outside() -> None:
    stop, begin = os.pipe()
    lines = stream(
        ["sh", "-c", "echo $$; exec sleep 1000"], time_limit=60, output_limit=100, stop=stop
    )
    pid = int(next(lines))
    os.close(begin)
    with pytest.raises(ProgramError, match="sh: killed: its output is no longer needed"):
        next(lines)
    os.close(stop)
    assert not is_running(pid)


def test_a_program_leads_a_group_of_its_own() -> None:
    printed = shell("cut -d' ' -f5 /proc/$$/stat")
    assert int(printed) != os.getpgrp()


def test_nothing_is_left_whatever_happens() -> None:
    descriptors, children = set(os.listdir("/proc/self/fd")), psutil.Process().children()
    shell("echo x")
    for script in ("exit 1", "sleep 60", "yes"):
        with pytest.raises(ProgramError):
            shell(script, time_limit=0.2, output_limit=1000)
    with pytest.raises(NotHereError):
        run(["no-such-program"], time_limit=1, output_limit=1)
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert psutil.Process().children() == children


def test_one_that_cannot_be_killed_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep outlives SIGKILL: here one that nobody kills stands in."""
    command = ["sleep", "60"]
    left = subprocess.Popen(command)
    try:
        monkeypatch.setitem(program._unkillable, tuple(command), left)
        for _ in range(3):
            with pytest.raises(ProgramError, match=f"sleep: process {left.pid} of an earlier run"):
                run(command, time_limit=1, output_limit=10)
        assert run(["sleep", "0"], time_limit=30, output_limit=10) == b""
    finally:
        left.kill()
        left.wait()
    with pytest.raises(ProgramError, match="not finished"):
        run(command, time_limit=0.1, output_limit=10)


def test_one_that_outlives_its_kill_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_GRACE", 0.01)

    def kill_nothing(_group: int, _signal: int) -> None:
        """Stand in for a kernel that does not get to it."""

    monkeypatch.setattr(os, "killpg", kill_nothing)
    with pytest.raises(ProgramError, match="not finished"):
        run(["sleep", "61"], time_limit=0.1, output_limit=10)
    left = program._unkillable.pop(("sleep", "61"))
    left.kill()
    left.wait()
