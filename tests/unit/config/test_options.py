"""Options of the command line, laid over a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.config.options import (
    Options,
    load_configuration,
    sinks_of,
    with_options,
    with_values,
)
from ccagent.controls.config_keys import apply_overrides
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def test_sinks_of_the_command_line_are_named_without_their_secrets() -> None:
    urls = [
        "stdout:", "dir:/var/log/x", "http://fox:hidden@h:80/write?u=fox&p=hidden", "http://h:80/write",
        "nats://a,b", "stdout:",
    ]  # fmt: skip
    assert sinks_of(urls) == {
        "--sink stdout:": "stdout:",
        "--sink dir:/var/log/x": "dir:/var/log/x",
        "--sink http://h:80/write": "http://fox:hidden@h:80/write?u=fox&p=hidden",
        "--sink http://h:80/write'": "http://h:80/write",
        "--sink nats://a,b": "nats://a,b",
    }


def test_urls_replace_all_sinks() -> None:
    table = {
        "sinks": {"a": {"url": "dir:/a"}},
        "agents": {"sample": {"sinks": ["a"], "rollup": True}},
    }
    assert with_options(table, "x.org", ("stdout:",), "line") == {
        "cluster": "x.org",
        "sinks": {"--sink stdout:": {"url": "stdout:", "format": "line"}},
        "agents": {"sample": {"rollup": True}},
    }


def test_values_are_toml_or_else_text() -> None:
    table = {"sinks": {"a": {"url": "u", "qos": 0}, "b": {}}}
    changed = with_values(table, "sinks", ["a"], ("qos=2", "user=fox", 'x="1=2"', "clean=true"))
    assert changed["sinks"]["a"] == {"url": "u", "qos": 2, "user": "fox", "x": "1=2", "clean": True}
    assert changed["sinks"]["b"] == {}


@pytest.mark.parametrize("text", ["qos", "=2", ""])
def test_a_value_needs_a_key(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected KEY=VALUE"):
        with_values({}, "sinks", ["a"], (text,))


@pytest.mark.parametrize("text", ["9" * 5_000, "[" * 100_000, "2020-13-40", "'"])
def test_what_toml_can_t_read_is_text(text: str) -> None:
    assert with_values({}, "sinks", ["a"], (f"x={text}",)) == {"sinks": {"a": {"x": text}}}


def test_overrides_of_the_control_service_count_for_the_daemon_alone(tmp_path: Path) -> None:
    overrides = tmp_path / "overrides.toml"
    overrides.write_text('agents-off = ["sysinfo"]\n[agents."sample"]\nevery = "10s"\n')
    file = tmp_path / "c.toml"
    file.write_text(
        '[agents.sample]\nevery = "30s"\n[agents.sysinfo]\nevery = "1d"\n'
        f'[controls]\noverrides = "{overrides}"\n'
    )
    options = Options(path=str(file))
    daemon = load_configuration(options, needs_file=True, adapt=apply_overrides)
    assert {name: str(agent.every) for name, agent in daemon.agents.items()} == {"sample": "10s"}
    assert set(load_configuration(options).agents) == {"sample", "sysinfo"}
