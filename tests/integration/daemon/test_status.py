"""What the daemon knows of itself: `ccagent status`, SIGUSR1, `extras = ["counters"]`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ccagent.errors import NotPermittedError, UnparsableError
from ccagent.service.status_socket import read_status
from tests.support.running import CCAGENT, Running, until
from tests.support.schema import validate

NOBODY = 65534

CONFIGURATION = """
cluster = "x.org"
hostname = "c1-1"
status-socket = "OUT.sock"
[agents.sample]
every = "1s"
exclude-system-jobs = true
[sinks.tree]
url = "dir:OUT"
[sinks.broken]
url = "http://127.0.0.1:9/in"
"""


def status(daemon: Running, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [*CCAGENT, "status", "--config", str(daemon.file), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def told(daemon: Running) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status(daemon, "--json").stdout or "{}")
    return found


def test_it_tells_what_agents_and_sinks_have_done(daemon: Running) -> None:
    daemon.start(CONFIGURATION)
    until(lambda: told(daemon).get("agents", {}).get("sample", {}).get("samples", 0) >= 2)
    found = told(daemon)
    assert found["node"] == "c1-1"
    assert found["pid"] == daemon.process.pid if daemon.process else 0
    assert 10_000 < found["resident-memory"] < 60_000
    agent = found["agents"]["sample"]
    assert agent["errors"] == agent["skipped"] == 0
    assert 0 < agent["cpu-seconds"] < found["cpu-seconds"]
    tree, broken = found["sinks"]["tree"], found["sinks"]["broken"]
    assert tree["queued"] == tree["sent"] == tree["acknowledged"] == agent["samples"]
    assert tree["backlog"] == 0
    assert broken["queued"] == broken["backlog"] == agent["samples"]
    assert broken["retried"] == broken["sent"] > 0
    assert broken["last-error"] == ("http://127.0.0.1:9/in: connection refused")
    daemon.stop()
    assert not Path(f"{daemon.out}.sock").exists()


def test_people_read_a_table(daemon: Running) -> None:
    daemon.start(CONFIGURATION)
    until(lambda: "connection refused" in status(daemon).stdout)
    lines = status(daemon).stdout.splitlines()
    assert lines[0].endswith("node c1-1 of x.org")
    assert [line.split()[0] for line in lines if line] == [
        "ccagent", "running", "agent", "sample", "sink", "tree", "broken", "http://127.0.0.1:9/in:",
    ]  # fmt: skip


def test_a_dead_slurm_is_an_error_of_its_agents(daemon: Running) -> None:
    """Both agents send an envelope with the error, and raise nothing."""
    tool = daemon.out.with_name("slurm")
    tool.write_text("#!/bin/sh\necho 'slurm: error: Unable to contact it' >&2\nexit 1\n")
    tool.chmod(0o755)
    daemon.start(
        'cluster = "x.org"\nstatus-socket = "OUT.sock"\n[sinks.tree]\nurl = "dir:OUT"\n'
        f'[agents.cluster]\nevery = "1s"\nsinfo = "{tool}"\n'
        f'[agents.jobs]\nevery = "1s"\nsacct = "{tool}"\nsqueue = "{tool}"\n'
    )
    until(
        lambda: all(
            told(daemon).get("agents", {}).get(name, {}).get("errors", 0) >= 2
            for name in ("cluster", "jobs")
        )
    )
    for agent in told(daemon)["agents"].values():
        assert agent["samples"] == 0
        assert "Unable to contact it" in agent["last-error"]
    assert status(daemon).stdout.count("Unable to contact it") == 2
    tool.write_text("#!/bin/sh\n")
    until(lambda: "Unable" not in status(daemon).stdout)


def test_without_a_daemon_it_says_so(daemon: Running) -> None:
    daemon.file.write_text(CONFIGURATION.replace("OUT", str(daemon.out)))
    result = status(daemon)
    assert result.returncode == 1
    assert result.stderr == (
        f"ccagent: {daemon.out}.sock: no running daemon answers: No such file or directory\n"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_others_may_not_ask(daemon: Running) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        place = Path(directory, "sock")
        daemon.start(CONFIGURATION.replace("OUT.sock", str(place)))
        until(lambda: status(daemon).returncode == 0)
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                read_status(str(place))
            except NotPermittedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        daemon.stop()


def test_a_client_that_says_nothing_keeps_nobody_waiting(daemon: Running) -> None:
    daemon.start(CONFIGURATION)
    until(lambda: status(daemon).returncode == 0)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(f"{daemon.out}.sock")
        assert status(daemon).returncode == 0


def test_a_socket_that_a_killed_daemon_left_is_taken_over(daemon: Running) -> None:
    daemon.start(CONFIGURATION)
    until(lambda: status(daemon).returncode == 0)
    assert daemon.process is not None
    daemon.process.kill()
    daemon.process.wait()
    assert "Connection refused" in status(daemon).stderr
    daemon.start(CONFIGURATION)
    until(lambda: status(daemon).returncode == 0)


def test_a_second_daemon_leaves_the_socket_to_the_first(daemon: Running, tmp_path: Path) -> None:
    daemon.start(CONFIGURATION)
    until(lambda: status(daemon).returncode == 0)
    assert daemon.process is not None
    first = daemon.process
    daemon.start(CONFIGURATION)
    until(lambda: "another daemon listens there; no status" in daemon.said())
    assert told(daemon)["pid"] == first.pid
    daemon.stop()
    assert told(daemon)["pid"] == first.pid
    first.terminate()
    first.wait(60)


def test_a_directory_that_does_not_exist_is_no_fault(daemon: Running) -> None:
    daemon.start(CONFIGURATION.replace("OUT.sock", "OUT/not/here.sock"), "-vv")
    until(daemon.written)
    until(lambda: "there is no such directory; no status" in daemon.said())
    daemon.stop()


def test_what_answers_may_be_something_else(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(path)
            connected, _ = other.accept()
            connected.close()
        child = os.fork()
        if child == 0:
            connected, _ = other.accept()
            connected.sendall(b"SSH-2.0")
            os._exit(0)
        with pytest.raises(UnparsableError, match="not from a ccagent of this version"):
            read_status(path)
        os.waitpid(child, 0)


def test_sigusr1_writes_the_counters_to_the_log_however_quiet_it_is(daemon: Running) -> None:
    daemon.start(CONFIGURATION, "--cluster", "x.org")
    until(daemon.written)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGUSR1)
    until(lambda: "status: " in daemon.said())
    (line,) = [line for line in daemon.said().splitlines() if "status: " in line]
    assert line.startswith("ccagent: info: status: ")
    assert "; agent sample: " in line
    assert "; sink tree: " in line
    assert "; sink broken: " in line


def test_envelopes_carry_counters_on_demand_only(daemon: Running) -> None:
    on_demand = CONFIGURATION.replace("[sinks.tree]", 'extras = ["counters"]\n[sinks.tree]')
    daemon.start(on_demand)
    until(lambda: len(daemon.written()) >= 2)
    daemon.stop()
    last = daemon.written()[-1]
    validate("SampleEnvelope", json.dumps(last))
    found = {pair["key"]: pair.get("value", "") for pair in last["meta"]["attrs"]}
    assert int(found["ccagent.samples"]) >= 1
    assert float(found["ccagent.cpu-seconds"]) > 0
    assert int(found["ccagent.tree.acknowledged"]) >= 1
    assert int(found["ccagent.resident-memory"]) > 10_000
    daemon.start(CONFIGURATION)
    until(lambda: len(daemon.written()) >= 4)
    daemon.stop()
    assert "attrs" not in daemon.written()[-1]["meta"]
