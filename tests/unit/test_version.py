"""The version of the project, which receivers take for that of Sonar."""

from __future__ import annotations

import tomllib

from ccagent import __version__
from tests.support.paths import ROOT

PROJECT = ROOT / "pyproject.toml"


def test_receivers_take_meta_version_for_sonars_so_it_stays_above_0_6() -> None:
    """sonalyze reads `meta.version` as Sonar's version.

    Up to 0.6 it takes CPU use from `cpu_avg`, from 0.7 on from differences of `cpu_time`. ccagent's
    records are made for the second: with a lower version every CPU figure of `jobs`, `profile` and
    `load` is wrong, and nothing says so.
    """
    major, minor = map(int, _version_of_package().split(".")[:2])
    assert (major, minor) >= (0, 7)


def test_the_package_has_the_version_of_the_records() -> None:
    assert _version_of_package() == __version__


def _version_of_package() -> str:
    version: str = tomllib.loads(PROJECT.read_text())["project"]["version"]
    return version
