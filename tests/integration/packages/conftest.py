"""Packages of a release and of the commit after it, built once for all tests of packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.built_packages import Built, build, commit_change, tagged_tree
from tests.support.clean_root import CleanRoot


@pytest.fixture(scope="package")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tagged_tree(tmp_path_factory.mktemp("source") / "tagged")


@pytest.fixture(scope="package")
def first(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The release 1.0.0. Wheels that are missing are downloaded here."""
    return build(source, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="package")
def second(first: Built, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A commit later, with another description of a key, built without a network."""
    commit_change(source)
    # The store is large, and nothing of it differs.
    options = ("--without", "store")
    return build(source, tmp_path_factory.mktemp("second"), "unshare", "--net", options=options)


@pytest.fixture
def root(tmp_path: Path) -> CleanRoot:
    return CleanRoot(tmp_path)
