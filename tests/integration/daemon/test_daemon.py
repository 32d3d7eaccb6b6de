"""The daemon, as systemd runs it; and a day of it, with a fast clock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ccagent import __version__
from ccagent.config.configuration import check
from ccagent.daemon.daemon import Daemon
from ccagent.machine.node import Node
from tests.support.fast_clock import MIDNIGHT, FastClock, moments
from tests.support.running import CCAGENT, Running, until
from tests.support.schema import validate
from tests.support.tree import TreeNode

SAMPLE = """
[agents.sample]
every = "1s"
[sinks.tree]
url = "dir:OUT"
"""


def test_it_samples_until_it_is_told_to_stop(daemon: Running) -> None:
    daemon.start(SAMPLE)
    until(lambda: len(daemon.written()) >= 3)
    assert daemon.stop() < 30
    seconds: list[str] = []
    for envelope in daemon.written():
        validate("SampleEnvelope", json.dumps(envelope))
        seconds.append(envelope["data"]["attributes"]["time"])
    assert len(set(seconds)) == len(seconds)
    complaints = [
        line
        for line in daemon.said().splitlines()
        if "I/O counters" not in line and "ccagent: info: " not in line
    ]
    assert complaints == []


def test_the_log_says_what_runs_at_the_start_and_after_a_reload(daemon: Running) -> None:
    more = '[sinks.more]\nurl = "http://127.0.0.1:9/in?token=S3CRET"\nformat = "line"\n'
    daemon.start('log-level = "error"\n' + SAMPLE, "--cluster", "x.org")  # however quiet it is
    runs = rf"ccagent {__version__}(\+g[0-9a-f]+)? with {daemon.file}; agents: sample every 1s"
    tree = f"sinks: tree dir:{daemon.out}"
    until(lambda: re.search(rf"info: started: {runs}; {tree}$", daemon.said(), re.MULTILINE))
    daemon.reload(SAMPLE.replace("every", "on-startup = true\nevery") + more)
    read = rf"info: configuration read again: {runs} and at the start; {tree}; more http://127"
    until(lambda: re.search(read, daemon.said()))
    daemon.stop()
    assert "S3CRET" not in daemon.said()


def test_a_new_configuration_is_taken_over_and_counters_are_kept(daemon: Running) -> None:
    daemon.start(SAMPLE)
    until(lambda: len(daemon.written()) >= 2)
    daemon.reload(SAMPLE.replace("dir:OUT", "dir:OUT/new"))
    until(lambda: len(daemon.written("new")) >= 2)
    assert daemon.stop() < 30
    times = [e["data"]["attributes"]["time"] for e in daemon.written()]
    moments = sorted(datetime.fromisoformat(text).timestamp() for text in times)
    # No moment twice; a busy machine may leave one out.
    assert {later - moment for moment, later in pairwise(moments)} <= {1, 2, 3}


def test_a_bad_new_configuration_changes_nothing(daemon: Running) -> None:
    daemon.start(SAMPLE)
    until(lambda: len(daemon.written()) >= 1)
    daemon.reload(SAMPLE.replace("every", "evry"))
    until(lambda: "evry" in daemon.said())
    assert "did you mean 'every'?" in daemon.said()
    before = len(daemon.written())
    until(lambda: len(daemon.written()) > before + 1)
    daemon.stop()


def test_a_reload_takes_agents_and_sinks_away_and_loses_nothing(daemon: Running) -> None:
    daemon.start(SAMPLE + '[sinks.gone]\nurl = "dir:OUT/gone"\n[agents.sysinfo]\nevery = "1d"\n')
    until(lambda: daemon.written("gone"))
    daemon.reload(SAMPLE)
    until(lambda: "configuration read again" in daemon.said())
    count = len(daemon.written("gone"))
    every = len([e for e in daemon.written() if e not in daemon.written("gone")])
    until(lambda: len([e for e in daemon.written() if e not in daemon.written("gone")]) > every + 1)
    assert len(daemon.written("gone")) <= count + 1
    daemon.stop()
    assert "lost" not in daemon.said()


def test_only_one_runs_per_lock_directory(daemon: Running, tmp_path: Path) -> None:
    configuration = f'lock-directory = "{tmp_path}"\n{SAMPLE}'
    daemon.start(configuration)
    until(daemon.written)
    second = subprocess.run(
        [*CCAGENT, "run", "--config", str(daemon.file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert daemon.process is not None
    assert second.returncode == 1
    assert f"(process {daemon.process.pid})" in second.stderr
    daemon.process.kill()
    daemon.process.wait()
    before = len(daemon.written())
    daemon.start(configuration)
    until(lambda: len(daemon.written()) > before)
    daemon.stop()


def test_only_one_runs_per_outbox_directory(daemon: Running, tmp_path: Path) -> None:
    outbox = f"""
        [outbox]
        directory = "{tmp_path}/outbox"
        [sinks.down]
        url = "http://127.0.0.1:9/"
        """
    daemon.start(SAMPLE + outbox)
    until((tmp_path / "outbox" / "daemon.lock").exists)
    until(daemon.written)
    second = subprocess.run(
        [*CCAGENT, "run", "--config", str(daemon.file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert daemon.process is not None
    assert second.returncode == 1
    assert second.stderr == (
        f"ccagent: another ccagent holds {tmp_path}/outbox/daemon.lock "
        f"(process {daemon.process.pid})\n"
    )
    daemon.stop()


def test_a_command_that_hangs_stalls_only_its_agent(daemon: Running) -> None:
    daemon.start(
        SAMPLE
        + """
        [agents.sysinfo]
        every = "5s"
        on-startup = true
        time-limit = "1s"
        topo-text-command = "sleep 100"
        topo-time-limit = "90s"
        """
    )
    until(lambda: len(daemon.written()) >= 4)
    until(lambda: "agent sysinfo: not finished after 1s" in daemon.said())
    assert "ccagent: error: agent sysinfo" in daemon.said()
    assert daemon.stop() < 30


def test_a_sink_that_is_down_does_not_delay_the_other(daemon: Running) -> None:
    daemon.start(SAMPLE + '[sinks.down]\nurl = "http://127.0.0.1:9/"\n')
    until(lambda: len(daemon.written()) >= 4)
    until(lambda: "sink down: " in daemon.said())
    assert daemon.said().count("sink down: ") == 1
    assert daemon.stop() < 30
    assert "could not be sent and are lost" in daemon.said()


def simulated(clock: FastClock, out: Path, every: str, duration: float) -> list[str]:
    """Run a daemon for `duration` seconds of `clock`; give the times of its samples."""
    table = {
        "cluster": "x",
        "agents": {"sample": {"every": every, "exclude-system-jobs": True}},
        "sinks": {"tree": {"url": f"dir:{out}"}},
    }
    daemon = Daemon(lambda: check(table, "test"), clock)
    clock.is_idle, clock.end = lambda: daemon.is_idle, daemon.stop
    clock.until = duration
    daemon.run()
    files = sorted(out.rglob("0+sample-*.json"))
    return [
        json.loads(line)["data"]["attributes"]["time"]
        for file in files
        for line in file.read_text().splitlines()
    ]


@pytest.fixture
def small_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: a sample of the real machine takes twenty times as long."""
    tree = TreeNode(tmp_path / "machine")
    tree.process(42)
    tree.process(43)
    monkeypatch.setattr("ccagent.config.configuration.Node", partial(Node, root=str(tree.path)))


