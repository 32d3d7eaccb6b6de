"""Cost of `ccagent top` and htop on the same machine: CPU and memory at 2 s.

    python benchmarks/top.py [PROCESSES] [SECONDS]

Both run in terminals of 160 x 48, one after the other, with sleeping processes on the machine. CPU
is user and system time, including children, after the first screens.
"""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

_WARM_UP = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_SIZE = struct.pack("HHHH", 48, 160, 0, 0)


def main() -> None:
    """Print a line for each program."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    sleepers = [
        subprocess.Popen(["sleep", str(3600)], stdin=subprocess.DEVNULL) for _ in range(processes)
    ]
    commands = {
        "ccagent top, jobs": [sys.executable, "-m", "ccagent", "top"],
        "ccagent top, processes": [sys.executable, "-m", "ccagent", "top", "--processes"],
    }
    if shutil.which("htop"):
        commands["htop"] = ["htop", "-d", "20"]
    try:
        print(f"{processes} sleeping processes, interval 2 s, {seconds:.0f} s each")
        print(f"{'':24} {'% of a core':>12} {'memory MB':>10} {'bytes sent a screen':>20}")
        for name, command in commands.items():
            cpu, memory, sent = measure(command, seconds)
            print(f"{name:24} {cpu:12.2f} {memory:10.1f} {sent / (seconds / 2):20.0f}")
    finally:
        for each in sleepers:
            each.kill()
        for each in sleepers:
            each.wait()


def measure(command: list[str], seconds: float) -> tuple[float, float, int]:
    """Return percent of a core, MB resident, and bytes sent to the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _SIZE)
    sent = [0]

    def drain() -> None:
        try:
            while part := os.read(terminal, 65536):
                sent[0] += len(part)
        except OSError:
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    time.sleep(_WARM_UP)
    before, begin, sent_before = cpu_seconds(pid), time.monotonic(), sent[0]
    time.sleep(seconds)
    used, passed = cpu_seconds(pid) - before, time.monotonic() - begin
    sent_then = sent[0] - sent_before
    memory = resident(pid)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os.close(terminal)
    reader.join()
    return 100 * used / passed, memory, sent_then


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and of its ended children."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def resident(pid: int) -> float:
    """Return the resident memory in MB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
