"""What a one-shot command may import: each module costs every run on every node."""

import os
import subprocess
import sys

import pytest

HEAVY = {
    "asyncio", "click", "cpuinfo", "difflib", "email", "http", "importlib.metadata", "json",
    "logging", "multiprocessing", "nats", "paho", "psutil", "pynvml", "select", "selectors",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "tomllib", "traceback",
    "unittest", "urllib.request", "xml",
}  # fmt: skip

STANDARD = {"errno", "gc", "importlib", "pwd", "resource", "signal"}
"""What a sample imports of the standard library besides what msgspec does."""

OF_CLICK = {"logging", "select", "threading", "traceback"}
"""What click may import; its versions differ."""

OURS = {
    "ccagent", "ccagent.agent", "ccagent.agents", "ccagent.agents.sonar",
    "ccagent.agents.gpu", "ccagent.agents.gpu.address", "ccagent.agents.gpu.presence",
    "ccagent.agents.gpu.settings",
    "ccagent.agents.sonar.agent", "ccagent.agents.sonar.ancestry",
    "ccagent.agents.sonar.cgroup",
    "ccagent.agents.sonar.complaints", "ccagent.agents.sonar.containers",
    "ccagent.agents.sonar.descriptors", "ccagent.agents.sonar.entry",
    "ccagent.agents.sonar.job_records",
    "ccagent.agents.sonar.placing", "ccagent.agents.sonar.preferred",
    "ccagent.agents.sonar.process",
    "ccagent.agents.sonar.process_files", "ccagent.agents.sonar.procfs",
    "ccagent.agents.sonar.kernel", "ccagent.agents.sonar.kernel.pins",
    "ccagent.agents.sonar.selection", "ccagent.agents.sonar.sources",
    "ccagent.agents.sonar.system", "ccagent.clock", "ccagent.config",
    "ccagent.config_files",
    "ccagent.counters",
    "ccagent.duration", "ccagent.envelopes", "ccagent.errors",
    "ccagent.events", "ccagent.json_array", "ccagent.json_encoding", "ccagent.log",
    "ccagent.log_message",
    "ccagent.message", "ccagent.node", "ccagent.once", "ccagent.options", "ccagent.points",
    "ccagent.private_files", "ccagent.quick", "ccagent.registry",
    "ccagent.settings", "ccagent.signals", "ccagent.start", "ccagent.transports",
    "ccagent.transports.base",
    "ccagent.transports.stdout",
}  # fmt: skip

SCRIPT = """
import os, sys
def show(status):
    print(status, *sys.modules, file=sys.stderr)
    sys.stderr.flush()
    leave(status)
leave, os._exit = os._exit, show
from ccagent.start import main
main()
"""
"""A command that shows what it has imported when it ends."""


def imported_by(*arguments: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )  # fmt: skip
    status, *modules = result.stderr.splitlines()[-1].split()
    assert status == "0"
    return set(modules)


@pytest.fixture(scope="module")
def modules() -> set[str]:
    return imported_by("sample", "--once")


def test_a_sample_imports_nothing_heavy(modules: set[str]) -> None:
    assert not modules & HEAVY


def test_a_sample_imports_only_the_parts_of_ours_that_it_needs(modules: set[str]) -> None:
    assert {name for name in modules if name.startswith("ccagent")} <= OURS


def test_a_sample_imports_little_of_the_standard_library(modules: set[str]) -> None:
    command = [sys.executable, "-c", "import msgspec, sys; print(*sys.modules)"]
    bare = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    of_others = {name for name in modules if not name.startswith("ccagent")}
    assert of_others - set(bare) <= STANDARD | {"__future__", "importlib.machinery", "_signal"}


def test_no_one_shot_imports_what_only_some_need() -> None:
    sysinfo = imported_by("sysinfo", "--once", "--no-config")
    assert not sysinfo & (HEAVY | {"base64", "shlex"})
    lines = imported_by("sample", "--once", "--format", "line", "--cluster", "x")
    assert not lines & HEAVY


def test_the_help_imports_no_agent() -> None:
    modules = imported_by("--help")
    assert not modules & (HEAVY - {"click", "difflib"} - OF_CLICK | {"msgspec"})
    agents = {name for name in modules if name.startswith("ccagent.agents.")}
    assert {name.partition("ccagent.agents.")[2] for name in agents} == {
        "lustre", "lustre.commands", "metrics", "metrics.commands", "sonar", "sonar.kernel",
        "sonar.kernel.commands", "sonar.kernel.pins",
    }  # fmt: skip


def test_nothing_is_called_agents_or_transports_at_the_top_level(modules: set[str]) -> None:
    assert not modules & {"agents", "transports"}
