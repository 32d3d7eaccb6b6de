"""`ccagent top` in a real terminal, and as text for pipes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.views.terminal import width_of
from tests.support.tmux import Terminal

TOP = f"LC_ALL=C.UTF-8 {sys.executable} -m ccagent top"
NOBODY = 65534
PR_SET_NAME = 15


def has_processes(lines: list[str]) -> bool:
    return len(lines) > 2 and lines[1].lstrip().startswith("PID USER")


def open_processes(terminal: Terminal) -> list[str]:
    """Return the first screen of processes. A machine with jobs begins with those."""
    lines = terminal.wait(lambda s: len(s) > 2 and (has_processes(s) or s[1].startswith("JOB ")))
    if has_processes(lines):
        return lines
    terminal.press("p")
    return terminal.wait(has_processes)


def test_keys_change_the_screen(tmp_path: Path) -> None:
    with Terminal(tmp_path, TOP) as terminal:
        lines = open_processes(terminal)
        assert lines[-1].startswith("?help q quit /filter")
        assert len(lines) == 24
        terminal.press("p")
        terminal.wait(lambda s: s[1].startswith("JOB  "))
        terminal.press("End")
        terminal.wait(lambda s: any(line.startswith("(system) ") for line in s[2:]))
        terminal.press("Enter")
        terminal.wait(lambda s: s[1].startswith("(system) ") and "hwthreads" in s[3])
        terminal.press("Escape")
        terminal.wait(lambda s: s[1].startswith("JOB  "))
        terminal.press("g")
        terminal.wait(lambda s: s[1].startswith("GPU USE%"))
        terminal.press("?")
        terminal.wait(lambda s: "Nothing here ends a process." in "\n".join(s))
        terminal.press("x")
        terminal.wait(lambda s: s[1].startswith("GPU USE%"))
        terminal.press("Space")
        terminal.wait(lambda s: "PAUSED" in s[0])
        terminal.press("F10")
        assert "status=0" in terminal.wait(lambda s: "status=" in "\n".join(s))


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command no other process has."""
    command = tmp_path / f"top{os.urandom(5).hex()}"
    command.symlink_to("/bin/sleep")
    with subprocess.Popen([command, "600"]) as process:
        yield process
        process.kill()


def test_a_filter_and_the_tree(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (name,) = (path.name for path in tmp_path.glob("top*"))
    with Terminal(tmp_path, TOP) as terminal:
        open_processes(terminal)
        terminal.press("/", *name)
        lines = terminal.wait(lambda s: s[-1].startswith(f"/{name}_"))
        assert lines[2].split()[0] == str(sleeper.pid)
        terminal.press("Enter", "t")
        terminal.wait(lambda s: s[-1].startswith(f"filter {name}"))
        terminal.press("q")
        terminal.wait(lambda s: "status=0" in s)


def test_another_size_is_another_screen(tmp_path: Path) -> None:
    with Terminal(tmp_path, TOP, 160, 30) as terminal:
        open_processes(terminal)
        terminal.press("p")
        terminal.wait(lambda s: "HISTORY" in s[1])
        terminal.resize(60, 10)
        lines = terminal.wait(lambda s: len(s) == 10 and "HISTORY" not in s[1] and "NOTE" in s[1])
        assert "WRITE" not in lines[1]
        terminal.resize(5, 3)
        terminal.resize(100, 20)
        terminal.wait(lambda s: len(s) == 20 and "NOTE" in s[1])


@pytest.mark.parametrize("key", ["C-c", "C-\\", "kill"])
def test_the_terminal_is_left_as_it_was(tmp_path: Path, key: str) -> None:
    pid = tmp_path / "pid"
    command = (
        f"sh -c 'echo $$ >{pid}; exec {sys.executable} -m ccagent top'; stty -a | tr ';' '\\n'"
    )
    with Terminal(tmp_path, command, height=60) as terminal:
        open_processes(terminal)
        if key == "kill":
            os.kill(int(pid.read_text()), 15)
        else:
            terminal.press(key)
        text = "\n".join(terminal.wait(lambda s: "status=" in "\n".join(s)))
        assert " echo " in text
        assert " icanon" in text
        assert "Traceback" not in text


def row_of(lines: list[str], pid: int) -> str:
    """Return the row of a process; "" without one."""
    return next((one for one in lines if one.split()[:1] == [str(pid)]), "")


def test_names_of_processes_cannot_control_the_terminal(tmp_path: Path) -> None:
    name = "\x1b[2J\u202e\u05d0\u6bd4".encode()
    program = f"""import ctypes, time
ctypes.CDLL(None).prctl({PR_SET_NAME}, {name!r})
print(1, flush=True)
time.sleep(600)"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with Terminal(tmp_path, TOP) as terminal:
            open_processes(terminal)
            # A screen may be seen while it is drawn, and other numbers may contain this one.
            terminal.press("/", *str(process.pid), "Enter")
            lines = terminal.wait(lambda s: "filter" in s[-1] and row_of(s, process.pid) != "")
            assert row_of(lines, process.pid).endswith("\ufffd[2J\ufffd\ufffd\u6bd4")
            assert has_processes(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_an_output_that_is_no_terminal_gets_text() -> None:
    for options in (("--processes",), ("--once", "--processes")):
        found = subprocess.run(
            [sys.executable, "-m", "ccagent", "top", *options], capture_output=True, text=True,
            check=False, timeout=60, env=os.environ | {"COLUMNS": "80"},
        )  # fmt: skip
        assert (found.returncode, found.stderr) == (0, "")
        lines = found.stdout.splitlines()
        assert has_processes(lines)
        assert all(width_of(line) <= 80 and line.isprintable() for line in lines)
        assert any(str(os.getpid()) in line for line in lines)


def test_json() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ccagent", "top", "--json"], capture_output=True, check=True,
        timeout=60,
    )  # fmt: skip
    snapshot = json.loads(found.stdout)
    assert any(one["pid"] == os.getpid() for one in snapshot["processes"])
    assert snapshot["cpus"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_sees_the_own_processes_and_what_is_hidden() -> None:
    # The interpreter may be where only root can read: it starts as root and then gives that up.
    program = f"""import contextlib, io, os
from ccagent.machine.bpf import pins
pins.DIRECTORY = "/nonexistent" # kernel programs of this machine show more
from ccagent.views.top.commands import top
with contextlib.redirect_stdout(io.StringIO()):
    top(["--once", "--processes"], standalone_mode=False)
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
print(os.getpid(), flush=True)
top(["--once", "--processes"])"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    pid, *lines = found.stdout.splitlines()
    assert lines[-1].startswith("as an ordinary user: ")
    (own,) = (line for line in lines if line.split()[:2] == [pid, "nobody"])
    other = next(line for line in lines if " root " in line)
    assert "-" not in own.split()[-3:]
    assert other.split()[-3:-1] == ["-", "-"]


@pytest.mark.parametrize("change", ["TERM=nothing", "TERM=dumb", "TERM=", "env -u TERM"])
def test_a_terminal_that_cannot_be_used_is_a_sentence(tmp_path: Path, change: str) -> None:
    with Terminal(tmp_path, f"{change} {sys.executable} -m ccagent top") as terminal:
        lines = terminal.wait(lambda s: "status=1" in s)
        assert "try --once" in "\n".join(lines)
        assert "Traceback" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("closed", "status", "text"),
    [("<&-", 1, "not a terminal; try --once"), (">&-", 1, "standard output: it is closed")],
)
def test_a_closed_stream_is_a_sentence(closed: str, status: int, text: str) -> None:
    found = subprocess.run(
        ["sh", "-c", f'exec "$0" -m ccagent top {closed}', sys.executable],
        stdin=subprocess.DEVNULL, stdout=_terminal_of_its_own(), stderr=subprocess.PIPE, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (found.returncode, text in found.stderr) == (status, True), found.stderr


def _terminal_of_its_own() -> int:
    _, slave = pty.openpty()
    return slave


def test_a_closed_standard_error_is_no_hindrance(tmp_path: Path) -> None:
    with Terminal(tmp_path, f"{TOP} 2>&-") as terminal:
        open_processes(terminal)
        terminal.press("q")
        terminal.wait(lambda s: "status=0" in s)


def test_a_terminal_that_is_gone_ends_it() -> None:
    # Without a controlling terminal no signal tells of it.
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "ccagent", "top"], stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, env=os.environ | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(slave)
        try:
            assert os.read(master, 1)
            os.close(master)
            assert process.wait(timeout=60) == 128 + signal.SIGHUP
        finally:
            process.kill()


