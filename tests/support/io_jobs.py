"""Jobs in the emulated machine: code that runs in their control groups, and its counters."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccagent.machine.bpf import pins
from ccagent.machine.bpf.io_records import IoReading, NetworkReading, parse_io, parse_network
from tests.support.kernel_programs import JobGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

Result = dict[str, Any]

DIRECTORY = "/run/ccagent-test-kernel"
_numbers = itertools.count(1000)

PRELUDE = """
import ctypes, mmap, os, socket, subprocess, sys, threading
def path(name):
    return os.path.join(place, name)
def elsewhere(function, *arguments):
    # Sockets stay in the network namespace of the thread that made them.
    made = []
    def make():
        namespace = os.open("/run/netns/other", os.O_RDONLY)
        assert not ctypes.CDLL(None).setns(namespace, 0x40000000)
        made.append(function(*arguments))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]
"""


def run_in_job(
    root: str, place: str, script: str, *, version: str = "v2", job: int = 0
) -> tuple[int, Result]:
    """Run Python code in a job that ends with it; return the job and what it says that it did.

    The code finds `place`, and tells what is to be counted with `expect`.
    """
    number = job or next(_numbers)
    path = (
        f"system.slice/slurmstepd.scope/job_{number}/step_0/user/task_0"
        if version == "v2"
        else f"slurm/uid_5001/job_{number}/step_0"
    )
    group = JobGroup(root, path, "cgroup.procs")
    code = compile(PRELUDE + textwrap.dedent(script), f"job {number}", "exec")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os._exit(_work(code, place, f"{group.path}/cgroup.procs", writer))
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    group.remove()
    if status:
        raise RuntimeError(said.decode())
    return number, json.loads(said)


def _work(code: CodeType, place: str, procs: str, writer: int) -> int:
    expected: Result = {}

    def expect(**values: int) -> None:
        for name, value in values.items():
            expected[name] = expected.get(name, 0) + value

    try:
        Path(procs).write_text("0")
        exec(code, {"place": place, "expect": expect})
        os.write(writer, json.dumps(expected).encode())
    except BaseException:  # noqa: BLE001 - the parent raises it
        os.write(writer, traceback.format_exc().encode())
        return 1
    return 0


def read_io() -> IoReading:
    return parse_io(Path(DIRECTORY, pins.IO).read_bytes())


def read_network() -> NetworkReading:
    return parse_network(Path(DIRECTORY, pins.NETWORK).read_bytes())


def counted(job: int, place: str) -> Result:
    """Return what the kernel's programs counted for a job on the file system of a path."""
    device = os.stat(place).st_dev
    number = os.major(device) << 20 | os.minor(device)
    for key, counts in read_io().entries.items():
        if (key.job, key.device) == (job, number):
            return {name: value for name, value in counts._asdict().items() if value}
    return {}


def attempt(results: Result, name: str, scenario: Callable[[], Any]) -> None:
    """Add the result of a scenario, or why it failed."""
    begin = time.monotonic()
    try:
        results[name] = scenario()
    except Exception:  # noqa: BLE001 - the test that looks for the result shows it
        results[name] = {"error": traceback.format_exc()}
    print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)
