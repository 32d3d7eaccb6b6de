"""Writing a machine's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recorded import Machine


def write_file(path: Path, content: bytes) -> None:
    """Write a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_machine(root: Path, machine: Machine) -> None:
    """Write machine.json."""
    encoded = msgspec.json.encode(machine)
    write_file(root / "machine.json", msgspec.json.format(encoded, indent=2) + b"\n")
