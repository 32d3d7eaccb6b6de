"""What the store's documents say is so: keys, configuration, tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from ccagent.stores.metrics.checking import read_settings
from ccagent.stores.metrics.settings import (
    ArchiveSettings,
    CheckpointSettings,
    StoredMetricSettings,
    StoreLimitSettings,
    StoreNatsSettings,
    StoreSettings,
    StoreTlsSettings,
    SubscriptionSettings,
    UsageSettings,
)
from tests.support.documents import blocks
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "stores/metrics/README.md"


@pytest.mark.parametrize(
    "settings", [StoreSettings, StoreTlsSettings, CheckpointSettings, ArchiveSettings,
                 SubscriptionSettings, StoreNatsSettings, StoreLimitSettings, StoredMetricSettings],
)  # fmt: skip
def test_the_readme_names_every_key(settings: type[msgspec.Struct]) -> None:
    table = README.read_text()
    for field in msgspec.structs.fields(settings):
        assert re.search(rf"[`.]{field.encode_name}[`.:]", table), field.encode_name


def test_the_readme_of_usage_names_every_key() -> None:
    table = (ROOT / "stores/metrics/usage/README.md").read_text()
    for field in msgspec.structs.fields(UsageSettings):
        assert f"`{field.encode_name}`" in table, field.encode_name


def test_the_configuration_of_the_readme_can_be_used(tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks(README) if block.kind == "conf"]
    (tmp_path / "store.toml").write_text(text)
    settings = read_settings(str(tmp_path / "store.toml"))
    assert settings.nats.subscriptions[0].stream == "metrics"


def test_every_test_of_the_conformance_table_exists() -> None:
    names = re.findall(r"`(\w+)::(\w+)`", (ROOT / "stores/metrics/CONFORMANCE.md").read_text())
    assert len(names) > 40
    for file, name in names:
        unit = ROOT / f"tests/unit/stores/metrics/{file}.py"
        path = unit if unit.exists() else ROOT / f"tests/integration/store/test_store_{file}.py"
        assert f"def {name}(" in path.read_text(), f"{file}::{name}"
