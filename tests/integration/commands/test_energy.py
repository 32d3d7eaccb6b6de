"""`ccagent energy`, as somebody at a shell runs it, also on a machine without any source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ccagent.records.line_protocol import decode

CCAGENT = [sys.executable, "-m", "ccagent"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CCAGENT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_table_is_printed_on_every_machine() -> None:
    result = run("energy", "--once", "--format", "table", "--seconds", "0.3", "--no-config")
    is_blind = "no energy is known" in result.stdout
    assert result.returncode == int(is_blind)
    assert result.stderr == ""
    assert result.stdout.startswith("energy of ")
    if is_blind:
        assert "RAPL: " in result.stdout
        assert "\n    " in result.stdout  # what to do
    else:
        assert "package" in result.stdout or "card" in result.stdout


def test_the_time_of_a_table_is_a_number() -> None:
    result = run("energy", "--format", "table", "--seconds", "nan", "--no-config")
    assert result.returncode == 2
    assert "nan is not in the range" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_may_be_asked_for_keys(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text('hostname = "n7"\n[agents.energy]\nrapl = "off"\nmeters = []\n')
    result = run(
        "energy", "--format", "table", "--seconds", "0.1", "--config", str(file),
        "--set", "gpu-vendors=[]",
    )  # fmt: skip
    assert result.returncode == 1
    assert "energy of n7" in result.stdout
    assert "RAPL" not in result.stdout


def test_other_formats_are_those_of_every_agent() -> None:
    result = run("energy", "--once", "--format", "line", "--cluster", "x", "--no-config")
    assert run("energy", "--once", "--cluster", "x", "--no-config").returncode == result.returncode
    for line in result.stdout.splitlines():
        assert decode(line).tags["cluster"] == "x"
    assert result.returncode in {0, 1}
    assert bool(result.returncode) == ("can't read any energy source" in result.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--every", "10s"), ("--sink", "stdout:"), ("--dry-run",), ("--seconds", "0"),
        ("--set", "ratio=0"), ("--set", 'state-file="x"'),
    ],
)  # fmt: skip
def test_what_a_table_cannot_be(arguments: tuple[str, ...]) -> None:
    result = run("energy", "--format", "table", "--no-config", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ccagent: ")


def test_the_doctor_names_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text('[agents.energy]\nevery = "30s"\nmeters = ["hwmon", "dcmi"]\n')
    result = run("doctor", "--json", "--config", str(file))
    found = {each["subject"]: each for each in json.loads(result.stdout)}
    for subject in ("RAPL", "RAPL by perf", "meter of the node", "DCMI"):
        assert found[subject]["state"] == "good" or found[subject]["fix"]
