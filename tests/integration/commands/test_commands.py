"""The commands, as somebody at a shell runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
import tomllib
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.schema import validate

CCAGENT = [sys.executable, "-m", "ccagent"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CCAGENT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_one_sample_is_one_line_in_a_pipe() -> None:
    result = run("sample", "--once")
    assert result.returncode == 0
    assert result.stdout.count("\n") == 1
    validate("SampleEnvelope", result.stdout)


def test_json_is_indented_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*CCAGENT, "sysinfo", "--format", "sonar"], stdout=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait() == 0
    assert text.startswith(b"{\r\n  ")
    validate("SysinfoEnvelope", text.replace(b"\r\n", b"\n"))


def test_samples_recur_aligned_to_the_clock() -> None:
    process = subprocess.Popen(
        [*CCAGENT, "sample", "--every", "1s"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    late: list[float] = []
    moments: list[float] = []
    for _ in range(3):
        envelope = validate("SampleEnvelope", process.stdout.readline())
        late.append(time.time() % 1)
        moment = datetime.fromisoformat(envelope["data"]["attributes"]["time"])
        moments.append(moment.timestamp())
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()
    # A busy machine may be late now and then, and leave a second out.
    assert min(late) < 0.7
    assert all(later - moment >= 1 for moment, later in pairwise(moments))


def test_several_sinks_at_once_one_of_them_down(tmp_path: Path) -> None:
    result = run(
        "sample", "--cluster", "x.org", "--sink", f"dir:{tmp_path}",
        "--sink", "http://127.0.0.1:9/api", "--sink", "stdout:wrapped",
    )  # fmt: skip
    assert result.returncode == 1
    assert "http://127.0.0.1:9/api" in result.stderr
    (file,) = tmp_path.rglob("0+sample-*.json")
    envelope = validate("SampleEnvelope", file.read_text(encoding="utf-8"))
    wrapped = json.loads(result.stdout)
    assert wrapped["topic"] == "x.org.sample"
    assert wrapped["value"] == envelope


def test_line_protocol() -> None:
    result = run("sample", "--once", "--format", "line", "--cluster", "x")
    assert result.stdout.startswith("cpu_load,cluster=x,hostname=")


def test_a_configured_agent_runs_once_with_its_sinks(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        f"""
        cluster = "fox.educloud.no"
        [agents.sample]
        every = "30s"
        sinks = ["tree"]
        exclude-system-jobs = true
        [agents.sysinfo]
        every = "12h"
        [sinks.tree]
        url = "dir:{tmp_path}/out"
        [sinks.other]
        url = "http://127.0.0.1:9/"
        """
    )
    assert run("sample", "--config", str(file)).returncode == 0
    (written,) = (tmp_path / "out").rglob("*.json")
    envelope = validate("SampleEnvelope", written.read_text())
    assert envelope["data"]["attributes"]["cluster"] == "fox.educloud.no"


@pytest.mark.parametrize("content", ["clustr = 'x'", "cluster = ", b"cluster = '\xff'"])
def test_a_bad_configuration_is_one_message_and_exit_status_2(
    tmp_path: Path, content: str | bytes
) -> None:
    """The messages are those of tests/unit/config/test_configuration.py."""
    file = tmp_path / "c.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    for arguments in (["config", "check", str(file)], ["run", "--config", str(file)]):
        result = run(*arguments)
        assert result.returncode == 2
        assert result.stderr.startswith(f"ccagent: {file}: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "--every", "7s"],
        ["sample", "--cluster", "a b"],
        ["sample", "--set", "rolup=true"],
        ["sample", "--set", "rollup"],
        ["sample", "--sink", "nowhere"],
        ["sample", "--config", "/does/not/exist"],
        ["sysinfo", "--format", "line"],
        ["run", "--config", "/dev/null"],
    ],
)
def test_bad_options_are_one_message_and_exit_status_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ccagent: ")
    assert result.stderr.count("\n") == 1


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[agents.sample]\nevery = '30s'\n")
    result = run("config", "check", str(file))
    assert (result.returncode, result.stdout) == (0, f"{file}: no errors\n")


def test_the_defaults_are_toml_that_is_accepted_and_changes_nothing(tmp_path: Path) -> None:
    text = run("config", "defaults").stdout
    table = tomllib.loads(text)
    assert table["agents"]["sample"]["source"] == "auto"
    assert table["agents"]["sysinfo"]["on-startup"] is True
    file = tmp_path / "defaults.toml"
    file.write_text(
        "\n".join(
            f"[agents.{name}]\n" + text.split(f"[agents.{name}]\n")[1].split("\n[")[0]
            for name in ("sample", "sysinfo")
        )
    )
    assert run("config", "check", str(file)).returncode == 0


def test_agents_and_sinks_are_listed() -> None:
    assert [line.split()[0] for line in run("agents").stdout.splitlines()] == [
        "sample", "sysinfo", "jobs", "cluster", "lustre", "metrics", "fast", "energy", "jobio",
        "log",
    ]  # fmt: skip
    listed = [line.split()[0] for line in run("sinks").stdout.splitlines()]
    assert listed == [
        "stdout:", "dir:", "http:", "https:", "ccbackend:", "ccbackends:", "kprox:", "kproxs:",
        "nats:", "tls:", "mqtt:", "mqtts:", "ws:", "wss:", "kafka:", "kafkas:",
    ]  # fmt: skip


def test_help_and_version() -> None:
    assert "sysinfo" in run("--help").stdout
    assert "--every" in run("sample", "--help").stdout
    assert "messages remain" in run("outbox", "flush", "--help").stdout  # without any configuration
    assert run("--version").stdout.startswith("ccagent, version ")
    assert run("smaple").returncode == 2


def test_a_sample_that_takes_too_long_is_given_up() -> None:
    begin = time.monotonic()
    result = run(
        "sysinfo", "--set", "topo-text-command=sleep 50", "--set", "topo-time-limit=40s",
        "--set", "time-limit=500ms",
    )  # fmt: skip
    assert time.monotonic() - begin < 35
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "ccagent: agent sysinfo: not finished after 500ms\n"


def test_a_lock_directory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'lock-directory = "{tmp_path}/absent"\n[agents.sample]\nevery = "1m"\n')
    result = run("run", "--config", str(file))
    assert result.returncode == 2
    assert "lock-directory" in result.stderr
