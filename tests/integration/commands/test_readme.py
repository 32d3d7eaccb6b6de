"""The README's half hour, walked in a clean copy of the sources and an empty environment.

All its commands run in their order in a terminal, as they stand. The servers run too, on the ports
that the README names, in a network of their own. Only /tmp/ccagent is another directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.documents import Block, blocks
from tests.support.paths import ROOT
from tests.support.schema import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "/tmp/ccagent"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")

NOT_RUN = {
    "git clone https://example.org/ccagent && cd ccagent":
        ("there is no public address", "pyproject.toml", "https://example.org/ccagent"),
    "sh tests/run": ("this is what runs these tests", ".ci/run", "sh tests/run"),
    "apt-get install -y curl mosquitto mosquitto-clients victoria-metrics":
        ("tests/run has installed them", "tests/run", "need mosquitto_sub mosquitto-clients"),
}  # fmt: skip
"""Commands that don't run here: why, and which file runs them, or sees to it, in which words."""

ENDLESS = {"ccagent try": 15}
"""What goes on until it is interrupted: after how many seconds it is."""


class Done(NamedTuple):
    command: str
    status: int
    output: str


class Terminal:
    """A shell, and all that is printed in it."""

    def __init__(self, directory: Path, *wrapper: str) -> None:
        self.text = ""
        path = os.pathsep.join([f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"])
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HOME"))}
        # Most of what pip would compile is never imported.
        options = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
        self._process = subprocess.Popen(
            [*wrapper, "bash", "--norc", "--noprofile"],
            cwd=directory,
            env={**kept, "PATH": path, **options},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._count = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def run(self, command: str) -> Done:
        """Type a command and wait for its end."""
        self._count += 1
        mark, begin = f"--- {self._count} ended with", len(self.text)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' '{mark}' $?\n".encode())
        self._process.stdin.flush()
        ended = re.compile(rf"^{mark} (\d+)$", re.MULTILINE)
        self.wait(ended, 300, begin)
        found = ended.search(self.text, begin)
        assert found is not None
        return Done(command, int(found[1]), self.text[begin : found.start()])

    def wait(self, pattern: re.Pattern[str], seconds: float = 60, begin: int = 0) -> None:
        """Wait until that has been printed."""
        deadline = time.monotonic() + seconds
        while pattern.search(self.text, begin) is None:
            assert time.monotonic() < deadline, self.text[begin:]
            assert self._process.poll() is None, self.text[begin:]
            time.sleep(0.02)

    def close(self) -> None:
        """End the shell and, should they still run, its children."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"kill $(jobs -p) 2>/dev/null; wait; exit\n")
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 65536):
            self.text += data.decode(errors="replace")
        self._process.stdout.close()


class Walk:
    """What was done, by command, and what the terminals showed."""

    def __init__(self, source: Path, place: Path) -> None:
        self.done: dict[str, Done] = {}
        self._place = str(place)
        self._source = source
        self._outside = Terminal(source)
        self._inside: Terminal | None = None

    @property
    def shown(self) -> str:
        """What the terminal of the servers has shown."""
        return self._inside.text if self._inside is not None else ""

    def shows(self, pattern: str) -> None:
        assert self._inside is not None
        self._inside.wait(re.compile(pattern, re.MULTILINE))

    def take(self, block: Block) -> None:
        """Save a file, or run commands, as the README says."""
        if block.kind == "toml":
            text = block.text.replace(PLACE, self._place)
            (self._source / block.name).write_text(text)
        for command in block.commands:
            if command not in NOT_RUN:
                began = time.monotonic()
                self.done[command] = self._run(command)
                print(f"{time.monotonic() - began:6.1f} s  {command}")  # with `pytest -s`

    def close(self) -> None:
        for terminal in (self._inside, self._outside):
            if terminal is not None:
                terminal.close()

    def _run(self, command: str) -> Done:
        typed = command.replace(PLACE, self._place)
        if "pip install" in command:  # what needs the network of outside
            return self._outside.run(typed)
        if self._inside is None:
            user = () if os.getuid() == 0 else ("--map-root-user",)
            self._inside = Terminal(self._source, "unshare", "--net", *user)
            self._inside.run("ip link set lo up")
            self._inside.run(". .venv/bin/activate")
        if command in ENDLESS:
            typed = f"timeout --signal=INT {ENDLESS[command]} {typed}"
        return self._inside.run(typed)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    directory = tmp_path_factory.mktemp("readme")
    source = directory / "ccagent"
    shutil.copytree(ROOT, source, symlinks=True, ignore=LEFT_OUT)
    walked = Walk(source, directory / "place")
    try:
        for block in blocks(ROOT / "README.md"):
            if block.name or block.kind == "sh":
                walked.take(block)
        yield walked
    finally:
        walked.close()


def command(words: str) -> str:
    """Find the one command of the README that has these words."""
    (found,) = [one for one in commands() if words in one]
    return found


def commands() -> list[str]:
    return [one for block in blocks(ROOT / "README.md") for one in block.commands]


def test_every_command_does_what_it_should(walk: Walk) -> None:
    failed = [
        done
        for name, done in walk.done.items()
        if done.status != (124 if name in ENDLESS else 0) or "Traceback" in done.output
    ]
    assert not failed
    assert set(walk.done) | set(NOT_RUN) == set(commands())


def test_what_is_not_run_stands_in_the_readme_and_is_run_elsewhere() -> None:
    for one, (reason, file, words) in NOT_RUN.items():
        assert reason
        assert one in commands()
        assert words in (ROOT / file).read_text()
    packages = next(one for one in NOT_RUN if one.startswith("apt-get")).split()[3:]
    installed = re.findall(r"^ *need \S+ (.*)$", (ROOT / "tests/run").read_text(), re.MULTILINE)
    assert set(packages) <= {name for names in installed for name in names.split()}
    assert set(ENDLESS) <= set(commands())


def test_the_first_command_prints_a_sample_of_this_machine(walk: Walk) -> None:
    (line,) = [
        line
        for line in walk.done[command("pip install . ")].output.splitlines()
        if line.startswith("{")
    ]
    validate("SampleEnvelope", line.encode())


def test_the_daemon_writes_samples_and_tells_of_them(walk: Walk) -> None:
    assert "sample" in walk.done[command("ccagent status")].output
    files = walk.done[command("find ")].output.split()
    (sample,) = [file for file in files if "0+sample-" in file]
    envelope = json.loads(Path(sample).read_text().splitlines()[0])
    assert envelope["data"]["attributes"]["cluster"] == "fox"


def test_samples_arrive_in_jetstream(walk: Walk) -> None:
    shown = walk.done[command("jetstream.py show")].output
    assert "fox: 2 messages" in shown
    assert "fox.sample: {" in shown
    validate("SampleEnvelope", shown.partition("fox.sample: ")[2].splitlines()[0].encode())


def test_lines_arrive_on_a_subject_and_over_http(walk: Walk) -> None:
    walk.shows(r"^fox\.metrics: \w+,cluster=fox,hostname=")
    lines = walk.done[command("/export")].output.splitlines()
    series = [json.loads(line) for line in lines if line.startswith("{")]
    (node,) = [one for one in series if one["metric"]["type"] == "node"]
    assert node["metric"]["cluster"] == "fox"
    assert node["values"][0] > 0
    described = walk.done[command("--cluster-config")].output
    assert '"name": "fox"' in described
    assert '"name": "mem_used"' in described


def test_samples_and_metrics_arrive_at_an_mqtt_broker(walk: Walk) -> None:
    walk.shows(r"^fox/metrics/\S+ \w+,cluster=fox,hostname=")
    walk.shows(r"^fox/sample/\S+ \{")
    (sample,) = re.findall(r"^fox/sample/\S+ (\{.*\})$", walk.shown, re.MULTILINE)
    validate("SampleEnvelope", sample.encode())


def test_nothing_waits(walk: Walk) -> None:
    waiting = walk.done["ccagent outbox --config jetstream.toml"].output
    assert re.search(r"^backend +0 ", waiting, re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 240
