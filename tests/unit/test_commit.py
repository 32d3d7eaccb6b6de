"""Which commit a working tree has checked out, in every way git writes it down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.commit import commit_of

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef" * 2 + "01234567"


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("packed_refs", "packed-refs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_branch(tmp_path: Path) -> None:
    write(tmp_path / ".git", HEAD="ref: refs/heads/a/b\n", refs__heads__a__b=f"{COMMIT}\n")
    assert commit_of(str(tmp_path)) == COMMIT[:12]


def test_a_branch_that_is_packed(tmp_path: Path) -> None:
    other = "f" * 40
    packed = f"# pack-refs\n{other} refs/heads/x\n{COMMIT} refs/heads/main\n^{other}\n"
    write(tmp_path / ".git", HEAD="ref: refs/heads/main\n", packed_refs=packed)
    assert commit_of(str(tmp_path)) == COMMIT[:12]


def test_no_branch(tmp_path: Path) -> None:
    write(tmp_path / ".git", HEAD=f"{COMMIT}\n")
    assert commit_of(str(tmp_path)) == COMMIT[:12]


@pytest.mark.parametrize("place", ["../main/.git/worktrees/w", "{}/main/.git/worktrees/w"])
def test_a_worktree_of_its_own(tmp_path: Path, place: str) -> None:
    write(tmp_path / "main/.git", HEAD="ref: refs/heads/main\n", refs__heads__w=f"{COMMIT}\n")
    write(tmp_path / "main/.git/worktrees/w", HEAD="ref: refs/heads/w\n", commondir="../..\n")
    write(tmp_path / "w", **{".git": f"gitdir: {place.format(tmp_path)}\n"})
    assert commit_of(str(tmp_path / "w")) == COMMIT[:12]


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone\n", "ref: \n", "x" * 40, "ref: /\n"])
def test_where_there_is_none(tmp_path: Path, head: str) -> None:
    assert not commit_of(str(tmp_path))
    write(tmp_path / ".git", HEAD=head)
    assert not commit_of(str(tmp_path))
    (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\n")
    assert not commit_of(str(tmp_path))
