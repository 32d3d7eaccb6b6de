"""The command line: one default configuration, options before and after, errors of one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ccagent import log
from ccagent.config.files import read_default
from tests.support.running import CCAGENT
from tests.support.schema import validate

Done = subprocess.CompletedProcess[str]

AT_HOME = """
import sys
import ccagent.config.files
ccagent.config.files.DEFAULT_PATH = sys.argv.pop(1)
from ccagent.commands.start import main
main()
"""
"""ccagent with the default configuration at another place."""

CONFIGURATION = """
cluster = "fox"
log-level = "LEVEL"
[outbox]
directory = "OUT/outbox"
[agents.sample]
every = "1m"
sinks = ["tree"]
extras = ["attrs"]
[sinks.tree]
url = "dir:OUT/tree"
[sinks.down]
url = "http://127.0.0.1:9/in?token=S3CRET"
"""


class Site:
    """A machine with a default configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "ccagent.toml"
        text = CONFIGURATION.replace("OUT", str(directory)).replace("LEVEL", "warning")
        self.file.write_text(text)

    def run(self, *arguments: str) -> Done:
        command = [sys.executable, "-c", AT_HOME, str(self.file), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    @property
    def written(self) -> list[str]:
        files = [path for path in (self.directory / "tree").rglob("*") if path.is_file()]
        return [line for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run(*arguments: str | bytes, **environment: str) -> Done:
    return subprocess.run(
        [*CCAGENT, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | environment,
    )  # fmt: skip


def cluster(done: Done) -> str:
    validate("SampleEnvelope", done.stdout)
    found: str = json.loads(done.stdout)["data"]["attributes"]["cluster"]
    return found


def test_a_sample_typed_at_a_terminal_is_configured_and_goes_nowhere(site: Site) -> None:
    for arguments in (["sample", "--once"], ["sample", "--once", "--set", "rollup=true"]):
        done = site.run(*arguments)
        assert cluster(done) == "fox"
        assert json.loads(done.stdout)["meta"]["attrs"]
    assert site.written == []
    assert cluster(site.run("sample", "--no-config", "--cluster", "x")) == "x"


def test_a_file_that_is_named_says_where_a_sample_goes(site: Site) -> None:
    for arguments in (
        ["sample", "--once", "--config", str(site.file)],
        ["--config", str(site.file), "sample", "--once"],
    ):
        before = len(site.written)
        assert (site.run(*arguments).returncode, len(site.written)) == (0, before + 1)


@pytest.mark.parametrize("command", ["sample", "doctor", "status", "outbox", "run", "config check"])
def test_every_command_reads_the_default_configuration(site: Site, command: str) -> None:
    site.file.write_text("clustr = 'x'\n")
    done = site.run(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"ccagent: {site.file}: line 1: clustr: unknown key; did you mean 'cluster'?\n"
    )


def test_without_a_default_configuration_there_are_the_defaults(site: Site) -> None:
    site.file.unlink()
    done = site.run("sample", "--once")
    assert (done.returncode, str(site.file) in done.stderr) == (0, False)
    validate("SampleEnvelope", done.stdout)
    done = site.run("run")
    assert done.stderr == f"ccagent: {site.file}: No such file or directory\n"


def test_one_that_this_user_may_not_read_is_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text("cluster = 'fox'")
    file.chmod(0)
    said, hears = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(hears, 2)
        sys.stderr = os.fdopen(2, "w")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ccagent.config.files.DEFAULT_PATH", str(file))
            if os.geteuid() == 0:
                os.seteuid(65534)
            log.configure(is_brief=True)
            read = read_default()
        os._exit(0 if (read.table, read.paths) == ({}, ["command line"]) else 1)
    os.close(hears)
    with os.fdopen(said) as text:
        assert text.read() == (
            f"ccagent: warning: {file}: Permission denied; defaults are used, as with --no-config\n"
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_options_stand_before_and_after_a_sub_command(site: Site) -> None:
    (site.directory / "outbox").mkdir()
    nowhere = str(site.directory / "nowhere.toml")
    for arguments in (
        ["outbox", "flush", "--config", str(site.file)],
        ["outbox", "--config", str(site.file), "flush"],
        ["--config", str(site.file), "outbox", "flush"],
        ["--config", nowhere, "outbox", "--config", nowhere, "flush", "--config", str(site.file)],
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
    done = run("sinks", "--config", str(site.file), "test", "tree")
    assert (done.returncode, done.stdout.startswith("taken")) == (0, True)


def test_a_dry_run_prints_what_each_sink_would_get(site: Site) -> None:
    text = site.file.read_text().replace('sinks = ["tree"]', "")
    site.file.write_text(text.replace("[sinks.down]", '[sinks.down]\nformat = "line"'))
    done = run("sample", "--dry-run", "--config", str(site.file))
    assert (done.returncode, done.stderr.count("S3CRET"), done.stdout.count("S3CRET")) == (0, 0, 0)
    tree, envelope, down, *lines = done.stdout.splitlines()
    size = len(envelope.encode())
    assert tree == f"# sink tree (dir:{site.directory}/tree): fox.sample, sonar, {size} bytes"
    validate("SampleEnvelope", envelope)
    assert down.startswith("# sink down (http://127.0.0.1:9/in): fox.metrics, line, ")
    assert lines[0].startswith("cpu_load,cluster=fox,hostname=")
    assert site.written == []
    assert not (site.directory / "outbox").exists()


def test_a_dry_run_remembers_no_job(tmp_path: Path) -> None:
    rows = tmp_path / "sacct"
    state = tmp_path / "state"
    rows.write_text("#!/bin/sh\nexit 0\n")
    rows.chmod(0o755)
    values = {"sacct": rows, "squeue": rows, "state-file": state, "resend": "true"}
    keys = [f"--set={key}={value}" for key, value in values.items()]
    assert run("jobs", "--dry-run", "--no-config", *keys).returncode == 0
    assert not state.exists()
    assert run("jobs", "--once", "--no-config", *keys).returncode == 0
    assert state.exists()


@pytest.mark.parametrize("agent", ["jobs", "cluster"])
def test_a_dead_slurm_is_exit_status_1_and_a_sentence(agent: str) -> None:
    keys = [
        f"--set={key}=/bin/false" for key in {"jobs": ["sacct", "squeue"]}.get(agent, ["sinfo"])
    ]
    done = run(agent, "--once", "--no-config", *keys)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"ccagent: error: agent {agent}: ") for line in lines)
    # squeue's failure is one of its own: it costs the held jobs only.
    assert len(lines) == len(keys)
    assert json.loads(done.stdout)["errors"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["lustre", "--input", "/tmp"],
        ["lustre", "--once"],
        ["metrics", "--set", 'readers=["nfs"]'],
    ],
)
def test_where_nothing_can_be_read_the_exit_status_is_1(arguments: list[str]) -> None:
    done = run(*arguments, "--no-config")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_the_log_is_as_the_configuration_says(site: Site) -> None:
    for form, begin in (("journal", "<4>"), ("text", "ccagent: warning: "), ("json", '{"time": "')):
        site.file.write_text(f'log-format = "{form}"\n[agents.jobs]\nsacct = "/bin/false"\n')
        done = site.run("jobs", "--once")
        line = done.stderr.splitlines()[0]
        assert line.startswith(begin.replace("<4>", "<3>").replace("warning", "error"))
    site.file.write_text('log-format = "xml"\nlog-level = "all"\n')
    assert [line.partition("line ")[2] for line in site.run("sample").stderr.splitlines()] == [
        "1: log-format: 'xml' is none of 'auto', 'journal', 'json', 'text'",
        "2: log-level: 'all' is none of 'debug', 'error', 'info', 'warning'",
    ]


def test_there_are_no_colours(site: Site) -> None:
    for arguments in (["--help"], ["doctor", "--no-config"], ["agents"]):
        done = run(*arguments, FORCE_COLOR="1", CLICOLOR_FORCE="1")
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smaple"], "there is no command 'smaple'; did you mean 'sample'?; see 'ccagent --help'"),
        (["outbox", "flsh"], "outbox: there is no command 'flsh'; did you mean 'flush'?"),
        (["sinks", "tets"], "sinks: there is no command 'tets'; did you mean 'test'?"),
        (["config", "chekc"], "config: there is no command 'chekc'; did you mean 'check'?"),
        (["kernel", "laod"], "kernel: there is no command 'laod'; did you mean 'load'?"),
        (["sample", "--evry", "1s"], "did you mean '--every'?"),
        (["status", "--socket", "x"], "status: no such option '--socket'; see"),
        (["status", "--sink", "stdout:"], "status: no such option '--sink'; see"),
        (["sample", "--password-file", "x"], "key of sinks: --sink-set password-file=VALUE"),
        (["sample", "--exclude-users", "x"], "key of the agent: --set exclude-users=VALUE"),
        (["metrics", "--set", "interval=3"], "interval: unknown key; did you mean 'every'?"),
        (["sample", "--format", "json"], "'sonar', 'line'"),
        (["sample", "--once", "--every", "1s"], "--once and --every exclude each other"),
        (["sample", "--dry-run", "--every", "1s"], "--dry-run and --every exclude each other"),
        (["sample", "--config", "x", "--no-config"], "--config and --no-config exclude each other"),
        (["sample", "--config", ""], "--config: the name of a file is needed"),
        (["sample", "--config", "/etc"], "/etc: not a regular file"),
        (["sample", "--config", "/dev/zero"], "not a regular file"),
        (["sample", "--config", b"/tmp/\xff\n"], "/tmp/\\udcff\\n: No such file or directory"),
        (["sample", "--set", b"exclude-users=[\xff]"], "not text in UTF-8"),
        (["sample", "--set", "=1"], "expected KEY=VALUE"),
        (["sample", "--sink", ""], "is not a sink URL"),
        (["sample", "--sink", "http://[::1"], "malformed"),
        (["sample", "--every", "9" * 30 + "d"], "is not a duration"),
        (["sample", "--cluster", b"\xff"], "letters, digits"),
        (["sample", "extra"], "extra"),
        ([b"\xff\xfe"], "there is no command"),
        (["config", "import", "/"], "/: Is a directory"),
        (["config", "check", "/dev/null", "--config", "x"], "FILE and --config exclude each other"),
        (["run", "--no-config"], "nothing to run"),
    ],
)  # fmt: skip
def test_every_error_is_a_line_and_exit_status_2(arguments: list[str | bytes], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ccagent: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("2>/dev/full", 0, ""),
        (">&-", 1, "it is closed"),
        (">/dev/full", 1, "No space left on device"),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
@pytest.mark.parametrize(
    "command", ["sample --once", "sample --dry-run", "sample --set rollup=true"]
)
def test_closed_and_full_streams(command: str, streams: str, status: int, said: str) -> None:
    program = f"{sys.executable} -m ccagent {command} --no-config {streams}"
    done = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_on_a_full_disk_is_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*CCAGENT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1, "ccagent: standard output: No space left on device\n"
    )  # fmt: skip


def test_the_defaults_have_the_keys_of_the_log() -> None:
    table = tomllib.loads(run("config", "defaults").stdout)
    assert (table["log-level"], table["log-format"]) == ("warning", "auto")
