"""A signed repository of the packages, used by apt and dnf in roots of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.integration.packages.test_upgrades import add_base_deb, dnf, make_base_rpm
from tests.support.built_packages import Built
from tests.support.clean_root import CleanRoot
from tests.support.documents import blocks
from tests.support.paths import ROOT

KEY = "packages@example.org"
HOST = "https://packages.example.org/ccagent"
"""The address of the repository in packaging/README.md."""


@pytest.fixture(scope="module")
def gpg() -> Iterator[dict[str, str]]:
    """An environment with a keyring, which has a key. The path of gpg's socket must be short."""
    with TemporaryDirectory() as directory:
        environment = os.environ | {"GNUPGHOME": directory}
        subprocess.run(
            ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "",
             "--quick-gen-key", KEY, "ed25519", "sign", "never"],
            env=environment, check=True,
        )  # fmt: skip
        yield environment
        subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=True)


def publish(
    directory: Path, packages: Path, gpg: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [ROOT / "packaging/repository", directory, "--key", KEY]
    command += ["--packages", packages]
    return subprocess.run(command, env=gpg, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(first: Built, gpg: dict[str, str], root: CleanRoot) -> Path:
    directory = root.path / "repository"
    done = publish(directory, first.deb["ccagent-core"].parent, gpg)
    assert done.returncode == 0, done.stderr
    return directory


def sources(name: str) -> str:
    """Return a node's file of sources, as the document has it, for the repository at its top."""
    (block,) = [each for each in blocks(ROOT / "packaging/README.md") if each.name == name]
    return block.text.replace(HOST, "file:///repository")


def test_apt_installs_what_the_key_has_signed(root: CleanRoot, repository: Path) -> None:
    root.add_apt()
    add_base_deb(root)
    keyrings = root.path / "etc/apt/keyrings"
    keyrings.mkdir()
    shutil.copy(repository / "ccagent.asc", keyrings)
    (root.path / "etc/apt/sources.list").write_text(sources("ccagent.list"))
    root.run("apt-get", "update")
    root.run("apt-get", "install", "--yes", "ccagent-node", DEBIAN_FRONTEND="noninteractive")
    assert root.run("ccagent", "--version") == "ccagent, version 1.0.0\n"
    lists = repository / "apt/Packages"
    lists.write_text(lists.read_text().replace("Version: 1.0.0-1", "Version: 1.0.9-1"))
    (repository / "apt/Packages.gz").unlink()
    signed = repository / "apt/InRelease"
    signed.write_text(signed.read_text().replace("Origin: ccagent", "Origin: another"))
    told = root.run("apt-get", "update", "-o", "APT::Update::Error-Mode=any", expect=100)
    assert "BADSIG" in told or "invalid" in told, told


def test_dnf_installs_what_the_key_has_signed(
    root: CleanRoot, repository: Path, tmp_path: Path
) -> None:
    """dnf is this machine's, and looks for files of the repository here."""
    folder = tmp_path / "repos"
    folder.mkdir()
    text = sources("ccagent.repo").replace("/repository", str(repository))
    (folder / "ccagent.repo").write_text(text)
    options = (f"--setopt=reposdir={folder}", "install", make_base_rpm(root))
    dnf(root, *options, "ccagent-node")
    assert root.run("ccagent", "--version") == "ccagent, version 1.0.0\n"


def test_a_repository_refuses_another_content_of_a_version(
    first: Built, repository: Path, gpg: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    known = first.deb["ccagent-slurm"]
    (other / known.name).write_bytes(b"another content")
    done = publish(repository, other, gpg)
    assert done.returncode == 1
    assert f"{known.name} exists, with other content" in done.stderr
    assert (repository / "apt" / known.name).read_bytes() == known.read_bytes()


def test_a_key_that_is_missing_is_said_before_anything_is_written(
    gpg: dict[str, str], tmp_path: Path
) -> None:
    command: list[str | Path] = [ROOT / "packaging/repository", tmp_path / "new"]
    command += ["--key", "nobody@example.org"]
    done = subprocess.run(command, env=gpg, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nobody@example.org" in done.stderr
    assert not (tmp_path / "new").exists()
