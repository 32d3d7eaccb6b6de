"""A test that is run again meets nothing of the attempt before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

CONFTEST = "from tests.conftest import pytest_runtest_setup\n"
FLAKY = """
import pytest

@pytest.fixture(scope="session")
def server():
    rows = []
    print("server starts")
    yield rows
    print("server ends")
    if "before" in rows:
        raise OSError("it was killed by the test")

@pytest.fixture(scope="module")
def table(server):
    return server

def test_before(table):
    table.append("before")

def test_that_needs_an_empty_table(table):
    assert table == []
    table.append("row")

def test_after(table):
    assert table == ["row"]
"""


def test_servers_are_started_anew_for_a_rerun(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qs", "-p", "no:cacheprovider", "-p", "no:xdist",
         "--rootdir", tmp_path, "--confcutdir", tmp_path, "--reruns", "1", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "3 passed, 1 rerun" in done.stdout, done.stdout
    assert done.stdout.count("server starts") == done.stdout.count("server ends") == 2
