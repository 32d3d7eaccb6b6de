"""Write the machines that are composed by hand: `python -m tests.machines.compose [DIRECTORY]`.

Each is a module of tests/machines/composed with a function `machine`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.machines.composed import aarch64, linuxproc, smt_slurm_v1, v2_containers
from tests.machines.files import write_file, write_machine
from tests.support.paths import MACHINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.machines.composed.base import Composed


def composed() -> list[Composed]:
    """All machines that are composed by hand."""
    return [
        aarch64.machine(),
        linuxproc.machine(),
        smt_slurm_v1.machine(),
        v2_containers.machine(),
    ]


def write(machine: Composed, directory: Path) -> None:
    """Write a machine below `directory`, in place of the one of that name."""
    root = directory / machine.name
    shutil.rmtree(root, ignore_errors=True)
    for path, text in machine.files.items():
        write_file(root / path, text.encode())
    for process in machine.processes:
        files = process.files(machine.machine.page_size, old=machine.old)
        for name, content in files.items():
            write_file(root / "proc" / str(process.pid) / name, content)
    write_machine(root, machine.machine)


def main(arguments: Sequence[str]) -> None:
    """Write all of them below the directory given, or where they belong."""
    directory = Path(arguments[0]) if arguments else MACHINES
    for machine in composed():
        write(machine, directory)


if __name__ == "__main__":
    main(sys.argv[1:])
