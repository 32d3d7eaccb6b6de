"""The exporter of a daemon: exchanged by a reload, and no failure of it reaches the agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.config.configuration import Configuration, check
from ccagent.daemon.exporter import ExporterSlot
from ccagent.errors import ConfigurationError
from ccagent.exporter.service import ExporterService
from ccagent.machine.node import Node


def configured(**exporter: Any) -> Configuration:
    table: dict[str, Any] = {"hostname": "n"}
    return check(table | {"exporter": {"listen": [], **exporter}} if exporter else table, "test")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with exporters, instead of opening ports."""
    done: list[str] = []

    def start(_: ExporterService, _node: Node, before: ExporterService | None = None) -> None:
        done.append("start" if before is None else "take over")

    def retire(_: ExporterService) -> None:
        done.append("retire")

    def close(_: ExporterService) -> None:
        done.append("close")

    monkeypatch.setattr(ExporterService, "start", start)
    monkeypatch.setattr(ExporterService, "retire", retire)
    monkeypatch.setattr(ExporterService, "close", close)
    return done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(root=str(tmp_path), hostname="n", cluster="c")


def apply(slot: ExporterSlot, configuration: Configuration, node: Node) -> None:
    slot.apply(slot.prepare(configuration, node), configuration, node)


def test_one_that_is_unchanged_goes_on(calls: list[str], node: Node) -> None:
    slot = ExporterSlot()
    for _ in range(3):
        apply(slot, configured(path="/a"), node)
    assert calls == ["start"]


def test_a_new_one_takes_over_and_a_removed_one_finishes(calls: list[str], node: Node) -> None:
    slot = ExporterSlot()
    for configuration in (configured(path="/a"), configured(path="/b"), configured()):
        apply(slot, configuration, node)
    slot.close()
    assert calls == ["start", "take over", "retire"]


def test_what_cant_be_read_changes_nothing(calls: list[str], node: Node) -> None:
    slot = ExporterSlot()
    apply(slot, configured(path="/a"), node)
    with pytest.raises(ConfigurationError, match="users-file"):
        slot.prepare(configured(**{"users-file": "/x"}), node)
    assert calls == ["start"]


def test_an_unforeseen_error_is_logged(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no thread")

    monkeypatch.setattr(ExporterService, "start", fail)
    monkeypatch.setattr(ExporterService, "close", fail)
    slot = ExporterSlot()
    apply(slot, configured(path="/a"), node)
    slot.close()
    assert caplog.text.count("unforeseen error") == 2
