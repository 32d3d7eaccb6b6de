"""kill -9 at every step of a change: nothing is forgotten."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_no_value_is_forgotten_by_a_kill_at_any_step(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.control_crash", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    found = re.search(r"steps (\d+), forgotten (\d+)", done.stdout)
    assert found, done.stderr
    assert int(found[1]) > 60
    assert (done.returncode, int(found[2])) == (0, 0), done.stdout
