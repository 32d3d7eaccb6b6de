"""Known programs in jobs of a real Slurm: what they did, and what `ccagent jobio show` tells.

Runs in a virtual machine with a kernel of Debian (tests/support/debian_machine.py), as root; its
jobs are those of a user. All have ended, and their control groups are gone, before the first
reading.

    python -m tests.support.slurm_io_scenarios > results.json
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccagent.machine.bpf import loading
from ccagent.machine.bpf.io_loading import IoOptions
from tests.support.emulated_slurm import ALICE, emulated_slurm
from tests.support.io_jobs import PRELUDE
from tests.support.io_mounts import file_systems, other_host
from tests.support.slurm_io_programs import (
    BLOCK,
    DD_PROGRAMS,
    FIO_PROGRAMS,
    IDLE,
    NETWORK_LOAD,
    OVERLAY_PROGRAMS,
    SCRIPT_PROGRAMS,
    STREAM_BYTES,
    STREAMS,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from tests.support.emulated_slurm import EmulatedSlurm, Version
    from tests.support.slurm_io_programs import KnownProgram

Result = dict[str, Any]

_CLONE_NEWNET = 0x40000000
_TOLD = Path("/tmp/told")
_RUNNER = Path("/tmp/run.py")
_PROGRAMS = Path("/tmp/programs.json")
_CODE = """
import json, textwrap
expected = {}
with open("/tmp/programs.json") as file:
    program = json.load(file)[sys.argv[1]]
for kind, place in program["places"].items():
    own = expected[kind] = {}
    lock = threading.Lock()
    def expect(**values):
        with lock:
            for name, value in values.items():
                own[name] = own.get(name, 0) + value
    exec(textwrap.dedent(program["code"]), {**globals(), "place": place, "expect": expect})
with open("/tmp/told/" + sys.argv[1], "w") as file:
    json.dump({"job": os.environ["SLURM_JOB_ID"], "expected": expected}, file)
