"""A machine whose host name has a domain, in records, topics and metrics."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.running import CCAGENT, until

if TYPE_CHECKING:
    from pathlib import Path

NAMED = ("unshare", "--uts", "sh", "-c", 'hostname c1-1.fox.example; exec "$@"', "sh")
"""Runs a command on a machine of this name. Needs root."""

NAMES = pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("", "c1-1"),
        ("hostname-only = true\n", "c1-1"),
        ("hostname-only = false\n", "c1-1.fox.example"),
        ('hostname = "node1.fox"\ncluster = "fox.example"\n', "node1.fox"),
    ],
)


@NAMES
def test_commands_have_one_name_for_the_node(tmp_path: Path, keys: str, name: str) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(keys + '[sinks.out]\nurl = "stdout:wrapped"\n')

    def run(agent: str, *options: str) -> list[str]:
        command = [*NAMED, *CCAGENT, agent, "--once", "--config", str(file), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    for agent in ("sample", "sysinfo"):
        (line,) = run(agent)
        wrapped = json.loads(line)
        attributes = wrapped["value"]["data"]["attributes"]
        assert (attributes["node"], attributes["cluster"]) == (name, "fox.example")
        assert (wrapped["key"], wrapped["client"]) == (name, f"fox.example/{name}")
        assert wrapped["topic"] == f"fox.example.{agent}"
    metrics = [line for text in run("metrics", "--format", "line")
               for line in json.loads(text)["value"].splitlines()]  # fmt: skip
    assert len(metrics) > 5
    assert all(f",cluster=fox.example,hostname={name}," in line for line in metrics)


@NAMES
def test_a_daemon_has_the_same_name_for_the_node(tmp_path: Path, keys: str, name: str) -> None:
    file, out = tmp_path / "ccagent.toml", tmp_path / "out"
    file.write_text(
        f'{keys}status-socket = "{tmp_path}/status"\n'
        '[agents.sample]\nevery = "1s"\n[agents.metrics]\nevery = "1s"\n'
        f'[sinks.a]\nurl = "dir:{out}/a"\n[sinks.b]\nurl = "dir:{out}/b"\nformat = "line"\n'
    )
    with subprocess.Popen([*NAMED, *CCAGENT, "run", "--config", str(file)]) as process:
        try:
            until(lambda: [*out.rglob(f"0+sample-{name}.json")])
            until(lambda: [*out.rglob(f"metrics-{name}.line")])
            status = [*CCAGENT, "status", "--json", "--config", str(file)]
            answer = json.loads(subprocess.check_output(status, timeout=60))
            assert (answer["node"], answer["cluster"]) == (name, "fox.example")
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", "c1-1"),
        ("hostname-only = false\n", "Slurm has c1-1, records have c1-1.fox.example"),
    ],
)
def test_the_doctor_compares_it_with_slurm(tmp_path: Path, keys: str, said: str) -> None:
    sinfo, file = tmp_path / "sinfo", tmp_path / "ccagent.toml"
    sinfo.write_text("#!/bin/sh\necho 'c1-[1-2]'\n")
    sinfo.chmod(0o755)
    file.write_text(f'{keys}[agents.cluster]\nevery = "1h"\nsinfo = "{sinfo}"\n')
    command = [*NAMED, *CCAGENT, "doctor", "--json", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {each["subject"]: each["found"] for each in json.loads(done.stdout)}
    assert found["name in Slurm"] == said
