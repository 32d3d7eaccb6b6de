"""Programs whose I/O is known, each in the control group of a job: what they did, what was counted.

Runs in a virtual machine with a kernel of Debian (tests/support/debian_machine.py), as root:

    python -m tests.support.io_scenarios BUILT > results.json

BUILT: directory of programs that keep ended jobs for io_tables.KEPT.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccagent.machine.bpf import loading, pins
from ccagent.machine.bpf.io_loading import IoOptions
from ccagent.machine.bpf.io_records import count_lost
from ccagent.machine.bpf.status import objects, read_status
from tests.support.effort import IS_NIGHTLY
from tests.support.io_jobs import DIRECTORY, Result, attempt, read_io, read_network, run_in_job
from tests.support.io_lacking import do_without, load_without_helper, small_kernel
from tests.support.io_mounts import all_processors, file_systems, other_host
from tests.support.io_programs import FIO, SCRIPTS, compare, run_dd, run_fio, scripts_on
from tests.support.io_tables import crowd, expire, mount_many, overflow, talk_in_many_jobs
from tests.support.io_traffic import NETWORK, compare_network
from tests.support.kernel_programs import NOBODY, hierarchy

if TYPE_CHECKING:
    from collections.abc import Callable

_READINGS = 1000 if IS_NIGHTLY else 100


def count_known_programs() -> Result:
    """Run all programs whose I/O is known."""
    results: Result = {}
    with hierarchy("v2") as root, file_systems() as places:
        for kind, place in places.items():
            for name in scripts_on(kind):
                attempt(results, f"{kind} {name}", partial(compare, root, place, name))
        ext4 = places["ext4"]
        dd = ["if=/dev/zero", "of=d", "bs=1M", "count=8", "conv=notrunc"]
        attempt(results, "dd", partial(run_dd, root, ext4, *dd))
        attempt(results, "dd direct", partial(run_dd, root, ext4, *dd, "oflag=direct"))
        read = ["if=d", "of=/dev/null", "bs=64K", "iflag=direct"]
        attempt(results, "dd direct read", partial(run_dd, root, ext4, *read))
        for name, options in FIO.items():
            attempt(results, f"fio {name}", partial(run_fio, root, ext4, *options))
        with other_host():
            for name in NETWORK:
                attempt(results, f"network {name}", partial(compare_network, root, name))
    with hierarchy("v1") as root:
        attempt(results, "v1", partial(compare, root, "/tmp/v1", "read_write", version="v1"))
    results["lost"] = count_lost(read_io(), read_network())
    return results


def as_user(group: int, function: Callable[[], Any]) -> Any:
    """Return what a function returns in a process without privilege; its errors as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(NOBODY)
            found = function()
        except BaseException as error:  # noqa: BLE001 - the parent returns it
            found = repr(error)
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read()
    os.waitpid(child, 0)
    return json.loads(said)


def read_without_privilege() -> Result:
    """Read often as a user of the group, and once as another one."""

    def read() -> list[bool]:
        for _ in range(_READINGS - 1):
            read_io()
            read_network()
        return [bool(read_io().entries), bool(read_network().entries)]

    allowed, denied = as_user(NOBODY, read), as_user(NOBODY - 1, read)
    modes = {
        name: f"{os.stat(Path(DIRECTORY, name)).st_mode & 0o7777:04o}"
        for name in (pins.IO, pins.NETWORK, pins.IO_PROGRAMS)
    }
    return {"allowed": allowed, "denied": denied, "modes": modes}


def unload() -> Result:
    """Unload everything; return the programs of the kernel before, loaded and after."""
    found: Result = {"loaded": len(own_programs())}
    status = read_status(DIRECTORY)
    found["status"] = [status.state, status.io, status.not_counted, status.problems]
    loading.unload_io(DIRECTORY)
    found["without io"] = sorted(os.listdir(DIRECTORY))
    loading.unload(DIRECTORY)
    for _ in range(600):  # the kernel frees them after a while
        if not own_programs():
            break
        time.sleep(0.1)
    found["unloaded"] = own_programs()
    found["left"] = os.path.exists(DIRECTORY) or DIRECTORY in Path("/proc/mounts").read_text()
    return found


def own_programs() -> list[int]:
    """Return the kernel's numbers of all programs."""
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    number, found = ctypes.c_uint32(0), list[int]()
    while not library.bpf_prog_get_next_id(number, ctypes.byref(number)):
        found.append(number.value)
    return found


