"""The README: its tables agree with the code."""

from __future__ import annotations

import re

from ccagent.config.keys import describe_keys
from ccagent.exporter.settings import NAME_SETS, ExporterSettings, list_collectors
from tests.support.paths import ROOT

TEXT = (ROOT / "exporter/README.md").read_text()


def section(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_every_key_is_explained() -> None:
    named = set(re.findall(r"`([a-z-]+)`", section("Keys")))
    assert {key.name for key in describe_keys(ExporterSettings) if not key.within} <= named


def test_every_set_of_names_and_every_collector_of_ours_is_named() -> None:
    named = set(re.findall(r"`([a-z_0-9-]+)`", section("Names")))
    assert set(NAME_SETS) <= named
    for name_set in NAME_SETS:
        if name_set != "node_exporter":
            assert set(list_collectors(name_set)) <= named
