"""`ccagent control` on the node, over NATS, and where no service runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.controls.conftest import RunningService
from tests.support.control_machines import MachineNode, add_os, amd
from tests.support.nats_server import NatsServer, new_seed, public_key

if TYPE_CHECKING:
    from collections.abc import Callable

SWAP = "proc/sys/vm/swappiness"
TABLE = (
    'hostname = "n1.fox"\ncluster = "fox"\n'
    '[controls.allow."os.swappiness"]\nmin = 0\nmax = 100\n[controls]\n'
)


def control(*arguments: str, expect: int = 0) -> list[str]:
    """Run a command; return its lines, errors too."""
    command = [sys.executable, "-m", "ccagent", "control", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == expect, done.stdout + done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_the_commands_of_a_node_ask_its_service(
    tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    service = start(node.path, TABLE)
    config = ("--config", str(service.config))
    listed = control("list", *config)
    assert listed[0].split() == ["NAME", "TYPE", "METHODS", "DESCRIPTION"]
    assert [line.split()[0] for line in listed[1:]] == [
        "os.numa_balancing", "os.transparent_hugepage", "os.swappiness",
    ]  # fmt: skip
    (found,) = control("get", "os.swappiness", "--json", *config)
    assert json.loads(found) == {
        "node": "n1", "subject": "os.swappiness", "text": "60", "is_error": False,
    }  # fmt: skip
    control("set", "os.swappiness=200", *config, expect=1)
    assert "Dry run" in control("set", "os.swappiness=20", "--dry-run", *config)[1]
    assert control("set", "os.swappiness=20", "--lease", "1h", *config)[1].endswith("SUCCESS!")
    assert node.text(SWAP) == "20"
    assert control("restore", *config)[1].endswith("Restored 1 values: SUCCESS!")
    assert node.text(SWAP) == "60"
    actions = [json.loads(line)["action"] for line in control("audit", "--json", *config)]
    assert actions == ["refused", "dry-run", "set", "restored"]
    assert "by root on this node, lease 3600 s" in control("audit", *config)[2]
    assert oct((service.directory / "run/c.sock").stat().st_mode & 0o777) == "0o600"


def test_nodes_are_asked_over_nats_with_a_table_of_answers(
    server: NatsServer, tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    seed = new_seed()
    key = tmp_path / "seed"
    key.write_text(seed)
    key.chmod(0o600)
    tables = [
        TABLE.replace("n1.fox", f"{name}.fox")
        + f'url = "{server.url}"\nspread = "10ms"\nfrom = ["key:{public_key(seed)}"]\n'
        for name in ("n1", "n2")
    ]
    services: list[RunningService] = []
    for number, table in enumerate(tables):
        node = MachineNode(tmp_path / f"machine{number}", f"n{number + 1}.fox")
        add_os(node)
        services.append(start(node.path, table))
    config = ("--config", str(services[0].config))
    rows = control("get", "os.swappiness", "--node", "n[1-3]", *config, expect=1)
    assert [row.split()[0] for row in rows[1:]] == ["n1", "n2", "n3"]
    assert "no answer" in rows[3]
    assert len(control("get", "os.swappiness", "--node", "all", *config)) == 3
    put = ("set", "os.swappiness=7", "--node", "n1,n2", *config)
    assert "refuses this sender" in control(*put, expect=1)[1]
    assert len(control(*put, "--sign", str(key))) == 3
    assert (tmp_path / "machine1" / SWAP).read_text().strip() == "7"
    shown = [line.rsplit(None, 3) for line in control("status", "--node", "n1", *config)]
    assert shown[0][1:] == ["PUTS", "REFUSED", "LOGGED"]
    assert [[row[0].split(None, 1)[1], *row[1:]] for row in shown[1:]] == [
        ["NATS subject cc-control", "1", "1", "1"],
        [f"key {public_key(seed)}", "1", "0", "1"],
    ]
    (line,) = control("list", "--node", "n1", "--subject", "nobody", *config, expect=1)
    assert "no service listens on the subject 'nobody'" in line


def test_without_a_service_a_node_is_read_and_put_back(
    tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    # Commands without the service look at this machine itself, which was not booted since.
    boot = "proc/sys/kernel/random/boot_id"
    node.put(boot, Path("/", boot).read_text())
    service = start(node.path, TABLE)
    config = ("--config", str(service.config))
    control("set", "os.swappiness=20", *config)
    service.kill()
    (line,) = control("set", "os.swappiness=30", *config, expect=1)
    assert "is ccagent-control.service running, and are you root?" in line
    assert control("list", *config)[0].startswith("NAME")
    text = control("restore", "--job", "99", *config)[1]
    assert text.endswith("Restored 0 values: SUCCESS!")
    assert service.process.poll() is not None
    service.start()
    assert control("restore", *config)[1].endswith("Restored 1 values: SUCCESS!")
    assert node.text(SWAP) == "60"


def test_the_live_machine_is_set_and_put_back_over_nats(
    server: NatsServer, tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    """Where this machine does not let itself be set, the answer is an error that says so."""
    with open(f"/{SWAP}") as file:
        before = file.read().strip()
    value = "61" if before != "61" else "62"
    rule = f'[controls.allow."os.swappiness"]\nvalues = ["{value}"]\nlease = "1m"\n'
    table = f'hostname = "n1"\n{rule}[controls]\nurl = "{server.url}"\n'
    service = start(tmp_path.joinpath("/"), table)
    config = ("--config", str(service.config))
    can_set = os.access(f"/{SWAP}", os.W_OK) and _is_writable(before)
    text = control("set", f"os.swappiness={value}", "--node", "n1", *config,
                   expect=0 if can_set else 1)[1]  # fmt: skip
    assert text.endswith("SUCCESS!") == can_set
    service.stop()
    with open(f"/{SWAP}") as file:
        assert file.read().strip() == before


def _is_writable(value: str) -> bool:
    """Write the value that is there already."""
    try:
        with open(f"/{SWAP}", "w") as file:
            file.write(value)
    except OSError:
        return False
    return True


def test_all_cards_of_a_node_are_asked(
    tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    service = start(amd(tmp_path / "machine").path, TABLE)
    rows = control("get", "amd_gpu.power_usage", "--config", str(service.config))
    assert [row.split() for row in rows[1:]] == [["n1", "amd_gpu.power_usage@0", "INFO",
                                                  "90.000000"]]  # fmt: skip
    missing = control("get", "amd_gpu.power_usage@1", "--config", str(service.config), expect=1)
    assert "there is no device amd_gpu/'1'" in missing[1]


RENAMED = """
echo localhost >/proc/sys/kernel/hostname
"$0" -m ccagent control run --config "$1/c.toml" 2>"$1/log" &
until grep -q started "$1/log" || ! kill -0 $!; do sleep 0.1; done
echo n7 >/proc/sys/kernel/hostname
kill -HUP $!
wait $!
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can name a machine")
def test_a_name_that_a_machine_gets_later_ends_the_service(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        f'[controls]\nstate-directory = "{tmp_path}/state"\nsocket = "{tmp_path}/socket"\n'
    )
    command = ["unshare", "--uts", "sh", "-c", RENAMED, sys.executable, str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    assert "the name of this machine was localhost and is n7 now" in (tmp_path / "log").read_text()
