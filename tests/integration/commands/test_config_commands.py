"""`ccagent config` as somebody at a shell runs it, and `conf.d` under a daemon that runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.running import Running, until

INI = """\
[global]
cluster = fox
role = node
hostname-only = true
[directory]
data-directory = /srv/sonar
[sample]
cadence = 1m
load = false
"""


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Return exit status, output and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "ccagent", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A main file with `conf.d` beside it."""
    file = tmp_path / "ccagent.toml"
    file.write_text("[agents.sample]\nevery = '1s'\n[sinks.a]\nurl = 'dir:OUT/a'\n")
    (tmp_path / "conf.d").mkdir()
    return file


def test_check_names_all_files(main: Path) -> None:
    main.write_text(main.read_text().replace("OUT", str(main.parent)))
    more = main.parent / "conf.d" / "a.toml"
    more.write_text("[agents.sample]\nrollup = true\n")
    assert run("config", "check", main) == (0, f"{main}, {more}: no errors\n", "")
    more.write_text("[agents.sample]\nevery = '5s'\n")
    said = f"ccagent: {more}: line 2: agents.sample.every: is already set in {main}\n"
    assert run("config", "check", main) == (2, "", said)
    assert run("sample", "--once", "--config", main) == (2, "", said)


def test_check_warns_of_directories_that_others_can_write_to(main: Path) -> None:
    main.write_text(main.read_text().replace("OUT", "/tmp"))
    said = (
        "ccagent: warning: sinks.a.url: /tmp: every user can create files in it: "
        "use a private directory, or chmod o-w\n"
    )
    assert run("config", "check", main) == (0, f"{main}: no errors\n", said)


def test_a_reload_reads_the_directory_too(main: Path) -> None:
    daemon = Running(main.parent)
    daemon.start(main.read_text())
    until(lambda: daemon.written("a"))
    more = main.parent / "conf.d" / "b.toml"
    more.write_text(f"[sinks.b]\nurl = 'dir:{daemon.out}/b'\n")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.written("b"))
    more.write_text("[sinks.b]\nurl = 'nothing'\n")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: f"{more}: line 2: sinks.b.url: 'nothing' is not a sink URL" in daemon.said())
    daemon.stop()


def test_the_template_is_a_configuration(tmp_path: Path) -> None:
    status, text, errors = run("config", "defaults", "--template")
    assert (status, errors) == (0, "")
    file = tmp_path / "ccagent.toml"
    file.write_text(text)
    assert run("config", "check", file) == (0, f"{file}: no errors\n", "")


def test_a_tag_that_no_line_can_carry_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    table = '[agents.metrics.metrics.cpu_load]\ntags = { room = "" }\n'
    file.write_text(f"[agents.metrics]\nevery = '10s'\n{table}")
    status, _, errors = run("config", "check", file)
    assert status == 2
    assert "agents.metrics: metrics.cpu_load: tag 'room': '' is empty" in errors


def test_an_import_can_be_checked_and_says_what_it_left_out(tmp_path: Path) -> None:
    ini, file = tmp_path / "sonar.ini", tmp_path / "ccagent.toml"
    ini.write_text(INI)
    status, text, errors = run("config", "import", ini)
    assert status == 0
    assert errors.splitlines() == [
        "ccagent: line 3: global.role: ccagent has no roles: only agents with a table run",
        "ccagent: line 9: sample.load: the load is always sampled",
    ]
    assert tomllib.loads(text)["agents"]["sample"] == {"every": "1m", "exclude-system-jobs": True}
    file.write_text(text)
    assert run("config", "check", file)[0] == 0


def test_an_import_of_what_is_no_such_file(tmp_path: Path) -> None:
    ini = tmp_path / "sonar.ini"
    assert run("config", "import", ini) == (2, "", f"ccagent: {ini}: No such file or directory\n")
    ini.write_text("[kafka]\nsasl-password S3CRET\n")
    said = f"ccagent: {ini}: line 2: expected 'name = value'\n"
    assert run("config", "import", ini) == (2, "", said)
