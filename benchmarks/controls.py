"""Cost of the control service: requests over a real nats-server, and idling.

    python benchmarks/controls.py [--rate 1000] [--seconds 10] [--idle 20] [TREE...]

Prints the service's CPU time for each answered GET. For comparison it prints the CPU time of the
read itself (measured in this process), and of a Python loop that only receives and sends. It also
prints the time until an answer, and memory and CPU of the idle service. On a busy machine each
wake-up costs more. Reads `os.swappiness` of this machine, and sets nothing.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from ccagent.controls.kernel_files import OsSettings
from ccagent.machine.node import Node

CONTROL = "swappiness"
TICKS = os.sysconf("SC_CLK_TCK")

EMPTY = """
import select, socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(b'CONNECT {"verbose":false}\\r\\nSUB cc-control 1\\r\\n')
poll = select.poll()
poll.register(link, select.POLLIN)
while True:
    poll.poll()
    for line in link.recv(32768).split(b"\\r\\n"):
        if line.startswith(b"MSG"):
            link.sendall(b"PUB %b 2\\r\\n60\\r\\n" % line.split()[3])
        elif line == b"PING":
            link.sendall(b"PONG\\r\\n")
"""
"""A responder that answers every request with the same two bytes."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in s of a process with all its threads."""
    return time.clock_gettime(_clock_of(pid))


def _clock_of(pid: int) -> int:
    # CPUCLOCK_SCHED of the process: clock_getcpuclockid(3).
    return ((~pid) << 3) | 2


def memory(pid: int) -> dict[str, int]:
    """Return memory in KB: resident, and private to the process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon")}


def read_cost(count: int = 5000) -> float:
    """Return the CPU seconds of one read of the control."""
    features = OsSettings().find_features(Node())
    feature = next(each for each in features if each.control.name == CONTROL)
    begin = time.process_time()
    for _ in range(count):
        feature.read("0")
    return (time.process_time() - begin) / count


class Requester:
    """Sends GETs over a socket of its own, and reads the answers: any client costs it the same."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._rest = b""
        self._socket.sendall(b'CONNECT {"verbose":false}\r\nSUB %b.* 1\r\n' % self._inbox.encode())

    def ask(self, rate: float, seconds: float) -> list[float]:
        """Send GETs at an even rate. Return the seconds until each answer."""
        tags = "hostname=n1,method=GET,type=node,type-id=0"
        body = f'os.{CONTROL},{tags} control="" {time.time_ns()}'
        sent: list[float] = []
        times: list[float] = []
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds or len(times) < len(sent):
            due = min(int((now - begin) * rate), int(seconds * rate))
            while len(sent) < due:
                head = f"PUB cc-control {self._inbox}.{len(sent)} {len(body)}\r\n"
                sent.append(time.perf_counter())
                self._socket.sendall(f"{head}{body}\r\n".encode())
            numbers = self._receive(0.5 / rate)
            times += [time.perf_counter() - sent[number] for number in numbers]
            if now > begin + seconds + 10:
                break
        return times

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, patience: float) -> list[int]:
        """Return the numbers of the answered requests."""
        if not select.select([self._socket], [], [], patience)[0]:
            return []
        *lines, self._rest = (self._rest + self._socket.recv(1 << 20)).split(b"\r\n")
        if b"PING" in lines:
            self._socket.sendall(b"PONG\r\n")
        starts = [line.split() for line in lines if line.startswith(b"MSG ")]
        return [int(fields[1].rpartition(b".")[2]) for fields in starts]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("trees", nargs="*", help="source trees to compare, instead of this one")
    options = parser.parse_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as directory,
        server(port, "nats-server", "-a", "127.0.0.1", "-p", str(port)),
    ):
        url = f"nats://127.0.0.1:{port}"
        file = Path(directory, "c.toml")
        file.write_text(
            f'hostname = "n1"\n[controls]\nurl = "{url}"\n'
            f'state-directory = "{directory}/state"\nsocket = "{directory}/s.sock"\n',
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "ccagent", "control", "run", "--config", str(file)]
        for tree in options.trees or [""]:
            print(tree or "this tree")
            source = {"PYTHONPATH": f"{tree}/src"} if tree else {}
            service = subprocess.Popen(
                command, stderr=subprocess.DEVNULL, env=os.environ | source, cwd=tree or None
            )
            try:
                measure(service.pid, port, options)
            finally:
                service.terminate()
                service.wait()
        empty = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)])
        try:
            print(f"empty loop:   {load(empty.pid, port, options).cpu * 1e6:.0f} us CPU each")
        finally:
            empty.kill()
            empty.wait()


class Load(NamedTuple):
    """Results of a measurement. cpu: seconds a request. times: until each answer, sorted."""

    answered: int
    cpu: float
    times: list[float]


def load(pid: int, port: int, options: argparse.Namespace) -> Load:
    """Send requests for some time, after the process has answered a first one."""
    requester = Requester(port)
    deadline = time.monotonic() + 30
    while not requester.ask(10, 0.3) and time.monotonic() < deadline:
        time.sleep(0.1)
    begin = cpu_seconds(pid)
    times = requester.ask(options.rate, options.seconds)
    used = (cpu_seconds(pid) - begin) / max(1, len(times))
    requester.close()
    return Load(len(times), used, sorted(times))


def measure(pid: int, port: int, options: argparse.Namespace) -> None:
    """Measure a running service."""
    found = load(pid, port, options)
    read = read_cost()
    wanted = int(options.rate * options.seconds)
    print(f"answered:     {found.answered} of {wanted}, {found.answered / options.seconds:.0f}/s")
    print(f"CPU each:     {found.cpu * 1e6:.0f} us, of it the read {read * 1e6:.0f} us")
    print(
        f"answer after: median {statistics.median(found.times) * 1e3:.2f} ms, "
        f"99 % within {found.times[int(len(found.times) * 0.99)] * 1e3:.2f} ms"
    )
    time.sleep(3)
    begin = cpu_seconds(pid)
    time.sleep(options.idle)
    idle = (cpu_seconds(pid) - begin) / options.idle
    size = memory(pid)
    print(
        f"at rest:      {size['VmRSS'] / 1024:.1f} MB resident, "
        f"{size['RssAnon'] / 1024:.1f} MB of it its own; {idle * 100:.4f} % of a core"
    )


if __name__ == "__main__":
    main()
