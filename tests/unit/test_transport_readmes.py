"""The documents of transports: tables of keys and of errors agree with the code."""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING

import pytest

from ccagent.config.keys import describe_keys
from ccagent.transports.base import NetworkSinkSettings, SinkSettings
from ccagent.transports.directory import DirectorySettings
from ccagent.transports.http import HttpSettings
from ccagent.transports.kafka_connection import KafkaSettings
from ccagent.transports.mqtt import MqttSettings
from ccagent.transports.nats import NatsSettings
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRANSPORTS = ROOT / "transports"
OF_OTHERS = {
    "401 Unauthorized", "403 Forbidden", "404 Not Found", "413", "Request Entity Too Large",
    "Failed to resolve", "Connection refused", "certificate required",
}  # fmt: skip
"""Errors in the words of servers and libraries."""


def rows(path: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without the head."""
    section = path.read_text().split(f"\n## {heading}\n", 1)[1]
    table = section[section.index("|") :].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def written_keys(cells: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Return the default of each key, as a README has it."""
    return {key: default for keys, default in cells for key in re.findall(r"`(.*?)`", keys)}


def known_keys(*types: type[SinkSettings], without: type[SinkSettings]) -> dict[str, str]:
    """Return the default of each key that differs from the other type's."""
    common = {key.name: key for key in describe_keys(without)}
    return {
        key.name: "" if key.default is None else f"`{json.dumps(key.default, default=str)}`"
        for each in types
        for key in describe_keys(each)
        if common.get(key.name) is None or common[key.name].description != key.description
    }


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("http", HttpSettings),
        ("kafka", KafkaSettings),
        ("mqtt", MqttSettings),
        ("nats", NatsSettings),
    ],
)
def test_the_keys_of_a_transport_on_the_network(name: str, settings: type[SinkSettings]) -> None:
    table = rows(TRANSPORTS / f"{name}.md", "Keys")
    assert written_keys((keys, default) for keys, default, _ in table) == known_keys(
        settings, without=NetworkSinkSettings
    )


def test_the_keys_of_all_sinks() -> None:
    table = rows(TRANSPORTS / "README.md", "Keys")
    written = written_keys((keys, default) for _, keys, default, _ in table)
    common = {key.name for key in describe_keys(SinkSettings)}
    known = known_keys(DirectorySettings, NetworkSinkSettings, without=SinkSettings)
    assert set(written) == common | set(known)
    assert {key: written[key] for key in known} == known


def texts(*folders: Path) -> str:
    """Return all texts in the modules of folders, with `...` for the values in them."""
    found: list[str] = []
    for folder in folders:
        for path in folder.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append(
                        "".join(
                            str(part.value) if isinstance(part, ast.Constant) else "..."
                            for part in node.values
                        )
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("http", "When it does not work"),
        ("kafka", "When it does not work"),
        ("mqtt", "Errors"),
        ("nats", "When it does not work"),
    ],
)
def test_the_errors_in_a_readme_are_those_of_the_code(name: str, heading: str) -> None:
    known = texts(TRANSPORTS, ROOT / "src/ccagent/net", TRANSPORTS / name)
    errors = [
        error
        for cells in rows(TRANSPORTS / f"{name}.md", heading)
        for error in re.findall(r"`(.*?)`", cells[0])
    ]
    assert len(errors) > 8
    assert [
        error
        for error in errors
        if error not in OF_OTHERS
        and not all(part.strip(": ") in known for part in error.split("..."))
    ] == []
