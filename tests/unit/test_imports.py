"""What a one-shot command may import: each module costs every run on every node."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

HEAVY = {
    "asyncio", "click", "cpuinfo", "difflib", "email", "http", "importlib.metadata", "json",
    "logging", "multiprocessing", "nats", "paho", "psutil", "pynvml", "select", "selectors",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "tomllib", "traceback",
    "unittest", "urllib.request", "xml",
}  # fmt: skip

STANDARD = {"atexit", "errno", "gc", "importlib", "pwd", "resource", "signal"}
"""What a sample imports of the standard library besides what msgspec does. atexit is built in."""

OF_CLICK = {"logging", "select", "threading", "traceback"}
"""What click may import; its versions differ."""

OURS = {
    "ccagent",
    "ccagent.agents",
    "ccagent.agents.base",
    "ccagent.agents.sonar",
    "ccagent.agents.sonar.agent",
    "ccagent.agents.sonar.jobs",
    "ccagent.agents.sonar.jobs.attribution",
    "ccagent.agents.sonar.jobs.records",
    "ccagent.agents.sonar.process",
    "ccagent.agents.sonar.sources",
    "ccagent.agents.sonar.sources.procfs",
    "ccagent.commands",
    "ccagent.commands.main",
    "ccagent.commands.once",
    "ccagent.config.options",
    "ccagent.commands.start",
    "ccagent.config",
    "ccagent.config.common_keys",
    "ccagent.config.configuration",
    "ccagent.config.files",
    "ccagent.config.settings",
    "ccagent.config.duration",
    "ccagent.registry",
    "ccagent.counters",
    "ccagent.daemon",
    "ccagent.daemon.daemon",
    "ccagent.service.signals",
    "ccagent.errors",
    "ccagent.log",
    "ccagent.machine",
    "ccagent.machine.bpf",
    "ccagent.machine.bpf.pins",
    "ccagent.machine.cgroup",
    "ccagent.machine.cgroup.jobs",
    "ccagent.machine.clock",
    "ccagent.machine.descriptors",
    "ccagent.machine.gpu",
    "ccagent.machine.gpu.vendor",
    "ccagent.machine.node",
    "ccagent.machine.parsed",  # where a permission is missing
    "ccagent.service",
    "ccagent.service.private_directories",
    "ccagent.service.private_files",
    "ccagent.machine.procfs",
    "ccagent.machine.procfs.process_files",
    "ccagent.machine.procfs.system",
    "ccagent.machine.system_state",
    "ccagent.machine.user_names",
    "ccagent.records",
    "ccagent.records.envelopes",
    "ccagent.records.points",
    "ccagent.records.json_encoding",
    "ccagent.records.encoding",
    "ccagent.records.message",
    "ccagent.transports",
    "ccagent.transports.base",
    "ccagent.transports.stdout",
}

SCRIPT = """
import os, sys
def show(status):
    print(status, *sys.modules, file=sys.stderr)
    sys.stderr.flush()
    leave(status)
leave, os._exit = os._exit, show
if "sample" in sys.argv:
    from ccagent.machine.bpf import pins
    pins.DIRECTORY = "/nonexistent"
from ccagent.commands.start import main
main()
"""
"""A command that shows its imports at its end. It finds no kernel programs of this machine."""


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


@pytest.mark.slow
def test_no_one_shot_imports_what_only_some_need() -> None:
    sysinfo = imported_by("sysinfo", "--once", "--no-config")
    assert not sysinfo & (HEAVY | {"base64", "shlex"})
    lines = imported_by("sample", "--once", "--format", "line", "--cluster", "x")
    assert not lines & HEAVY


def test_a_sample_with_an_outbox_imports_no_database(tmp_path: Path) -> None:
    (tmp_path / "ccagent.toml").write_text(
        f'cluster = "x"\n[outbox]\ndirectory = "{tmp_path}/outbox"\n'
        '[sinks.a]\nurl = "http://127.0.0.1:9"\ntime-limit = "1s"\n'
    )
    modules = imported_by("sample", "--once", "--config", str(tmp_path / "ccagent.toml"))
    assert "ccagent.queue.segment_directory" in modules
    assert "sqlite3" not in modules


def test_the_help_imports_no_command() -> None:
    modules = imported_by("--help")
    assert not modules & (HEAVY - {"click", "difflib"} - OF_CLICK | {"msgspec"})
    parts = {name.split(".")[1] for name in modules if name.startswith("ccagent.")}
    assert parts <= {"commands", "commit", "config", "errors", "log", "registry", "service"}


def test_the_list_of_commands_says_what_their_help_says() -> None:
    from ccagent.commands.main import cli

    context = click.Context(cli)
    formatter = click.HelpFormatter(width=200)
    cli.format_commands(context, formatter)
    lines = [line for line in formatter.getvalue().splitlines() if line.startswith(" ")]
    listed = dict(line.split(None, 1) for line in lines)
    narrow = click.HelpFormatter(width=78)
    cli.format_commands(context, narrow)
    assert "..." not in narrow.getvalue()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            assert listed.pop(name) == command.get_short_help_str(150)
    assert not listed


@pytest.mark.slow
def test_the_defaults_import_settings_without_what_reads_the_machine() -> None:
    modules = imported_by("config", "defaults")
    assert not modules & {"hashlib", "http.client", "logging", "sqlite3", "statistics"} - OF_CLICK
    assert not modules & {
        "ccagent.agents.energy.meter",
        "ccagent.agents.jobio.usage",
        "ccagent.agents.lustre.jobstats.observation",
        "ccagent.agents.slurm.jobs.round",
        "ccagent.transports.http_server",
    }


def test_nothing_of_ours_is_a_package_at_the_top_level(modules: set[str]) -> None:
    assert not modules & {
        "agents", "controls", "exporter", "machines", "stores", "transports", "views",
    }  # fmt: skip


def test_the_help_of_the_store_imports_no_library_of_it() -> None:
    modules = imported_by("store", "metrics", "--help")
    assert not modules & {"numpy", "orjson", "httptools", "cryptography", "asyncio", "nats"}
    stores = {name for name in modules if name.startswith("ccagent.stores.")}
    assert stores == {
        "ccagent.stores.commands",
        "ccagent.stores.metrics",
        "ccagent.stores.metrics.commands",
    }


@pytest.mark.parametrize("command", [("store", "jobstats"), ("jobstats", "top")])
def test_the_help_of_the_jobstats_store_imports_no_library_of_it(command: tuple[str, str]) -> None:
    modules = imported_by(*command, "--help")
    assert not modules & {"psycopg", "psycopg_pool", "starlette", "uvicorn", "httptools", "asyncio"}