"""
"""Runs a program on its file systems and writes the job and what it did to another one."""

_RUN = f"exec /usr/bin/python3 -S {_RUNNER}"


def prepare(version: Version, places: dict[str, str], programs: Iterable[KnownProgram]) -> None:
    """Write what the jobs read: a directory for each program on each file system."""
    found: dict[str, Result] = {}
    for number, program in enumerate(programs):
        own: dict[str, str] = {}
        for kind in program.kinds:
            path = Path(places[kind], f"{version}-{number}")
            path.mkdir(parents=True)
            for name, size in program.files.items():
                (path / name).write_bytes(os.urandom(size))
                os.chown(path / name, ALICE, ALICE)
            os.chown(path, ALICE, ALICE)
            own[kind] = str(path)
        found[program.name] = {"code": program.code, "places": own}
    os.sync()
    _PROGRAMS.write_text(json.dumps(found))
    _RUNNER.write_text(PRELUDE + _CODE)
    _TOLD.mkdir(exist_ok=True)
    os.chown(_TOLD, ALICE, ALICE)


def run_array(slurm: EmulatedSlurm, programs: list[KnownProgram]) -> Result:
    """Run each program in a task of one array; return the jobs that Slurm names."""
    words = " ".join(shlex.quote(program.name) for program in programs)
    script = f'set -- {words}; shift $SLURM_ARRAY_TASK_ID; {_RUN} "$1"'
    array = slurm.submit(f"--array=0-{len(programs) - 1}", "--wrap", script)
    slurm.wait_until_ended()
    return {"array": array, **told(program.name for program in programs)}


def run_steps(slurm: EmulatedSlurm, programs: list[KnownProgram]) -> Result:
    """Run programs in steps of one job, at the same time."""
    steps = [
        f"srun --exact -n1 --mem=300 sh -c {shlex.quote(f'{_RUN} {shlex.quote(program.name)}')} &"
        for program in programs
    ]
    job = slurm.submit(f"-n{len(programs)}", "--wrap", " ".join([*steps, "wait"]))
    slurm.wait_until_ended()
    return {"submitted": job, **told(program.name for program in programs)}


def told(names: Iterable[str]) -> Result:
    """Return what programs have said, by name, and forget it."""
    found: Result = {}
    for name in names:
        path = _TOLD / name
        found[name] = json.loads(path.read_text()) if path.exists() else {"error": _output()}
        path.unlink(missing_ok=True)
    return {"programs": found}


def _output() -> str:
    """Return what jobs have printed."""
    return "\n".join(path.read_text()[-3000:] for path in Path("/tmp").glob("job-*"))


@contextmanager
def far_host() -> Generator[Result]:
    """Have a server in the other network namespace; return what it got, which grows."""
    got: Result = {"tcp": 0, "udp": 0}
    lock = threading.Lock()
    sockets: dict[str, socket.socket] = {}

    def make() -> None:
        namespace = os.open("/run/netns/other", os.O_RDONLY)
        assert not ctypes.CDLL(None).setns(namespace, _CLONE_NEWNET)
        sockets["tcp"] = socket.create_server(("10.99.0.2", 0), backlog=STREAMS)
        sockets["udp"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sockets["udp"].bind(("10.99.0.2", 0))

    def answer_stream(peer: socket.socket) -> None:
        while data := peer.recv(BLOCK):
            with lock:
                got["tcp"] += len(data)
        peer.sendall(b"x" * STREAM_BYTES)
        peer.close()

    def answer_datagrams() -> None:
        while True:
            data, address = sockets["udp"].recvfrom(9000)
            got["udp"] += len(data)
            sockets["udp"].sendto(data[: len(data) // 2], address)

    def accept() -> None:
        while True:
            peer, _ = sockets["tcp"].accept()
            threading.Thread(target=answer_stream, args=[peer], daemon=True).start()

    # A namespace is that of a thread.
    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    for function in (accept, answer_datagrams):
        threading.Thread(target=function, daemon=True).start()
    ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    Path("/tmp/ports.json").write_text(json.dumps(ports))
    yield got


def run_jobs(version: Version, places: dict[str, str]) -> Result:
    """Run all jobs with control groups of a version."""
    by_name = {program.name: program for program in SCRIPT_PROGRAMS}
    steps = [by_name[name]._replace(name=f"step {name}") for name in ("read_write", "vectors")]
    if version == "v2":
        array = [*SCRIPT_PROGRAMS, *OVERLAY_PROGRAMS, *DD_PROGRAMS, *FIO_PROGRAMS, IDLE]
    else:
        array = [by_name["read_write"], by_name["copies"], DD_PROGRAMS[1], IDLE]
    prepare(version, places, [*array, *steps, NETWORK_LOAD])
    with emulated_slurm(version) as slurm, far_host() as far:
        return {
            "array": _timed("array", lambda: run_array(slurm, array)),
            "steps": _timed("steps", lambda: run_steps(slurm, steps)),
            "network": _timed("network", lambda: run_array(slurm, [NETWORK_LOAD])),
            "far": far,
        }


def _timed(name: str, function: Any) -> Any:
    begin = time.monotonic()
    try:
        return function()
    finally:
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)


def show() -> Result:
    """Return what `ccagent jobio show` prints."""
    command = [sys.executable, "-m", "ccagent", "jobio", "show", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found: Result = json.loads(done.stdout)
    return found


def main() -> None:
    """Run all jobs; print the results as JSON."""
    results: Result = {}
    loaded = loading.load(io=IoOptions())
    results["left_out"] = dict(loaded.left_out)
    versions: tuple[Version, ...] = ("v2", "v1")
    with file_systems() as places, other_host():
        results["points"] = {kind: str(Path(place).parent) for kind, place in places.items()}
        for version in versions:
            try:
                results[version] = run_jobs(version, places)
            except Exception:  # noqa: BLE001 - the test that looks for the result shows it
                results[version] = {"error": traceback.format_exc()}
        results["shown"] = show()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
