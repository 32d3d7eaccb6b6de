"""The configuration of a service: its own table, and the names of the whole file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.config.service_setup import load_service
from ccagent.config.settings import Settings


@pytest.mark.parametrize(
    ("line", "name"),
    [("", "c1-1"), ("hostname-only = false\n", "c1-1.fox.example"), ('hostname = "n7"\n', "n7")],
)
def test_a_service_has_the_host_name_of_the_agents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, name: str
) -> None:
    monkeypatch.setattr("ccagent.machine.node.read_host_name", lambda: "c1-1.fox.example")
    path = tmp_path / "ccagent.toml"
    path.write_text(f"{line}[service]\n")
    setup = load_service(str(path), "service", Settings, lambda _: None)
    assert setup.make_node().hostname == name
