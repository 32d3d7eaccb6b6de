"""The memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ccagent.machine.node import Node
from ccagent.machine.own_memory import find_permitted_memory, read_resident

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "files", "permitted"),
    [
        ("0::/a/b\n", {"a/b/memory.max": 64 * MB, "a/memory.max": 80 * MB}, 64 * MB),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 80 * MB}, 80 * MB),
        ("0::/\n", {"memory.max": 32 * MB}, 32 * MB),  # in a container with its own view
        ("9:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": 48 * MB}, 48 * MB),
        ("9:memory:/a\n", {"memory/a/memory.limit_in_bytes": 9223372036854771712}, MACHINE),
        ("0::/gone\n", {}, MACHINE),
        ("0::/a\n", {"a/memory.max": "what"}, MACHINE),
        ("no such line\n", {}, MACHINE),
        (None, {}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(
    groups: str | None, files: dict[str, int | str], permitted: int, tmp_path: Path
) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    assert find_permitted_memory(Node(root=str(tmp_path))) == permitted


def test_a_process_knows_what_it_uses() -> None:
    assert 5 * MB < read_resident() < MACHINE
