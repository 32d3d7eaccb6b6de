"""The control service as the package hardens it, under a systemd of its own, over a real server.

    python -m tests.support.control_hardened

As root. systemd runs in namespaces that end with this command: the machine's own is not touched.
NUMA balancing, huge pages and swappiness of this machine are set for seconds, and put back at the
end of a lease, by a request, and by the stop of the service. Exit status 1 if one is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import nats

from tests.integration.controls.conftest import ControlClient
from tests.support.nats_server import NatsServer
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

TREE = ROOT / "packaging/tree/ccagent-core"
SWAP = Path("/proc/sys/vm/swappiness")
BALANCING = Path("/proc/sys/kernel/numa_balancing")
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

BOOT = """
mount --make-rprivate /
for place in /run /opt /var/lib; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/systemd/system
cp -r "$0"/units/* /run/systemd/system
cp -r "$0"/opt/* /opt
container=test exec /lib/systemd/systemd --system --unit=controls.target --show-status=no
"""
TARGET = "[Unit]\nDefaultDependencies=no\nWants=ccagent-control.service\n"
PLACE = """[Unit]
DefaultDependencies=no
[Service]
ExecStart=
ExecStart=/usr/bin/python3.11 -I -S -B /opt/ccagent control run --config /opt/ccagent.toml
StandardError=file:/run/control.log
"""
CONFIGURATION = """
hostname = "n1"
[controls]
url = "{url}"
[controls.allow."os.swappiness"]
min = 0
max = 100
lease = "3s"
[controls.allow."os.numa_balancing"]
values = ["0", "1"]
[controls.allow."os.transparent_hugepage"]
values = ["always", "madvise", "never"]
"""


def prepare(directory: Path, url: str) -> None:
    """Lay out what the namespaces get: the unit with its drop-in, program and configuration."""
    units = directory / "units"
    drop_ins = units / "ccagent-control.service.d"
    drop_ins.mkdir(parents=True)
    shutil.copy(TREE / "usr/lib/systemd/system/ccagent-control.service", units)
    for name in ("control-os.conf", "control-numa-balancing.conf"):
        shutil.copy(TREE / "usr/share/ccagent/drop-ins" / name, drop_ins)
    (drop_ins / "place.conf").write_text(PLACE)
    (units / "controls.target").write_text(TARGET)
    program = directory / "opt/ccagent"
    shutil.copytree(ROOT / "src/ccagent", program / "ccagent", symlinks=False)
    for module in (click, msgspec, nats):
        shutil.copytree(Path(str(module.__file__)).parent, program / module.__name__)
    shutil.copy(TREE / "usr/lib/ccagent/__main__.py", program)
    (directory / "opt/ccagent.toml").write_text(CONFIGURATION.format(url=url))


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within a minute: {what}")
        time.sleep(0.05)


def request(name: str, value: str | None = None) -> str:
    method = "GET" if value is None else "PUT"
    tags = f"hostname=n1,method={method},type=node,type-id=0"
    return f'{name},{tags} control="{value or ""}" {time.time_ns()}'


def pages() -> str:
    return PAGES.read_text().partition("[")[2].partition("]")[0]


def state() -> tuple[str, str, str]:
    return SWAP.read_text().strip(), BALANCING.read_text().strip(), pages()


def put_back(before: tuple[str, str, str]) -> None:
    """Leave the machine as it was, should the service not have done it."""
    for file, value in zip((SWAP, BALANCING, PAGES), before, strict=True):
        file.write_text(value)


def converse(
    client: ControlClient, before: tuple[str, str, str], systemctl: Callable[..., None]
) -> None:
    """Set, and see that all is put back."""
    other = "never" if before[2] == "madvise" else "madvise"
    flipped = "0" if before[1] == "1" else "1"
    wait_for("an answer", lambda: bool(client.ask(request("os.swappiness"), seconds=0.5)))

    def put(name: str, value: str) -> None:
        (answer,) = client.ask(request(name, value))
        print(f"{answer.tags['level']} {answer.value}")
        if answer.tags["level"] != "INFO":
            raise SystemExit(1)

    put("os.swappiness", "17")
    put("os.numa_balancing", flipped)
    put("os.transparent_hugepage", other)
    assert state() == ("17", flipped, other), state()
    wait_for("the end of the lease", lambda: SWAP.read_text().strip() == before[0])
    print("put back at the end of its lease: os.swappiness")
    (answer,) = client.ask(request("restore", ""))
    assert state() == before, state()
    print(f"{answer.tags['level']} {answer.value}")
    put("os.transparent_hugepage", other)
    systemctl("stop", "ccagent-control")
    assert state() == before, state()
    print("put back by the stop of the service: os.transparent_hugepage")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, before = Path(name), state()
        server = NatsServer(directory / "nats", with_jetstream=False)
        prepare(directory, server.url)
        command = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork",
                   "--kill-child=KILL", "--mount-proc", "sh", "-euc", BOOT, name]  # fmt: skip
        boot = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = ControlClient(server.url)

            def inside(*arguments: str) -> str:
                (child,) = Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split()
                enter = ["nsenter", "--target", child, "--mount", "--pid", "--cgroup"]
                done = subprocess.run([*enter, *arguments], capture_output=True, text=True,
                                      check=False, timeout=60)  # fmt: skip
                return done.stdout + done.stderr

            try:
                converse(client, before, lambda *words: print(inside("systemctl", *words), end=""))
            finally:
                print(inside("cat", "/run/control.log"), end="")
        finally:
            boot.kill()
            boot.wait()
            put_back(before)
            server.kill()


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root")
    main()
