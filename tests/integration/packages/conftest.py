"""Packages of a release and of the commit after it, built once for all tests of packages."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from tests.support.built_packages import Built, build, commit_change, packages_in, tagged_tree
from tests.support.clean_root import CleanRoot


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a directory that one worker fills for all: a function of its name, and what fills."""
    top = tmp_path_factory.getbasetemp()
    top = top.parent if "PYTEST_XDIST_WORKER" in os.environ else top

    def directory(name: str, fill: Callable[[Path], object]) -> Path:
        with (top / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (top / name).exists():
                shutil.rmtree(top / f"{name}.new", ignore_errors=True)  # of one that failed
                fill(top / f"{name}.new")
                (top / f"{name}.new").rename(top / name)
        return top / name

    return directory


@pytest.fixture(scope="package")
def source(shared: Callable[..., Path]) -> Path:
    return shared("source", tagged_tree)


@pytest.fixture(scope="package")
def first(source: Path, shared: Callable[..., Path]) -> Built:
    """The release 1.0.0. Wheels that are missing are downloaded here."""
    return packages_in(shared("first", partial(build, source)))


@pytest.fixture(scope="package")
def second(first: Built, source: Path, shared: Callable[..., Path]) -> Built:
    """A commit later, with another description of a key, built without a network."""

    def fill(directory: Path) -> None:
        changed = directory.with_name("changed")
        shutil.copytree(source, changed, symlinks=True, dirs_exist_ok=True)
        commit_change(changed)
        # The store is large, and nothing of it differs.
        build(changed, directory, "unshare", "--net", options=("--without", "store"))

    return packages_in(shared("second", fill))


@pytest.fixture
def root(tmp_path: Path) -> CleanRoot:
    return CleanRoot(tmp_path)


@pytest.fixture(scope="package")
def like(first: Built, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CleanRoot]:
    """Return the root in which packages were installed once, one after the other.

    Others are made like it, also the roots with one package more.
    """

    @cache
    def made(install: Callable[..., object], *names: str) -> CleanRoot:
        *before, last = names
        root = CleanRoot(
            tmp_path_factory.mktemp("installed"), made(install, *before) if before else None
        )
        install(root, first, (last,))
        return root

    return made


@pytest.fixture
def installed(like: Callable[..., CleanRoot], tmp_path: Path) -> Callable[..., CleanRoot]:
    """Return a root with packages of the release: a function of how to install, and their names."""

    def made(install: Callable[..., object], *names: str) -> CleanRoot:
        return CleanRoot(tmp_path, like(install, *names))

    return made
