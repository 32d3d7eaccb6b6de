"""Root without one capability: the log names it, and not what root has anyway."""

from __future__ import annotations

import subprocess

from tests.support.running import CCAGENT


def test_io_of_others_without_cap_sys_ptrace() -> None:
    other = subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"])
    try:
        done = subprocess.run(
            ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace",
             *CCAGENT, "sample", "--once", "--no-config", "--set", "source=procfs"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        other.kill()
        other.wait()
    assert "this process of root lacks CAP_SYS_PTRACE\n" in done.stderr, done.stderr
    assert "DAC_READ_SEARCH" not in done.stderr
