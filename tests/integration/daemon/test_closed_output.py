"""Standard output that nobody reads any more, is full, or was closed."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.support.running import CCAGENT

AGENTS = ["sample", "sysinfo", "metrics"]


def piped(command: list[str], reads: int = 1) -> tuple[int, bytes, float]:
    """Read some bytes and leave; return exit status, stderr, and the seconds until the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(reads)
    process.stdout.close()
    begin = time.monotonic()
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    return process.wait(60), said, time.monotonic() - begin


def complaints(said: bytes) -> list[bytes]:
    usual = (b"I/O counters", b"ccagent: info: started: ")
    return [line for line in said.splitlines() if not any(text in line for text in usual)]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_reader_that_leaves_ends_what_runs_again_and_again(agent: str) -> None:
    """As `ccagent sample --every 1s | head -1` does."""
    status, said, seconds = piped([*CCAGENT, agent, "--every", "1s"])
    assert (status, complaints(said)) == (141, [])
    assert seconds < 60


def test_it_ends_although_nothing_is_printed_for_hours() -> None:
    command = [*CCAGENT, "sysinfo", "--every", "1h", "--set", "on-startup=true"]
    status, said, seconds = piped(command)
    assert (status, complaints(said)) == (141, [])
    assert seconds < 60


def test_the_daemon_ends_too_and_loses_nothing_of_its_other_sinks(tmp_path: object) -> None:
    file = f"{tmp_path}/ccagent.toml"
    with open(file, "w", encoding="ascii") as written:
        written.write(
            '[agents.sysinfo]\nevery = "1h"\non-startup = true\n[sinks.out]\nurl = "stdout:"\n'
            f'[sinks.tree]\nurl = "dir:{tmp_path}/out"\n'
        )
    status, said, seconds = piped([*CCAGENT, "run", "--config", file])
    assert (status, complaints(said)) == (141, [])
    assert seconds < 60
    found = subprocess.run(
        ["find", f"{tmp_path}/out", "-type", "f"], capture_output=True, check=True
    )
    assert found.stdout.count(b"\n") == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_one_sample_that_nobody_reads_is_quiet(agent: str) -> None:
    process = subprocess.Popen(
        [*CCAGENT, agent, "--once"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert complaints(process.stderr.read()) == []
    assert process.wait(60) == 141


@pytest.mark.parametrize("command", [["config", "defaults"], ["agents"], ["sinks"]])
def test_other_commands_are_as_quiet(command: list[str]) -> None:
    process = subprocess.Popen([*CCAGENT, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 141


@pytest.mark.parametrize("command", [["sysinfo", "--once"], ["config", "defaults"], ["--help"]])
def test_a_full_output_is_an_error(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*CCAGENT, *command], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert result.returncode == 1
    (line,) = complaints(result.stderr)
    assert line.endswith(b"No space left on device")
