"""Metrics of commands: run beside the samples, bounded, ended with the agent."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ccagent.agents.metrics.custom import CommandsReader, CustomMetrics
from ccagent.agents.metrics.readers.base import Gauge
from ccagent.agents.metrics.settings import CommandSettings
from ccagent.config.duration import Duration
from tests.support.running import until
from tests.support.tree import TreeNode


class Site:
    """A node on which the test's commands run; time of day goes on when the test says so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = TreeNode(root / "node")
        self.readers: list[CommandsReader] = []
        self._others = self._children()

    def shell(self, script: str, **settings: object) -> CommandsReader:
        return self.reader(command=("/bin/sh", "-c", script), **settings)

    def reader(self, command: tuple[str, ...], **settings: object) -> CommandsReader:
        durations = {key: Duration(str(value)) for key, value in settings.items()}
        table = CommandSettings(command=command, **durations)
        reader = CommandsReader({"site": table}, CustomMetrics(()))
        self.readers.append(reader)
        return reader

    def tick(
        self, reader: CommandsReader, seconds: float = 0, *, waits: bool = False
    ) -> list[Gauge]:
        """Advance the clock and take a sample."""
        self.node.still.sleep(seconds)
        reader.begin(self.node)
        return reader.read(self.node, waits=waits)

    def processes(self) -> int:
        """How many programs run that were not there before."""
        return len(self._children() - self._others)

    def _children(self) -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    def runs(self) -> int:
        """How often a script has written a line into the file `runs`."""
        file = self.root / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for reader in site.readers:
        reader.close()


def test_what_a_command_prints_is_told(site: Site) -> None:
    reader = site.shell("echo jobs value=3i")
    assert site.tick(reader, waits=True) == [Gauge("jobs", 3.0)]
    assert reader.errors == []


def test_arguments_meet_no_shell(site: Site) -> None:
    reader = site.reader(("/usr/bin/printf", "%s value=1\\n", "$HOME;*"))
    assert site.tick(reader, waits=True) == []
    assert reader.errors == [
        "command site: $HOME;*: a metric's name has letters, digits and '_' only"
    ]


def test_it_runs_as_often_as_its_table_says(site: Site) -> None:
    reader = site.shell(f"echo x >> {site.root}/runs; echo jobs value=3", every="60s")
    assert site.node.clock.time() % 60 == 0
    told = [len(site.tick(reader, 10, waits=True)) for _ in range(12)]
    assert told == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert site.runs() == 3


def test_it_may_run_with_every_sample(site: Site) -> None:
    reader = site.shell("echo jobs value=3", every="0s")
    assert [len(site.tick(reader, waits=True)) for _ in range(3)] == [1, 1, 1]


def test_one_that_is_slow_is_told_with_a_later_sample_and_stalls_none(site: Site) -> None:
    go_on = site.root / "go-on"
    reader = site.shell(
        f"echo x >> {site.root}/runs; while ! test -e {go_on}; do sleep 0.01; done; echo a value=1",
        every="10s", time_limit="60s",
    )  # fmt: skip
    begin = time.monotonic()
    assert site.tick(reader, 10) == []
    assert reader.errors == []
    assert site.tick(reader, 10) == []
    assert reader.errors == ["command site: still running; not started again"]
    assert time.monotonic() - begin < 30
    go_on.touch()
    until(lambda: reader.read(site.node) == [Gauge("a", 1.0)])
    assert site.runs() == 1
    assert site.tick(reader, 10, waits=True) == [Gauge("a", 1.0)]
    assert site.runs() == 2


def test_what_was_ready_between_samples_is_not_lost(site: Site) -> None:
    first, go_on = site.root / "first", site.root / "go-on"
    reader = site.shell(
        f"if test -e {first}; then while ! test -e {go_on}; do sleep 0.01; done; echo a value=2; "
        f"else touch {first}; echo a value=1; fi",
        every="10s", time_limit="60s",
    )  # fmt: skip
    reader.begin(site.node)
    until(lambda: "command site" not in {thread.name for thread in threading.enumerate()})
    assert site.tick(reader, 10) == [Gauge("a", 1.0)]
    go_on.touch()
    until(lambda: reader.read(site.node) == [Gauge("a", 2.0)])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo jobs value=1; echo broken >&2; exit 3", "exit status 3: broken"),
        ("echo jobs value=1; exec sleep 1000", "not finished after 0.2 s"),
        ("while echo jobs value=1; do :; done", "printed more than 1048576 bytes"),
    ],
)
def test_one_that_fails_tells_nothing_but_why(site: Site, script: str, reason: str) -> None:
    limit = "200ms" if "sleep" in script else "60s"
    reader = site.shell(script, every="1s", time_limit=limit)
    assert site.tick(reader, waits=True) == []
    assert reader.errors == [f"command site: /bin/sh: {reason}"]
    assert site.processes() == 0
    assert site.tick(reader, 1, waits=True) == []
    assert reader.errors == [f"command site: /bin/sh: {reason}"]


def test_a_program_that_is_missing_is_said(site: Site) -> None:
    reader = site.reader(("/no/such",))
    assert site.tick(reader, waits=True) == []
    assert reader.errors == ["command site: /no/such: no such program"]


def test_bad_lines_are_said(site: Site) -> None:
    reader = site.shell("echo a value=1; echo 'b value='; printf 'c value=3'")
    assert site.tick(reader, waits=True) == [Gauge("a", 1.0), Gauge("c", 3.0)]
    (error,) = reader.errors
    assert error.startswith("command site: line 2, column 9: expected a number")


def test_all_of_them_run_at_the_same_time(site: Site) -> None:
    there = site.root / "there"
    scripts = {
        "waiting": f"while ! test -e {there}; do sleep 0.01; done; echo a value=1",
        "awaited": f"touch {there}; echo b value=2",
    }
    tables = {
        name: CommandSettings(command=("/bin/sh", "-c", script), time_limit=Duration("60s"))
        for name, script in scripts.items()
    }
    reader = CommandsReader(tables, CustomMetrics(()))
    site.readers.append(reader)
    assert site.tick(reader, waits=True) == [Gauge("a", 1.0), Gauge("b", 2.0)]


def test_those_that_run_are_ended_with_the_reader(site: Site) -> None:
    script = f"import time; open({str(site.root / 'runs')!r}, 'w').write('x'); time.sleep(1000)"
    reader = site.reader((sys.executable, "-c", script), time_limit="1h")
    assert site.tick(reader) == []
    until(lambda: site.runs() == 1)
    assert site.processes() == 1
    reader.close()
    assert site.processes() == 0


def test_nothing_stays_open(site: Site) -> None:
    before = psutil.Process().num_fds()
    reader = site.shell("echo a value=1", every="0s")
    for _ in range(3):
        assert site.tick(reader, waits=True)
    reader.close()
    reader.close()
    assert psutil.Process().num_fds() == before
