"""kill -9 at every step of setting, setting again and putting back: what a start finds after it.

    python -m tests.support.control_crash DIRECTORY

A step is a call that changes a file or syncs one. A child is killed before and after each of them.
Prints how many steps there were; exit status 1 and a line for each value that was forgotten.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ccagent.controls.journal import read_audit
from tests.support.control_machines import MachineNode, Site, add_os, allow

CALLS = ("open", "write", "fdatasync", "fsync", "rename", "replace", "ftruncate", "unlink")
SWAP = "proc/sys/vm/swappiness"
RULES = allow(
    os__swappiness={"min": 0, "max": 200, "lease": "1h"}, os__numa_balancing={"values": ["0", "1"]}
)


class Countdown:
    """Kills this process at a step."""

    def __init__(self, step: int, *, is_after: bool) -> None:
        self.left = step
        self.is_after = is_after

    def call(self, function: Any, *arguments: Any, **keys: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        is_last = self.left == 0
        try:
            return function(*arguments, **keys)
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)


def make_machine(root: Path) -> MachineNode:
    node = MachineNode(root)
    add_os(node)
    return node


def conversation(site: Site) -> None:
    """Set, set something else, set again, put all back."""
    for name, value in (("os.swappiness", "10"), ("os.numa_balancing", "0"),
                        ("os.swappiness", "20")):  # fmt: skip
        assert site.ask(name, value)[0] == "INFO"
    assert site.ask("restore", "")[0] == "INFO"


def run_child(root: Path, step: int, *, is_after: bool) -> bool:
    """Return whether the child was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            site = Site(make_machine(root), RULES)
            countdown = Countdown(step, is_after=is_after)
            for name in CALLS:
                setattr(os, name, partial(countdown.call, getattr(os, name)))
            conversation(site)
        except BaseException as error:  # noqa: BLE001 - the parent sees the status
            sys.stderr.write(f"step {step}: {error!r}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def find_forgotten(root: Path) -> list[str]:
    """Start again; return what is neither old nor going to be put back."""
    node = reopen(root)
    site = Site(node, RULES)
    site.changes.recover(site.policy.allows)
    held = {change.control: change for change in site.changes.all()}
    problems: list[str] = []
    for name, file, old in (
        ("os.swappiness", SWAP, "60"),
        ("os.numa_balancing", "proc/sys/kernel/numa_balancing", "1"),
    ):
        now = node.text(file)
        change = held.get(name)
        if now != old and (change is None or change.before != old):
            problems.append(f"{name} is {now} and forgotten")
        audited = {entry.control for entry in read_audit(str(site.state), 0)}
        if now != old and name not in audited:
            problems.append(f"{name} is {now} and not in the audit")
    site.ask("restore", "")
    if node.text(SWAP) != "60" or site.changes.all():
        problems.append(f"not put back: {node.text(SWAP)}")
    return problems


def reopen(root: Path) -> MachineNode:
    """Open a machine that is there, without writing it anew."""
    node = MachineNode.__new__(MachineNode)
    kept = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    MachineNode.__init__(node, root)
    for path, content in kept.items():
        path.write_bytes(content)
    return node


def main() -> int:
    directory = Path(sys.argv[1])
    step, problems, killed = 0, 0, True
    while killed:
        step += 1
        for is_after in (False, True):
            root = directory / f"{step}-{is_after}"
            killed = run_child(root, step, is_after=is_after)
            for problem in find_forgotten(root):
                problems += 1
                print(f"step {step} {'after' if is_after else 'before'}: {problem}")
    print(f"steps {step - 1}, forgotten {problems}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
