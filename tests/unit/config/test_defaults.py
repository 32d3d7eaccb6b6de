"""Descriptions of all keys, and the configuration file that is made of them."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from msgspec import Meta

from ccagent.agents.base import agent_class
from ccagent.config.configuration import GlobalSettings, OutboxSettings, check, load
from ccagent.config.defaults import defaults, explain_key, template, toml
from ccagent.config.duration import Cadence, Duration
from ccagent.config.keys import Key, describe_keys
from ccagent.config.settings import Settings
from ccagent.controls.settings import ControlsSettings
from ccagent.machines.settings import MigfraSettings
from ccagent.registry import AGENTS, TRANSPORTS
from ccagent.transports.base import transport_class

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL: dict[str, type[Settings]] = {
    "": GlobalSettings,
    "outbox": OutboxSettings,
    "controls": ControlsSettings,
    "migfra": MigfraSettings,
    **{f"agents.{name}": agent_class(name).Settings for name in AGENTS},
    **{f"sinks.{name}": transport_class(f"{name}:").Settings for name in TRANSPORTS},
}
TEMPLATE = template(AGENTS, TRANSPORTS)


class Inner(Settings, frozen=True, kw_only=True):
    """A table within."""

    file: Annotated[str, Meta(description="where it is")]


class Example(Settings, frozen=True, kw_only=True):
    """Keys of every kind there is."""

    text: Annotated[str, Meta(description="words")] = "a\nb"
    count: Annotated[int, Meta(ge=3, description="how many")] = 4
    scale: Annotated[float, Meta(description="times")] = 1.5
    flag: Annotated[bool, Meta(description="or not")] = True
    every: Annotated[Cadence | None, Meta(description="how often")] = None
    limit: Annotated[Duration, Meta(description="how long")] = Duration("10s")
    form: Annotated[Literal["b", "a"], Meta(description="which")] = "a"
    names: Annotated[tuple[str, ...], Meta(description="who")] = ("x",)
    numbers: Annotated[tuple[int, ...], Meta(description="ids")] = (0,)
    kinds: Annotated[tuple[Literal["x", "y"], ...], Meta(description="sorts")] = ()
    tags: Annotated[dict[str, str], Meta(description="more")] = {}
    one: Annotated[Inner, Meta(description="a table")] = Inner(file="/")
    named: Annotated[dict[str, Inner], Meta(description="tables")] = {}
    several: Annotated[list[Inner], Meta(description="a list")] = []


def everything(settings: type[Settings], table: str) -> Iterator[tuple[str, Key]]:
    for key in describe_keys(settings):
        yield table, key
        if key.within:
            yield from everything(key.settings, f"{table}.{key.name}")


@pytest.mark.parametrize("table", ALL)
def test_every_key_is_described(table: str) -> None:
    found = list(everything(ALL[table], table))
    assert found
    assert [(where, key.name) for where, key in found if not key.description] == []


def test_keys_of_all_kinds() -> None:
    assert [(key.name, key.kind, key.within, key.default) for key in describe_keys(Example)] == [
        ("text", "a string", "", "a\nb"),
        ("count", "a whole number, at least 3", "", 4),
        ("scale", "a number", "", 1.5),
        ("flag", "true or false", "", True),
        ("every", 'a cadence such as "30s", "5m" or "1d"', "", None),
        ("limit", "a duration", "", Duration("10s")),
        ("form", 'one of "a", "b"', "", "a"),
        ("names", "a list of strings", "", ("x",)),
        ("numbers", "a list of whole numbers", "", (0,)),
        ("kinds", 'a list of "x", "y"', "", ()),
        ("tags", "a table of strings", "", {}),
        ("one", "", "table", Inner(file="/")),
        ("named", "", "named", {}),
        ("several", "", "list", []),
    ]
    assert [key.settings for key in describe_keys(Example) if key.within] == [Inner] * 3
    (file,) = describe_keys(Inner)
    assert explain_key(file) == "where it is; a string, no default"


@pytest.mark.parametrize(
    "value",
    ["", 'a"b\\c', "a\nb\t\x00\x7f\u2028", "größe", True, 3, -1.5, ["a", [1]], {"a b": "c"}],
)
def test_values_are_read_as_they_were_written(value: object) -> None:
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}


def test_the_template_changes_nothing() -> None:
    assert tomllib.loads(TEMPLATE) == {}
    assert check(tomllib.loads(TEMPLATE), "template") == check({}, "template")


def uncommented(text: str) -> str:
    return re.sub(r"(?m)^#(?=[\w\[])", "", text)


def test_the_template_holds_all_keys_with_their_defaults() -> None:
    document = tomllib.loads(uncommented(TEMPLATE))
    expected = tomllib.loads(defaults())
    for place, required in [
        *((("agents", name), "every") for name in AGENTS if name != "fast"),  # which has a default
        *((("sinks", name), "url") for name in expected["sinks"]),
    ]:
        table = document
        for key in place:
            table = table[key]
        assert table.pop(required) == "..."
    assert expected["agents"]["sysinfo"].pop("software") == []
    (software,) = document["agents"]["sysinfo"].pop("software")
    assert set(software) == {"key", "name", "command", "file"}
    assert set(document["controls"].pop("allow")["NAME"]) >= {"values", "min", "max", "from"}
    of_metrics = document["agents"]["metrics"]
    assert of_metrics.pop("metrics")["NAME"]["scale"] == 1.0
    for name, key in (("commands", "command"), ("files", "path"), ("expressions", "expression")):
        assert key in of_metrics.pop(name)["NAME"]
    assert document == expected


def test_a_table_of_the_template_is_used_when_it_is_uncommented(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    text = TEMPLATE.replace("#[agents.sample]", "[agents.sample]").replace(
        "#rollup = false", "rollup = true"
    )
    file.write_text(text)
    configuration = load(str(file))
    assert list(configuration.agents) == ["sample"]
    assert getattr(configuration.agents["sample"], "rollup", None) is True


def test_lines_of_the_template_fit_a_terminal() -> None:
    too_long = [line for line in TEMPLATE.splitlines() if len(line) > 100]
    assert [line for line in too_long if line.startswith("# ")] == []
