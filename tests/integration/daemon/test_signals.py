"""Signals at any moment: while the daemon starts, runs, reads its configuration and ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.running import CCAGENT, Running, until

SAMPLE = """
[agents.sysinfo]
every = "1h"
[sinks.tree]
url = "dir:OUT"
"""

STARTS = 12


def command(tmp_path: Path) -> list[str]:
    file = tmp_path / "ccagent.toml"
    file.write_text(SAMPLE.replace("OUT", str(tmp_path / "out")))
    return [*CCAGENT, "run", "--config", str(file)]


def runs_our_code(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the interpreter has come to ccagent: before, a signal meets Python itself."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    return bool(int(fields["SigBlk"], 16) & 1 << (signal.SIGHUP - 1)) or bool(
        int(fields["SigCgt"], 16) & 1 << (signal.SIGHUP - 1)
    )


def complaints(said: bytes) -> list[bytes]:
    """Return what was logged besides what runs, at the start and after reloads."""
    usual = (b"ccagent: info: started: ", b"ccagent: info: configuration read again: ")
    return [line for line in said.splitlines() if not line.startswith(usual)]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    until(lambda: process.poll() is not None or runs_our_code(process))
    return process


def test_sighup_at_any_moment_of_the_start_ends_nothing(tmp_path: Path) -> None:
    arguments = command(tmp_path)
    for number in range(STARTS):
        process = start(arguments)
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
            time.sleep(random.uniform(0.0, number / STARTS / 3))
        assert process.poll() is None
        # From here on signals have handlers, which is also when SIGTERM ends it in good order.
        until(partial(handles, process, signal.SIGTERM))
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert (process.returncode, complaints(said)) == (0, [])


def handles(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        (caught,) = (line.split()[1] for line in file if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (number - 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ending_it_at_any_moment_of_the_start_is_quiet(
    tmp_path: Path, number: signal.Signals
) -> None:
    arguments = command(tmp_path)
    for attempt in range(STARTS):
        process = start(arguments)
        time.sleep(random.uniform(0.0, attempt / STARTS))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode in {0, -number, 128 + number}
        assert complaints(said) == []


def test_ctrl_c_during_a_one_shot_is_quiet(tmp_path: Path) -> None:
    """From the first line of ccagent on; there is no traceback, wherever it is."""
    script = (
        "import os, signal, sys, threading, time\n"
        "from ccagent import __main__ as program\n"
        "pause = float(sys.argv.pop(1))\n"
        "def interrupt():\n"
        "    time.sleep(pause)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "program._prepare_signals()\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "program.main()\n"
    )
    for number in range(STARTS):
        pause = str(0.4 * number / STARTS)
        result = subprocess.run(
            [CCAGENT[0], "-c", script, pause, "sysinfo", "--once"],
            capture_output=True, check=False, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        assert result.returncode in {0, -signal.SIGINT, 130}
        assert b"Traceback" not in result.stderr
        assert b"KeyboardInterrupt" not in result.stderr


def errors(daemon: Running) -> list[str]:
    return [line for line in daemon.said().splitlines() if not line.startswith("ccagent: info: ")]


def send_many(process: subprocess.Popen[bytes], numbers: list[signal.Signals]) -> None:
    """Send these signals without a pause until the process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline, "signals keep it from ending"
        for number in numbers:
            process.send_signal(number)


def test_many_signals_while_it_ends(daemon: Running) -> None:
    daemon.start(SAMPLE)
    process = daemon.process
    assert process is not None
    until(lambda: "started: " in daemon.said())
    process.terminate()
    send_many(process, [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
    assert process.returncode == 0
    assert errors(daemon) == []


def test_many_signals_while_it_runs(daemon: Running) -> None:
    """They do not nest: a handler in Python would end in RecursionError, anywhere in the loop."""
    daemon.start(SAMPLE)
    process = daemon.process
    assert process is not None
    until(lambda: "started: " in daemon.said())
    for _ in range(20_000):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
    daemon.stop()
    assert errors(daemon) == []
    assert "ccagent: info: status: " in daemon.said()


def test_a_pipe_in_the_place_of_the_configuration_stalls_nothing(daemon: Running) -> None:
    daemon.start(SAMPLE.replace("sysinfo", "sample").replace("1h", "1s"))
    until(daemon.written)
    daemon.file.unlink()
    os.mkfifo(daemon.file)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "ccagent.toml: not a regular file" in daemon.said())
    assert daemon.stop() < 30


def test_a_pipe_in_the_place_of_certificates_stalls_nothing(
    daemon: Running, tmp_path: Path
) -> None:
    """OpenSSL waits for its writer; the agents and SIGTERM do not."""
    samples = SAMPLE.replace("sysinfo", "sample").replace("1h", "1s")
    daemon.start(samples)
    until(daemon.written)
    os.mkfifo(tmp_path / "ca.pem")
    daemon.reload(
        samples + f'[sinks.tls]\nurl = "https://127.0.0.1:9/"\nca-file = "{tmp_path}/ca.pem"\n'
    )
    before = len(daemon.written())
    until(lambda: len(daemon.written()) > before + 2)
    until(lambda: "the old one stays: " in daemon.said())
    assert daemon.stop() < 30


def test_sigterm_while_the_first_configuration_hangs(daemon: Running, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ca.pem")
    daemon.start(
        SAMPLE + f'[sinks.tls]\nurl = "https://127.0.0.1:9/"\nca-file = "{tmp_path}/ca.pem"\n'
    )
    until(lambda: daemon.process and handles(daemon.process, signal.SIGTERM))
    time.sleep(1)
    assert daemon.stop() < 30


def test_a_hangup_ends_what_runs_in_a_terminal() -> None:
    process = start_sampling([*CCAGENT, "sysinfo", "--every", "1h"])
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0


def test_nohup_is_respected() -> None:
    process = start_sampling(["nohup", *CCAGENT, "sysinfo", "--every", "1h"])
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 0


def start_sampling(arguments: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: handles(process, signal.SIGTERM))
    return process
