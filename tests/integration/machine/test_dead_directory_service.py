"""A name service that never answers, as the C library asks it: samples and scrapes go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = 54_321

SERVICE = r"""
#include <unistd.h>
int _nss_hang_getpwuid_r() { for (;;) pause(); }
int _nss_hang_getpwnam_r() { for (;;) pause(); }
"""

RUN = 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"'


@pytest.fixture
def prefix(tmp_path: Path) -> list[str]:
    """What makes a command ask the service after the local files."""
    if os.geteuid() != 0:
        pytest.skip("another configuration of the C library needs root")
    library = tmp_path / "libnss_hang.so.2"
    command = ["clang", "-w", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=SERVICE.encode(), check=True)
    (tmp_path / "nsswitch.conf").write_text("passwd: files hang\n")
    environment = f"LD_LIBRARY_PATH={tmp_path}"
    return [
        "env", environment, "unshare", "--mount", "sh", "-c", RUN, str(tmp_path / "nsswitch.conf"),
    ]  # fmt: skip


@pytest.fixture
def stranger() -> Iterator[None]:
    """A process of a user whom only the service could name."""
    process = subprocess.Popen(["sleep", "1000"], user=USER, group=USER, extra_groups=[])
    yield
    process.kill()
    process.wait()


def run(prefix: list[str], *arguments: str) -> str:
    command = [*prefix, sys.executable, "-m", "ccagent", *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=60, text=True).stdout


def test_the_service_hangs(prefix: list[str]) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([*prefix, "id", "-un", str(USER)], check=False, timeout=2)


def test_a_sample_has_the_number_of_the_user(prefix: list[str], stranger: None) -> None:
    found = json.loads(run(prefix, "sample", "--once", "--no-config", "--format", "sonar"))
    users = {job["user"] for job in found["data"]["attributes"]["jobs"]}
    assert {"root", f"_user_{USER}"} <= users


def test_a_table_is_printed(prefix: list[str], stranger: None) -> None:
    text = run(prefix, "sample", "--once", "--no-config", "--format", "table")
    assert "(system)" in text
