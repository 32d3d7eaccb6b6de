"""`ccagent doctor` on the machine that runs the tests: as root, as nobody, with a configuration."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.gpu_libraries import with_cards
from tests.support.gpu_machine import Machine
from tests.support.gpu_scenarios import NVIDIA, NVIDIA_ADDRESSES
from tests.support.running import CCAGENT

NOBODY = pwd.getpwnam("nobody").pw_uid
AS_NOBODY = f"""
import os, sys, ccagent.commands.main, ccagent.config.configuration, ccagent.doctor.examination
import ccagent.log, ccagent.config.options
import ccagent.registry, ccagent.transports.stdout
import ccagent.machine.program
import ctypes, selectors, tomllib, difflib, ccagent.log_handlers
import ccagent.transports.http_server, ccagent.transports.http
import ccagent.machine.system_state
import ccagent.agents.lustre.jobstats.setup
import ccagent.agents.fast.kpis
import ccagent.agents.metrics.perf.reader
import ccagent.agents.metrics.readers.infiniband, ccagent.agents.metrics.readers.power
import ccagent.agents.sonar.sources.checks
import ccagent.machine.checks, ccagent.machine.requirements
for name in ccagent.registry.AGENTS:
    ccagent.registry.load_agent(name)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ccagent.commands.main.cli(["doctor", *sys.argv[1:]])
"""
"""ccagent as the user nobody, also where nobody may not read the interpreter's files."""


def run(
    *arguments: str, command: tuple[str, ...] = (*CCAGENT, "doctor")
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if command[0] != CCAGENT[0] or command[1] == "-c":
        # Nobody may not write what coverage has measured.
        environment = {name: text for name, text in environment.items() if "COVERAGE" not in name}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env=environment,
    )  # fmt: skip


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {each["subject"]: each for each in json.loads(text)}


def configured(directory: Path, text: str) -> str:
    file = directory / "ccagent.toml"
    file.write_text(text)
    return str(file)


def program(directory: Path, name: str, text: str) -> str:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_without_a_configuration_every_node_can_work() -> None:
    result = run()
    assert (result.returncode, result.stderr) == (0, "")
    verdict, _, area, first, *_ = result.stdout.splitlines()
    assert verdict.startswith(("ready: works with limits: ", "ready: works: "))
    assert area == "identity"
    assert first.startswith("  good     host name ")
    assert "\x1b" not in result.stdout


def test_root_sees_what_nobody_does_not() -> None:
    root = findings(run("--json", "--cluster", "fox").stdout)
    assert root["user"]["found"].startswith("root, ")
    assert root["processes of others"]["state"] == root["I/O of others"]["state"] == "good"
    result = run("--json", "--cluster", "fox", command=(sys.executable, "-c", AS_NOBODY))
    assert (result.returncode, result.stderr) == (0, "")
    nobody = findings(result.stdout)
    assert nobody["user"]["found"] == "nobody, capabilities that matter: none"
    assert nobody["I/O of others"]["state"] == "problem"
    assert nobody["I/O of others"]["impact"] == [
        "sample: what other users' processes read and write"
    ]
    assert nobody["lctl"]["state"] == root["lctl"]["state"]
    assert set(nobody) == set(root)


@pytest.mark.parametrize("level", ["1", "2"])
def test_hidepid_on_a_real_mount(level: str) -> None:
    script = f"""
import subprocess, sys
subprocess.run(["mount", "-t", "proc", "-o", "hidepid={level}", "proc", "/proc"], check=True)
{AS_NOBODY}"""
    command = ("unshare", "--mount", "--pid", "--fork", sys.executable, "-c", script)
    result = run("--json", command=command)
    found = findings(result.stdout)["processes of others"]
    assert (result.returncode, found["state"]) == (0, "problem")
    assert found["found"].endswith(": this user sees its own processes alone")
    assert found["impact"] == ["sample: processes and jobs of other users"]


def test_a_master_without_slurm_can_not_work(tmp_path: Path) -> None:
    file = configured(tmp_path, '[agents.jobs]\nevery = "1m"\nsacct = "/nowhere/sacct"\n')
    result = run("--config", file)
    assert result.returncode == 1
    assert "missing  /nowhere/sacct" in result.stdout
    assert result.stdout.splitlines()[0] == "not ready: cannot work: agent jobs"
    # It is told once, not again of the question that it can't be asked.
    assert "accounting of Slurm" not in result.stdout


def test_accounting_that_does_not_answer(tmp_path: Path) -> None:
    text = 'case $1 in --version) echo "slurm 25.05.1";; *) echo "sacct: $WHY" >&2; exit 1;; esac'
    why = "error: Problem talking to the database: Connection refused"
    sacct = program(tmp_path, "sacct", text.replace("$WHY", why))
    file = configured(tmp_path, f'[agents.jobs]\nevery = "1m"\nsacct = "{sacct}"\n')
    result = run("--json", "--config", file)
    found = findings(result.stdout)
    assert result.returncode == 1
    assert found[sacct]["found"] == "slurm 25.05.1"
    assert why in found["accounting of Slurm"]["found"]
    assert found["accounting of Slurm"]["stops"] == ["agent jobs"]


