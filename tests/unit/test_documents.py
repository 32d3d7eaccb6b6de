"""What all documents say can be done as they say it: configurations, links, commands, names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from ccagent.commands.main import cli
from tests.support.documents import anchors, documents, links
from tests.support.paths import ROOT

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    "document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_links_lead_somewhere(document: Path) -> None:
    for file, anchor in links(document):
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


@pytest.mark.parametrize("name", ["README.md", "packaging/fleet.md", "src/ccagent/README.md"])
def test_commands_in_the_text_exist(name: str) -> None:
    found = re.findall(r"`ccagent ([^`]+)`", (ROOT / name).read_text())
    assert found
    for words in found:
        command: click.Command = cli
        context = click.Context(cli)
        for word in words.split():
            if not isinstance(command, click.Group) or word.startswith("-"):
                break
            inner = command.get_command(context, word)
            assert inner is not None, words
            command = inner
        options = {option for one in command.get_params(context) for option in one.opts}
        for option in re.findall(r"(?<!\S)--[\w-]+", words):
            assert option in options, words


@pytest.mark.parametrize("name", ["README.md", "ccagent/defaults/main.yml"])
def test_the_ansible_role_installs_packages_that_exist(name: str) -> None:
    text = (ROOT / "packaging/ansible" / name).read_text()
    (found,) = re.findall(r"^ *ccagent_packages: \[(.*?)\]", text, re.MULTILINE)
    packages = {path.name for path in (ROOT / "packaging/tree").iterdir()}
    assert set(found.split(", ")) <= packages


def test_the_readme_names_findings_and_drop_ins_that_there_are() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("| symptom |") :].split("\n\n", maxsplit=1)[0]
    rows = [row.split("|") for row in table.splitlines()[2:]]
    known = (ROOT / "src/ccagent/doctor/README.md").read_text()
    subjects = {subject for row in rows for subject in re.findall(r"`(.*?)`", row[2])}
    assert len(rows) == 9
    assert len(subjects) > 8
    assert [s for s in subjects if f"`{s}`" not in known and f"| {s} |" not in known] == []
    for drop_in in re.findall(r"`([\w-]+\.conf)`", table):
        assert list((ROOT / "packaging/tree").rglob(f"drop-ins/{drop_in}"))


@pytest.mark.slow
def test_nothing_installs_the_project_of_somebody_else() -> None:
    """The name `ccagent` on PyPI is not this project's, so pip must never be given it."""
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    assert name == "ccagent-collectors"
    own = "ccagent"
    folders = (
        "agents",
        "controls",
        "exporter",
        "views",
        "stores",
        "transports",
        "packaging",
        "src/ccagent",
        "benchmarks",
        "tests",
    )
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    texts = [p for p in files if p.suffix in {".md", ".py", ".toml", ".sh", ".yml", ".spec", ""}]
    foreign = re.compile(rf"pip3? install (?:-\S+ |--\S+ )*['\"]?{own}\b(?!-)|\b{own}\[\w")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [*texts, ROOT / "README.md", ROOT / "pyproject.toml"]
        for line in path.read_text(errors="replace").splitlines()
        if foreign.search(line)
    ]
    assert found == []


def test_every_service_limits_memory_and_tasks() -> None:
    units = sorted(ROOT.glob("packaging/**/*.service"))
    assert len(units) > 5
    for unit in units:
        keys = {line.partition("=")[0] for line in unit.read_text().splitlines()}
        assert {"MemoryMax", "TasksMax"} <= keys, unit.name
