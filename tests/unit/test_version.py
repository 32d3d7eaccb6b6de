"""The version: of a source tree with its tags and commits, and the one that receivers see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ccagent import RELEASE
from tests.support.paths import ROOT

PROGRAM = ROOT / "packaging/version.py"
PACKAGED = ("packaging/archived", "src/ccagent/__init__.py", "src/ccagent/commit.py")
COMMIT = r"g[0-9a-f]{12}"


def test_receivers_take_meta_version_for_sonars_so_it_stays_above_0_6() -> None:
    """sonalyze reads `meta.version` as Sonar's version.

    Up to 0.6 it takes CPU use from `cpu_avg`, from 0.7 on from differences of `cpu_time`. ccagent's
    records are made for the second: with a lower version every CPU figure of `jobs`, `profile` and
    `load` is wrong, and nothing says so.
    """
    major, minor, _ = map(int, RELEASE.split("."))
    assert (major, minor) >= (0, 7)


def git(source: Path, *arguments: str) -> str:
    command = ["git", "-C", str(source), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def version(source: Path, *options: str, **variables: str) -> str:
    command = [sys.executable, str(PROGRAM), *options, str(source)]
    environment = variables or None
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with one commit of the files that the version comes from."""
    source = tmp_path / "source"
    for name in PACKAGED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    git(source, "init", "--quiet")
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message", "one")
    return source


def commit(source: Path) -> str:
    git(source, "commit", "--quiet", "--allow-empty", "--message", "more")
    return f"g{git(source, 'rev-parse', '--short=12', 'HEAD').strip()}"


def test_without_a_tag_commits_are_counted_towards_the_release(source: Path) -> None:
    latest = commit(source)
    assert version(source) == f"{RELEASE}.dev2+{latest}"
    assert version(source, "--package") == f"{RELEASE}~dev2+{latest}"


def test_a_tag_is_a_release_and_commits_after_it_are_between_two(source: Path) -> None:
    git(source, "tag", "v1.0.0")
    assert version(source) == version(source, "--package") == "1.0.0"
    assert version(source, "--package") == "1.0.0"
    latest = commit(source)
    git(source, "tag", "v1.1.0-rc1")  # no release
    assert version(source) == f"1.0.1.dev1+{latest}"
    git(source, "tag", "v1.2.3")
    assert version(source) == "1.2.3"


def test_no_other_content_has_the_version_of_a_tag(source: Path) -> None:
    git(source, "tag", "v1.0.0")
    (source / "new").write_text("a")
    one = version(source)
    (source / "new").write_text("b")
    other = version(source)
    (source / "new").unlink()
    (source / ".gitattributes").write_text("")
    assert len({one, other, version(source), "1.0.0"}) == 4
    assert one.startswith("1.0.1.dev0+g")
    git(source, "checkout", "--quiet", ".")
    assert version(source) == "1.0.0"


def test_an_archive_of_git_knows_its_version(source: Path, tmp_path: Path) -> None:
    git(source, "tag", "v1.0.0")
    latest = commit(source)
    unpacked = tmp_path / "unpacked"
    git(source, "archive", f"--output={tmp_path}/archive.tar", "HEAD")
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "archive.tar", "-C", unpacked], check=True)
    assert version(unpacked) == f"1.0.1.dev1+{latest}"


def test_a_tree_without_history_has_the_next_release(source: Path, tmp_path: Path) -> None:
    git(source, "tag", "v1.0.0")
    latest = commit(source)
    expected = f"{RELEASE}.dev0+{latest}"
    shallow = tmp_path / "shallow"
    git(source, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{source}", str(shallow))
    assert version(shallow) == expected
    assert version(source, PATH="/nonexistent") == expected
    (source / ".git").rename(tmp_path / "moved")
    assert version(source) == f"{RELEASE}.dev0"


def test_a_source_distribution_keeps_the_version_of_its_build(source: Path) -> None:
    module = source / "src/ccagent/__init__.py"
    module.write_text('__version__ = "1.2.4.dev7+gabc"\n')
    assert version(source) == "1.2.4.dev7+gabc"
