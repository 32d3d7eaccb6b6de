"""Write the golden outputs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.machines.metrics import MACHINES, golden
from tests.machines.metrics.machine import lines


def main() -> None:
    """Write all of them."""
    for name, machine in MACHINES.items():
        with tempfile.TemporaryDirectory() as directory:
            text = "".join(f"{line}\n" for line in lines(machine, Path(directory)))
        golden(name).parent.mkdir(parents=True, exist_ok=True)
        golden(name).write_text(text, encoding="utf-8")


main()
