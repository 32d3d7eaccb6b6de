"""Cost of counting the I/O of jobs in instructions, on an emulated processor with Debian's kernel.

The emulator's clock goes on by 1 ns an instruction, so CPU times and the kernel's own statistics
are numbers of instructions: the same on any machine, but for interrupts, and no times. Calls are
those between a short run and a long one, so what a program does once is not in them.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.kernel import counted_by_the_kernel, run_times
from ccagent.machine.bpf import loading
from ccagent.machine.bpf.io_loading import IoOptions
from tests.support.io_mounts import mounted
from tests.support.io_scenarios import own_programs
from tests.support.kernel_programs import own_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    Measure = Callable[[int], float]

_OPTIONS = "-accel tcg -icount shift=0,sleep=off -smp 1"
_RUNS = 5
_USES = 500


def cpu_ns(command: list[str]) -> float:
    """Return the CPU time of a command in ns."""
    os.sync()  # what is written back meanwhile would disturb
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9


def fio(kind: str, size: int, calls: int, engine: str = "psync") -> float:
    """Return ns of calls of fio on a file in the page cache."""
    return cpu_ns(
        ["fio", "--name=f", f"--rw={kind}", f"--bs={size}", "--size=8M", f"--ioengine={engine}",
         f"--number_ios={calls}", f"--io_size={calls * size}", "--overwrite=1", "--invalidate=0",
         "--pre_read=1", "--thread", "--gtod_reduce=1"]
    )  # fmt: skip


def dd(calls: int) -> float:
    """Return ns of calls of 1 MiB that write over a file in the page cache."""
    command = ["dd", "if=/dev/zero", "of=d", "bs=1M", "conv=notrunc", "status=none"]
    return cpu_ns([*command, f"count={calls}"])


def a_call(measure: Measure, few: int, many: int) -> float:
    """Return instructions a call."""
    return (measure(many) - measure(few)) / (many - few)


def compare(name: str, measure: Measure, few: int, many: int) -> None:
    """Print instructions a call without the programs and with them, of several runs in turns."""
    without: list[float] = []
    with_them: list[float] = []
    measure(many)
    for _ in range(_RUNS):
        without.append(a_call(measure, few, many))
        with own_directory() as directory:
            loading.load(directory, io=IoOptions())
            with_them.append(a_call(measure, few, many))
    ratios = [(b / a - 1) * 100 for a, b in zip(without, with_them, strict=True)]
    runs = " ".join(f"{each:+.2f}" for each in ratios)
    print(
        f"{name}: {statistics.median(without):,.0f} instructions a call without,"
        f" {statistics.median(with_them):,.0f} with,"
        f" {statistics.median(ratios):+.2f} % (each run: {runs})",
        flush=True,
    )


def use_all() -> None:
    """Call each function that a program is attached to, often enough."""
    for kind in ("read", "write"):
        fio(kind, 4096, 4000)
        for engine in ("libaio", "io_uring"):
            fio(kind, 4096, 4000, engine)
    one, other = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram.bind(("127.0.0.1", 0))
    datagram6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagram6.bind(("::1", 0))
    source = os.open("f.0.0", os.O_RDWR)
    target = os.open("copy", os.O_RDWR | os.O_CREAT)
    reader, writer = os.pipe()
    buffers = [bytearray(64), bytearray(64)]
    for _ in range(_USES):
        os.close(os.open("x", os.O_WRONLY | os.O_CREAT))
        os.stat("x")
        os.link("x", "hard")
        os.symlink("x", "soft")
        os.rename("x", "y")
        for name in ("y", "hard", "soft"):
            os.unlink(name)
        os.mkdir("directory")
        os.listdir("directory")
        os.rmdir("directory")
        os.statvfs(".")
        os.preadv(source, buffers, 0)
        os.pwritev(target, buffers, 0)
        os.fsync(target)
        os.fdatasync(target)
        os.copy_file_range(source, target, 100, 0, 0)
        os.sendfile(one.fileno(), source, 0, 100)
        other.recv(100)
        os.splice(source, writer, 100, 0)
        os.read(reader, 100)
        client.send(b"x" * 100)
        peer.recv(100)
        datagram.sendto(b"x" * 100, datagram.getsockname())
        datagram.recv(100)
        datagram6.sendto(b"x" * 100, datagram6.getsockname())
        datagram6.recv(100)


def run_here() -> None:
    """Measure on this machine, whose clock is the emulator's."""
    with tempfile.NamedTemporaryFile(dir="/mnt") as disk:
        disk.truncate(192 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk.name], check=True)
        with mounted("-o", "loop", disk.name, "/mnt/ext4") as place:
            os.chdir(place)
            compare("fio read 4 KiB", lambda calls: fio("read", 4096, calls), 2000, 22_000)
            compare("fio write 4 KiB", lambda calls: fio("write", 4096, calls), 2000, 22_000)
            compare("fio read 512 B", lambda calls: fio("read", 512, calls), 2000, 22_000)
            compare("dd 1 MiB", dd, 8, 104)
            before = set(own_programs())
            with own_directory() as directory:
                loading.load(directory, io=IoOptions())
                own = set(own_programs()) - before
                with counted_by_the_kernel():
                    use_all()
                    for name, spent in sorted(run_times(own, least=_USES - 1).items()):
                        print(
                            f"{name}: {spent:.0f} instructions a run, the kernel's clock included"
                        )
            os.chdir("/")


def run_emulated() -> None:
    """Measure in an emulated machine, and print."""
    from tests.support.debian_machine import download_kernel, run_in_machine

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        kernel = download_kernel(directory)
        print(f"Linux {kernel.release}, emulated", flush=True)
        module = "benchmarks.job_io_emulated"
        output = run_in_machine(
            kernel, directory, module, "--here", options=_OPTIONS, time_limit=3600
        )
        print(output.strip())


def main() -> None:
    """Measure on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", action="store_true", help="this is the emulated machine")
    (run_here if parser.parse_args().here else run_emulated)()


if __name__ == "__main__":
    main()
