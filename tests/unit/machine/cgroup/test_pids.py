"""machine.cgroup: the processes in the groups of a job."""

from __future__ import annotations

import re
from pathlib import Path

from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.node import Node


def write(root: Path, group: str, pids: str) -> None:
    """Make a control group with processes."""
    (root / group).mkdir(parents=True)
    (root / group / "cgroup.procs").write_text(pids)


def test_processes_come_group_by_group(tmp_path: Path) -> None:
    write(tmp_path, "job_1/step_0/user/task_0", "30\n31\n")
    write(tmp_path, "job_1/step_0/slurm", "20\n")
    (tmp_path / "job_1/cgroup.procs").write_text("10\n")
    assert set(list_pids(Node(root=str(tmp_path)), "job_1")) == {10, 20, 30, 31}
    assert set(list_pids(Node(root=str(tmp_path)), "job_1", depth=0)) == {10}


def test_upper_levels_and_other_names_are_omitted(tmp_path: Path) -> None:
    write(tmp_path, "job_1/step_0/user/task_0", "30\n31\n")
    write(tmp_path, "job_1/step_0/slurm/task_0", "20\n")
    (tmp_path / "job_1/step_0/cgroup.procs").write_text("10\n")
    named = re.compile("step_0|user|task_0")
    assert list(list_pids(Node(root=str(tmp_path)), "job_1", below=3, named=named)) == [30, 31]


def test_any_number_of_groups_ends(tmp_path: Path) -> None:
    class Endless(Node):
        """A job with a group below each group, and others beside it."""

        def read(self, path: str, limit: int = 0) -> bytes:
            return b"7\n"

        def directories(self, path: str) -> list[str]:
            return ["a", "b"]

    assert len(list(list_pids(Endless(root=str(tmp_path)), "job_1", depth=100))) == 10_000