def test_of_a_paste_the_last_key_is_drawn() -> None:
    master, slave = pty.openpty()
    drawn = 0
    with subprocess.Popen(
        [sys.executable, "-m", "ccagent", "top", "--processes", "--interval", "3600"],
        stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(slave)
        try:
            assert os.read(master, 1)
            select.select([master], [], [], 10)
            os.write(master, b"jkpm/a\x1b" * 500 + b"q")
            with contextlib.suppress(OSError):  # at the end
                while part := os.read(master, 1 << 16):
                    drawn += len(part)
        finally:
            process.kill()
            os.close(master)
    # Each move by itself is more than 100 bytes, another view more than 1,000.
    assert drawn < 100_000


def test_an_ascii_locale_gets_ascii(tmp_path: Path) -> None:
    name = "\u6bd4\xe9z"
    program = f"""import ctypes, time
ctypes.CDLL(None).prctl({PR_SET_NAME}, {name.encode()!r})
print(1, flush=True)
time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with Terminal(tmp_path, f"LC_ALL=C {sys.executable} -m ccagent top") as terminal:
                open_processes(terminal)
                terminal.press("/", *str(process.pid), "Enter")
                lines = terminal.wait(lambda s: str(process.pid) in s[2] and "filter" in s[-1])
                assert lines[2].endswith(" ??z")
        finally:
            process.kill()


def test_mounts_are_shown_or_the_reason_why_not(tmp_path: Path) -> None:
    with Terminal(tmp_path, TOP) as terminal:
        open_processes(terminal)
        terminal.press("m")
        lines = terminal.wait(lambda s: s[1].startswith("JOB      MOUNT"))
        assert "ccagent kernel load --io" in lines[2] or "SOURCE" in lines[1]


def test_a_job_that_is_not_here_is_unknown() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ccagent", "top", "--once", "--job", "987654321"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("ccagent: job 987654321: does not run on this node")


def test_an_interval_that_is_no_number_is_refused() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ccagent", "top", "--plain", "--interval", "nan"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.returncode == 2
    assert "--interval" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_sample_on_a_terminal_is_a_table_and_in_a_pipe_json(tmp_path: Path) -> None:
    command = f"{sys.executable} -m ccagent sample --once"
    with Terminal(tmp_path, command, 100, 60) as terminal:
        lines = terminal.wait(lambda s: "status=0" in s)
        assert any(line.startswith("JOB ") for line in lines)
        assert lines.index("status=0") <= 51
    found = subprocess.run(command.split(), capture_output=True, check=True, timeout=60)
    assert json.loads(found.stdout)["data"]["type"] == "sample"
