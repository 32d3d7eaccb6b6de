"""A control group that limits memory, as MemoryMax= of a unit does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

_V1 = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def memory_group(limit: int) -> Generator[Callable[[], AbstractContextManager[None]]]:
    """Yield a context in which started processes have so many bytes together. Needs root."""
    with contextlib.ExitStack() as stack:
        is_v1 = (_V1 / "memory.limit_in_bytes").exists()
        root = _V1 if is_v1 else Path("/sys/fs/cgroup")
        if not is_v1 and "memory" not in (root / "cgroup.controllers").read_text():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(root)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(root)], check=True)
        before = _own_group(is_v1=is_v1)
        if not is_v1:
            (root / "cgroup.subtree_control").write_text("+memory")
        group = root / f"ccagent-test-{uuid4().hex}"
        group.mkdir()
        stack.callback(until, lambda: _is_removed(group))
        name = "memory.limit_in_bytes" if is_v1 else "memory.max"
        (group / name).write_text(str(limit))

        @contextlib.contextmanager
        def limited() -> Generator[None]:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            try:
                yield
            finally:
                (root / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))

        yield limited


def _own_group(*, is_v1: bool) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers.split(",") == (["memory"] if is_v1 else [""]):
            return path
    return "/"


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
