"""Packages of a release and of the commit after it, from copies of this working tree with a tag."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

NAMES = ("ccagent-core", "ccagent-node", "ccagent-slurm", "ccagent-lustre")
STORES = ("ccagent-store", "ccagent-web")
DESCRIPTION = "name of the cluster in every record"
_LEFT_OUT = (".git", ".venv", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")


class Built(NamedTuple):
    """The packages of a build, by name."""

    rpm: dict[str, Path]
    deb: dict[str, Path]


def git(source: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-C", source, "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments],
        check=True,
    )


def tagged_tree(source: Path) -> Path:
    """Copy this working tree into a repository of its own, whose only commit is v1.0.0."""
    is_left_out = shutil.ignore_patterns(*_LEFT_OUT)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return is_left_out(folder, names) | ({"build"} if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, source, symlinks=True, ignore=left_out)
    git(source, "init", "--quiet")
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", "a release")
    git(source, "tag", "v1.0.0")
    return source


def commit_change(source: Path) -> None:
    """Commit another description of a key."""
    settings = source / "src/ccagent/config/configuration.py"
    text = settings.read_text()
    assert DESCRIPTION in text
    settings.write_text(text.replace(DESCRIPTION, "the cluster's name in every record"))
    git(source, "commit", "--quiet", "--all", "--message", "a change")


def build(source: Path, directory: Path, *before: str, options: tuple[str, ...] = ()) -> Built:
    subprocess.run(
        [*before, source / "packaging/build", "all", "--output", directory,
         "--wheels", ROOT / "build/wheels", "--python", sys.executable, "--compression", "gzip",
         *options],
        check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    return packages_in(directory)


def packages_in(directory: Path) -> Built:
    """Find the packages that were built there, but for the source's."""

    def found(ending: str) -> dict[str, Path]:
        paths = directory.glob(f"ccagent-*{ending}")
        return {match[0]: p for p in paths if (match := re.match("ccagent-[a-z]+", p.name))}

    return Built(found("[!c].rpm"), found(".deb"))
