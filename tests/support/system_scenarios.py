"""systemd's units beside node_exporter, RDMA of a job beside rdma(8): on a machine with both.

Runs in a virtual machine (tests/support/debian_machine.py), as root:

    python -m tests.support.system_scenarios DIRECTORY

DIRECTORY has the unpacked packages of `PACKAGES`. Prints JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from ccagent.errors import CcagentError
from ccagent.machine.node import Node
from ccagent.machine.rdma import read_job_rdma, sum_job_rdma

PACKAGES = ("ibverbs-providers", "ibverbs-utils")
"""Debian's packages with the driver of rxe for programs, and a program that uses it."""

JOB = 12
_DRIVER = "librxe-rdmav34.so"
_MODULES = ("crc32_generic", "rdma_rxe", "ib_uverbs")
_PORT = 9911
_EXCLUDED = r".+\.(automount|device|mount|scope|slice|target)|[^rs].*\.service"
"""Units without series. On an emulated processor each service takes systemd half a second."""
_GROUP = f"/sys/fs/cgroup/system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0"
_SCRAPE = (
    *(sys.executable, "-m", "ccagent", "metrics", "--once", "--format", "prometheus"),
    *("--names", "node_exporter", "--config", "/etc/systemd-units.toml"),
)


def run(*command: str) -> str:
    """Return what a program prints; nothing if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_until_there(path: str, seconds: float = 200) -> bool:
    """Return whether a path is there before the time has passed."""
    end = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.5)
    return os.path.exists(path)


def use_rdma(packages: Path) -> dict[str, Any]:
    """Have a job use RDMA; return what rdma(8) and ccagent say of it."""
    (driver,) = packages.glob(f"usr/lib/*/libibverbs/{_DRIVER}")
    place = Path("/", driver.relative_to(packages))
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(driver, place)
    Path("/etc/libibverbs.d").mkdir(exist_ok=True)
    shutil.copy(packages / "etc/libibverbs.d/rxe.driver", "/etc/libibverbs.d")
    for module in _MODULES:
        run("modprobe", module)
    run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    run("ip", "addr", "add", "10.9.0.1/24", "dev", "v0")
    for name in ("v0", "v1"):
        run("ip", "link", "set", name, "up")
    run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "v0")
    wait_until_there("/dev/infiniband/uverbs0", 20)
    os.makedirs(_GROUP)
    enter = f"echo $$ > {_GROUP}/cgroup.procs; exec {packages}/usr/bin/ibv_rc_pingpong"
    with subprocess.Popen(
        ["sh", "-c", f"{enter} -d rxe0 -g 1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        end = time.monotonic() + 60
        while f'"pid":{program.pid}' not in run("rdma", "-j", "resource", "show", "qp"):
            if time.monotonic() > end:
                break
            time.sleep(0.5)
        shown = {
            name: [
                each
                for each in json.loads(run("rdma", "-j", "resource", "show", name) or "[]")
                if each.get("pid") == program.pid
            ]
            for name in ("qp", "cq", "mr", "ctx")
        }
        try:
            own = sum_job_rdma(read_job_rdma(Node())).get(JOB, {})
            os.setegid(65534)
            os.seteuid(65534)
            unprivileged = sum_job_rdma(read_job_rdma(Node())).get(JOB, {})
        except CcagentError as error:
            return {"error": str(error), "shown": shown}
        finally:
            os.seteuid(0)
            os.setegid(0)
        program.kill()
    return {"shown": shown, "own": own, "unprivileged": unprivileged}


def ask_systemd() -> dict[str, Any]:
    """Start systemd in a namespace; return what node_exporter and ccagent say of its units."""
    os.makedirs("/run/systemd", exist_ok=True)
    Path("/etc/systemd-units.toml").write_text(
        '[exporter]\nnames = ["node_exporter"]\ncollectors = ["systemd"]\ntime-limit = "120s"\n'
        f"[exporter.node-exporter]\nsystemd-exclude = '{_EXCLUDED}'\n"
    )
    with subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", "/lib/systemd/systemd", "--system",
         "--unit=basic.target", "--log-target=null", "--show-status=false"],
        stdout=subprocess.DEVNULL,
    ) as outer:  # fmt: skip
        if not wait_until_there("/run/systemd/private"):
            outer.kill()
            return {"error": "systemd did not start"}
        first = run("pgrep", "-P", str(outer.pid)).strip()
        inside = ("nsenter", "-t", first, "-p", "-m", "-r")
        run(*inside, "systemctl", "is-system-running", "--wait")
        run(*inside, "systemctl", "start", "dbus.service")
        with subprocess.Popen(
            [*inside, "prometheus-node-exporter", "--collector.disable-defaults",
             "--collector.systemd", f"--collector.systemd.unit-exclude={_EXCLUDED}",
             f"--web.listen-address=127.0.0.1:{_PORT}"],
            stderr=subprocess.DEVNULL,
        ) as exporter:  # fmt: skip
            before = _scrape()
            variables = [f"PYTHONPATH={os.environ['PYTHONPATH']}", "PATH=/usr/bin:/bin"]
            done = subprocess.run(
                [*inside, "env", *variables, *_SCRAPE], capture_output=True, text=True, check=False
            )
            after = _scrape()
            exporter.kill()
        outer.kill()
    return {"before": before, "own": done.stdout, "after": after, "complaint": done.stderr}


def _scrape() -> str:
    end = time.monotonic() + 90
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/metrics", timeout=80) as answer:
                text: str = answer.read().decode()
                return text
        except OSError:
            if time.monotonic() > end:
                return ""
            time.sleep(0.5)


def main() -> None:
    """Print the results."""
    results = {"rdma": use_rdma(Path(sys.argv[1])), "systemd": ask_systemd()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
