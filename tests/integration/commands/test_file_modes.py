"""Modes of all files that the programs create with umask 0: private, or listed with a reason."""

from __future__ import annotations

import functools
import re
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.integration.controls.conftest import RunningService
from tests.support.control_machines import MachineNode, add_os
from tests.support.jobstats_store import RunningJobstatsStore
from tests.support.metric_store import RunningStore
from tests.support.ports import free_port
from tests.support.running import CCAGENT, Running, until

OPEN = {
    r"sink(/.*)?": "the data of a sink `dir:` is for its readers",
    r"textfile/ccagent\.prom": "node_exporter reads it, as another user",
    r"generated(/.*)?": "manual pages, completions and a sample configuration for packages",
    r"run/overrides\.toml": "the collecting daemon reads it, as another user",
    r"run/status\.sock": "0660: the group of the daemon may ask for the status",
    r"run": "a directory of sockets with modes of their own",
    r"jobstats": "0711 as root: the user who runs PostgreSQL passes through",
}
"""What others may read, by path below the test's directory, with the reason."""


@pytest.fixture(autouse=True)
def _programs_have_umask_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, umask=0))


def open_paths(top: Path, *made_by_the_test: str) -> dict[str, str]:
    """Return the modes of files and directories that group or others may use."""
    found: dict[str, str] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        mode = stat.S_IMODE(path.lstat().st_mode)
        is_listed = any(re.fullmatch(each, name) for each in OPEN)
        if is_listed:
            assert not mode & 0o002, (name, oct(mode))
        elif mode & 0o077 and not path.is_symlink() and name not in made_by_the_test:
            found[name] = oct(mode)
    return found


def test_metric_store(tmp_path: Path) -> None:
    config = tmp_path / "store.toml"
    config.write_text(
        f'[checkpoints]\nformat = "json"\ndirectory = "{tmp_path}/made/checkpoints"\n'
    )
    now = int(time.time()) - 900
    with RunningStore(tmp_path / "made", "--config", str(config)) as store:
        lines = f"load,cluster=fox,hostname=n1,type=node value=1 {now}\n"
        assert store.write(lines).status == 200
        event = f'job,cluster=fox,function=start_job event="{{}}" {now}\n'
        store.write(event)
        files = {path.name for path in (tmp_path / "made/data").rglob("*")}
        assert {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"} <= files
        assert open_paths(tmp_path / "made", "stderr") == {}
        store.stop()
    (segment,) = (tmp_path / "made/data").rglob("*.log")
    writer = "from ccagent.stores.metrics.archive_writer import main; main()"
    for arguments in (
        ("-c", writer, segment, tmp_path / "made/archive", "9"),
        ("-m", "ccagent", "store", "metrics", "--data", tmp_path / "made/data", "export",
         tmp_path / "made/exported"),
    ):  # fmt: skip
        subprocess.run([sys.executable, *map(str, arguments)], check=True)
    assert list((tmp_path / "made/archive/fox").iterdir())
    assert list((tmp_path / "made/checkpoints/fox/n1").iterdir())
    assert open_paths(tmp_path / "made", "stderr") == {}


def test_a_table_of_jobs_of_an_earlier_release(tmp_path: Path) -> None:
    (tmp_path / "made/data").mkdir(parents=True, mode=0o700)
    (tmp_path / "made/data/jobs.sqlite").touch(mode=0o644)
    with RunningStore(tmp_path / "made"):
        assert open_paths(tmp_path / "made", "stderr") == {}


def test_jobstats_store(tmp_path: Path) -> None:
    # The user who runs PostgreSQL can't pass through pytest's directories.
    with tempfile.TemporaryDirectory(prefix="jobstats-") as name:
        made = Path(name)
        made.chmod(0o755)
        store = RunningJobstatsStore(tmp_path / "logs", "--data", str(made / "jobstats"))
        try:
            assert open_paths(made) == {}
        finally:
            store.stop()


def test_daemon_with_agents_queues_and_exporter(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name in ("run", "lock", "gpus"):
        (made / name).mkdir(parents=True, mode=0o700)
    running = Running(tmp_path)
    running.start(
        f'cluster = "fox"\nhostname = "n1"\nlock-directory = "{made}/lock"\n'
        f'status-socket = "{made}/run/status.sock"\n'
        f'[outbox]\ndirectory = "{made}/outbox"\n'
        f'[agents.metrics]\nevery = "1s"\n'
        f'[agents.sample]\nevery = "1s"\n'
        f'[agents.fast]\nevery = "1s"\nurl = "mqtt://127.0.0.1:{free_port()}"\n'
        f'state-directory = "{made}/fast"\n'
        f'[agents.energy]\nevery = "1s"\nstate-file = "{made}/energy.state"\n'
        f'[agents.lustre]\nevery = "1s"\nstate-file = "{made}/lustre.state"\n'
        f'[exporter]\nlisten = ["127.0.0.1:{free_port()}"]\ngpu-job-directory = "{made}/gpus"\n'
        f'[sinks.files]\nurl = "dir:{made}/sink"\n'
        f'[sinks.away]\nurl = "http://127.0.0.1:{free_port()}"\nformat = "line"\n'
    )
    try:
        until(lambda: [*made.glob("outbox/away.queue/*.log")] and (made / "fast").is_dir())
        until(lambda: any((made / "sink").rglob("*.json")))
        assert open_paths(made) == {}
    finally:
        running.kill()


def test_control_service(tmp_path: Path) -> None:
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    table = 'hostname = "n1"\n[controls.allow."os.swappiness"]\nmin = 0\nmax = 100\n[controls]\n'
    service = RunningService(tmp_path / "made", node.path, table)
    try:
        line = "os.swappiness,hostname=n1,method=PUT,type=node,type-id=0"
        _ask(tmp_path / "made/run/c.sock", f'{line} control="9" {time.time_ns()}\n')
        names = {path.name for path in (tmp_path / "made/state").iterdir()}
        assert {"audit.jsonl", "changes.journal"} <= names
        assert open_paths(tmp_path / "made", "c.toml", "log") == {}
    finally:
        service.stop()


def test_one_shot_commands(tmp_path: Path) -> None:
    (tmp_path / "textfile").mkdir(mode=0o700)
    for arguments in (
        ["generate", str(tmp_path / "generated")],
        ["export", "textfile", str(tmp_path / "textfile")],
        ["metrics", "--once", "--sink", f"dir:{tmp_path}/sink"],
    ):
        subprocess.run([*CCAGENT, *arguments], check=True, capture_output=True)
    assert open_paths(tmp_path) == {}
    assert (tmp_path / "textfile/ccagent.prom").exists()


def _ask(path: Path, body: str) -> None:
    from ccagent.controls.client import ask_locally

    assert b"SUCCESS" in ask_locally(str(path), body.encode(), 30)
