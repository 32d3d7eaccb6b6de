"""The commands of the exporter: wrong options end with a sentence."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.running import CCAGENT


@pytest.mark.parametrize("names", [",", "none", "ccagent,none"])
def test_names_that_are_none(names: str) -> None:
    done = subprocess.run(
        [*CCAGENT, "--no-config", "metrics", "--once", "--format", "prometheus", "--names", names],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("ccagent: --names: ")
    assert len(done.stderr.splitlines()) == 1