def test_programs_that_hang_cost_their_time_limit_once(tmp_path: Path) -> None:
    program(tmp_path, "sinfo", "exec sleep 600")
    text = f'[agents.cluster]\nevery = "1m"\nsinfo = "{tmp_path}/sinfo"\n'
    begin = time.monotonic()
    result = run("--json", "--config", configured(tmp_path, text))
    assert time.monotonic() - begin < 50
    found = findings(result.stdout)
    assert result.returncode == 1
    assert "not finished after 5 s" in found[f"{tmp_path}/sinfo"]["found"]
    assert found[f"{tmp_path}/sinfo"]["stops"] == ["agent cluster"]


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everybody can look into."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_the_outbox_of_somebody_else(open_path: Path) -> None:
    outbox = open_path / "outbox"
    outbox.mkdir(mode=0o700)
    text = f"""
        [agents.sample]
        every = "1m"
        [outbox]
        directory = "{outbox}"
        [sinks.backend]
        url = "http://127.0.0.1:9/"
    """
    file = configured(open_path, text)
    assert findings(run("--json", "--config", file).stdout)["outbox"]["state"] == "good"
    other = configured(open_path, text.replace("/outbox", "/absent/outbox"))
    assert findings(run("--json", "--config", other).stdout)["outbox"]["state"] == "good"
    result = run("--json", "--config", other, command=(sys.executable, "-c", AS_NOBODY))
    assert "this user cannot create it" in findings(result.stdout)["outbox"]["found"]
    configured(open_path, text)
    result = run("--json", "--config", file, command=(sys.executable, "-c", AS_NOBODY))
    found = findings(result.stdout)["outbox"]
    assert found["state"] == "problem"
    assert found["found"] == f"this user cannot write {outbox}"
    assert found["stops"] == []
    os.chown(outbox, NOBODY, NOBODY)
    (outbox / "backend.queue").mkdir(mode=0o700)
    result = run("--json", "--config", file, command=(sys.executable, "-c", AS_NOBODY))
    found = findings(result.stdout)["outbox"]
    assert found["found"] == f"this user cannot write {outbox}/backend.queue"


def test_root_judges_the_outbox_for_the_user_of_the_service(open_path: Path) -> None:
    outbox = open_path / "outbox"
    outbox.mkdir(mode=0o700)
    os.chown(outbox, NOBODY, NOBODY)
    text = f"""
        [outbox]
        directory = "{outbox}"
        [sinks.backend]
        url = "http://127.0.0.1:9/"
    """
    file = configured(open_path, text)
    found = findings(run("--json", "--config", file).stdout)["outbox"]
    assert found["state"] == "good"
    assert found["found"].startswith(f"{outbox}, for user nobody: ")
    (outbox / "backend.queue").mkdir(mode=0o700)
    found = findings(run("--json", "--config", file).stdout)["outbox"]
    assert found["found"] == (
        f"user nobody, the user of the service, cannot write {outbox}/backend.queue"
    )
    assert found["fix"].endswith(f"chown -R nobody {outbox}")


def test_a_damaged_outbox_is_a_problem_and_stays_as_it_is(open_path: Path) -> None:
    damaged = open_path / "backend.queue/000000000001.log"
    damaged.parent.mkdir()
    damaged.write_bytes(b"\xff" * 8192)
    text = f'[outbox]\ndirectory = "{open_path}"\n[sinks.backend]\nurl = "http://127.0.0.1:9/"\n'
    found = findings(run("--json", "--config", configured(open_path, text)).stdout)[str(damaged)]
    assert found["state"] == "problem"
    assert found["found"].startswith("damaged: ")
    assert sorted(path.name for path in open_path.iterdir()) == ["backend.queue", "ccagent.toml"]
    assert [path.name for path in damaged.parent.iterdir()] == [damaged.name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents.sampel]\n", "did you mean 'sample'?"),
        ('[sinks.x]\nurl = "http://a/"\npassword-file = "/nowhere"\n', "/nowhere: No such file"),
    ],
)
def test_a_wrong_configuration_is_exit_status_2(tmp_path: Path, text: str, said: str) -> None:
    result = run("--config", configured(tmp_path, text))
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_cards_by_driver_and_library(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from ccagent.machine.requirements import examine_cards

    assert examine_cards(machine.node, "nvidia").state == "missing"
    slot = machine.node.path / "sys/bus/pci/devices/0000:0e:00.0"
    slot.mkdir(parents=True)
    (slot / "vendor").write_text("0x10de\n")
    (slot / "class").write_text("0x030200\n")
    result = examine_cards(machine.node, "nvidia")
    assert result.found == "0000:0e:00.0 on the PCI bus, but no driver has any"
    with_cards(machine.node.path, "nvidia", NVIDIA_ADDRESSES)
    machine.libraries.play(NVIDIA)
    result = examine_cards(machine.node, "nvidia")
    models = "NVIDIA H100 80GB HBM3 (driver 550.54.15), NVIDIA A40 (driver 550.54.15)"
    assert (result.state, result.found) == ("good", f"2: {models}")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    result = examine_cards(machine.node, "nvidia")
    assert result.state == "problem"
    assert "NVML Shared Library Not Found" in result.found


def test_help_imports_nothing_of_it() -> None:
    script = "from ccagent.commands.main import cli; cli(['-h'], standalone_mode=False)"
    script = f"import sys; {script}; print(*sys.modules)"
    result = run(command=(sys.executable, "-c", script))
    assert "doctor " in result.stdout
    assert "ccagent.doctor" not in result.stdout.splitlines()[-1]
