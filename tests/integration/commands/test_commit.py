"""The commit of a working tree is the one that git names."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from ccagent.commit import commit_of

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_what_git_says(tmp_path: Path) -> None:
    git = ("git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e")
    for arguments in ("init -q", "commit -q --allow-empty -m x"):
        subprocess.run([*git, *arguments.split()], check=True)
    for arguments in ("pack-refs --all", "checkout -q --detach"):
        said = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        assert commit_of(str(tmp_path)) == said.stdout.decode()[:12]
        subprocess.run([*git, *arguments.split()], check=True)
    assert commit_of(str(tmp_path))