@pytest.mark.usefixtures("utc", "small_machine")
def test_a_day_has_no_drift_no_missed_and_no_double_tick_and_leaks_nothing(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()

    times = simulated(FastClock(MIDNIGHT + 1), tmp_path / "out", "1m", 86400)

    assert moments(times) == [MIDNIGHT + 60 * n for n in range(1, 1441)]
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert threading.active_count() <= threads
    assert [file.parent.name for file in sorted((tmp_path / "out").rglob("*.json"))] == ["15", "16"]


@pytest.mark.usefixtures("utc", "small_machine")
def test_a_clock_that_jumps_does_no_harm(tmp_path: Path) -> None:
    clock = FastClock(MIDNIGHT + 1)
    clock.jumps = {5000.0 + 600: 7200, 5000.0 + 1200: -7200, 5000.0 + 1800: -0.5}

    found = moments(simulated(clock, tmp_path / "out", "1m", 2400))

    # What was due when the clock was set ahead comes at once; all others are aligned.
    late = [moment for moment in found if moment % 60]
    assert len(late) <= 1
    steps = sorted(b - a for a, b in pairwise(found) if {a, b}.isdisjoint(late))
    assert steps[0] == pytest.approx(-7200, abs=120)
    assert set(steps[1:]) <= {60, 120, 7200}
    assert len(found) >= 36