def show_mounts() -> Result:
    """Run a program in a job between two readings of `ccagent top`; return its mounts and screen.

    Also the mounts of the report of the job.
    """
    from ccagent.machine.node import Node
    from ccagent.views.job.local import read_mounts
    from ccagent.views.job.mounts import format_mounts
    from ccagent.views.top.reader import MountWatch
    from ccagent.views.top.screen import draw
    from ccagent.views.top.snapshot import TopSnapshot
    from ccagent.views.top.state import ViewState

    node, watch = Node(), MountWatch(DIRECTORY)
    os.makedirs("/mnt/v", exist_ok=True)
    with hierarchy("v2") as root:
        watch.read(node, ())
        job, expected = run_in_job(root, "/mnt/v", SCRIPTS["read_write"])
        mounts, note = watch.read(node, ())
    snapshot = TopSnapshot(node="vm", cluster="", time=0, uptime=0, mounts=mounts)
    screen = draw(snapshot, ViewState(view="mounts"), 80, 100, has_keys=False)
    own = [one for one in mounts if one.job == job]
    return {
        "expected": expected,
        "mounts": [[one.read, one.written] for one in own],
        "note": note,
        "screen": [line.text.rstrip() for line in screen.lines],
        "report": format_mounts(read_mounts(node, job, DIRECTORY)),
        "other directory": MountWatch("/run/nowhere").read(node, ())[1],
    }


def find_causes(
    job: int, elapsed: float, used: float, pressure: float | None = None
) -> list[list[str]]:
    """Return rules and texts of the report of a job that ended. used: CPU seconds."""
    from msgspec import structs

    from ccagent.config.duration import Duration
    from ccagent.machine.node import Node
    from ccagent.stores.metrics.page_settings import JobThresholds
    from ccagent.views.job.figures import JobFigures, NodeFigures
    from ccagent.views.job.local import read_mounts
    from ccagent.views.job.rules import make_report

    node = NodeFigures(name="vm", cores=4, cpu_seconds=used, memory_pressure=pressure, samples=9)
    figures = JobFigures(
        job=str(job), state="COMPLETED", stop=1, elapsed=elapsed, gpus=0, nodes=(node,)
    )
    limits = structs.replace(JobThresholds(), min_runtime=Duration("1s"))
    report = make_report(figures, limits, read_mounts(Node(), job, DIRECTORY))
    return [[one.rule, one.text] for one in report.findings]


def report_slow_mount() -> list[list[str]]:
    """Run a job that reads through a slow FUSE mount; return the findings of its report."""
    os.makedirs("/tmp/behind/own", exist_ok=True)
    Path("/tmp/behind/data").write_bytes(bytes(1 << 20))
    os.makedirs("/mnt/slow", exist_ok=True)
    options = ("--read-rate=200k", "-o", "direct_io")
    subprocess.run(["bindfs", *options, "/tmp/behind", "/mnt/slow"], check=True)
    try:
        with hierarchy("v2") as root:
            job, found = run_in_job(root, "/mnt/slow/own", SLOW_READER)
        return find_causes(job, found["elapsed"], found["cpu"])
    finally:
        subprocess.run(["umount", "-l", "/mnt/slow"], check=True)


def report_memory_pressure() -> list[list[str]]:
    """Run a job that is held at the border of its memory; return the findings of its report."""
    with hierarchy("v2") as root:
        job, found = run_in_job(root, root, MEMORY_HOLDER)
    return find_causes(job, found["elapsed"], found["cpu"], found["pressure"])


SLOW_READER = """
import time
start = time.monotonic()
with open("/mnt/slow/data", "rb", buffering=0) as file:
    while file.read(1 << 16):
        pass
expect(cpu=time.process_time(), elapsed=time.monotonic() - start)
"""

MEMORY_HOLDER = """
import re, time
own = open("/proc/self/cgroup").read().rpartition("::")[2].strip().strip("/").split("/")
above = place
for part in own:
    open(above + "/cgroup.subtree_control", "w").write("+memory")
    above += "/" + part
job = "/".join([place, *own[:3]])
start, held = time.monotonic(), []
open(job + "/memory.high", "w").write("64M")
while time.monotonic() < start + 5:
    held.append(b"x" * (1 << 16))
waited = int(re.search(r"some .*total=([0-9]+)", open(job + "/memory.pressure").read())[1])
elapsed = time.monotonic() - start
expect(cpu=time.process_time(), elapsed=elapsed, pressure=waited / 1e4 / elapsed)
"""


def main() -> None:
    """Run all scenarios, the short ones by day; print their results as JSON, by name."""
    results: Result = {}
    loaded = loading.load(DIRECTORY, group=NOBODY, io=IoOptions())
    results |= {"left_out": dict(loaded.left_out), "complaint": loaded.complaint}
    with all_processors():
        results |= count_known_programs()
    attempt(results, "unprivileged", read_without_privilege)
    attempt(results, "many mounts", mount_many)
    if IS_NIGHTLY:
        attempt(results, "many talkers", talk_in_many_jobs)
        attempt(results, "views", show_mounts)
    attempt(results, "unload", unload)
    if IS_NIGHTLY:
        attempt(results, "without helper", load_without_helper)
        attempt(results, "lacking", do_without)
        loading.load(DIRECTORY, io=IoOptions(has_time=True))
        attempt(results, "slow mount", report_slow_mount)
        attempt(results, "memory pressure", report_memory_pressure)
    # A build that keeps ended jobs for a short time.
    options = IoOptions(has_time=True, entries=24)
    with small_kernel():
        loading.load(DIRECTORY, programs=objects(sys.argv[1]), io=options)
    attempt(results, "expire", expire)
    attempt(results, "overflow", overflow)
    attempt(results, "crowd", crowd)
    loading.unload(DIRECTORY)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
