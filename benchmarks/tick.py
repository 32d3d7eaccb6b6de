"""Files and functions of a daemon's tick, from the schedule to the acknowledgement of NATS.

    python benchmarks/tick.py [--agent metrics --format line] [--list]

Runs a daemon with one agent and a sink nats://, and traces its calls during three ticks, after two
others: `AgentsAndSinks.tick` in the thread of the schedule, and everything in the threads of the
agent and of the sink. It counts ccagent's own functions, without comprehensions, and their files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from ccagent.config.configuration import load
from ccagent.daemon.daemon import Daemon
from ccagent.machine.clock import Clock

if TYPE_CHECKING:
    from types import CodeType, FrameType

ROOT = Path(__file__).parent.parent

_BEFORE = 2
"""Ticks before the traced ones: the first ones open files and connections."""

_TRACED = 3
"""Traced ticks: not every tick sees processes that begin and end."""


class Trace:
    """Collects the functions that run while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.found: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call. In the thread of the schedule only calls within a tick count."""
        if not self.is_on or event != "call" or "/ccagent/" not in frame.f_code.co_filename:
            return
        if threading.current_thread() is not threading.main_thread() or _is_in_tick(frame):
            self.found.add(frame.f_code)


def _is_in_tick(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_qualname != "AgentsAndSinks.tick":
        frame = frame.f_back
    return frame is not None


def watch(daemon: Daemon, trace: Trace) -> None:
    """Trace some ticks of a running daemon, then stop it."""

    def acknowledged() -> int:
        sinks = daemon.status().sinks
        return sinks["broker"].acknowledged if "broker" in sinks else 0

    while not hasattr(daemon, "_configuration") or acknowledged() < _BEFORE or not daemon.is_idle:
        time.sleep(0.05)
    before = acknowledged()
    trace.is_on = True
    while acknowledged() < before + _TRACED or not daemon.is_idle:
        time.sleep(0.05)
    trace.is_on = False
    daemon.stop()


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="sample")
    parser.add_argument("--format", default="sonar")
    parser.add_argument("--list", action="store_true", help="also list the functions")
    arguments = parser.parse_args()
    port, trace = free_port(), Trace()
    with tempfile.TemporaryDirectory() as name, server(port, "nats-server", "-p", str(port)):
        file = Path(name, "ccagent.toml")
        file.write_text(
            f'status-socket = ""\n[outbox]\ndirectory = "{name}/outbox"\n'
            f'[agents.{arguments.agent}]\nevery = "2s"\n'
            f'[sinks.broker]\nurl = "nats://127.0.0.1:{port}"\nformat = "{arguments.format}"\n'
        )
        daemon = Daemon(lambda: load(str(file)), Clock())
        watcher = threading.Thread(target=watch, args=(daemon, trace))
        watcher.start()
        threading.setprofile(trace.note)
        sys.setprofile(trace.note)
        daemon.run()
        sys.setprofile(None)
        watcher.join()
    functions = {
        (str(Path(code.co_filename).resolve().relative_to(ROOT.resolve())), code.co_qualname)
        for code in trace.found
        if not code.co_name.startswith("<")
    }
    files = Counter(path for path, _ in functions)
    if arguments.list:
        for path in sorted(files):
            print(f"{path}: {', '.join(sorted(name for of, name in functions if of == path))}")
    print(f"a tick of {arguments.agent}: {len(files)} files, {len(functions)} functions")


if __name__ == "__main__":
    main()
