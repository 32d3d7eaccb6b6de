"""What all documents say can be done as they say it: configurations, links, commands, names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from ccagent.cli import cli
from ccagent.config import check
from tests.certificates import Authority
from tests.documents import ROOT, anchors, configurations, documents, links

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDED = {
    "agents/log/README.md": '[sinks.cockpit]\nurl = "nats://127.0.0.1"\nformat = "line"\n',
}
"""What a configuration of a document names and leaves to the reader."""

OTHERS = {"project"}
"""Tables that are no configuration of ccagent's: those of a package's pyproject.toml."""

def all_configurations() -> Iterator[tuple[str, str]]:
    for path in documents():
        for text in configurations(path):
            yield path.relative_to(ROOT).as_posix(), text


def stands_for(file: str, authority: Authority) -> str:
    """What a file has that a configuration names: CA, certificate and key, or any secret."""
    if file == "ca.pem":
        return Path(authority.certificate).read_text()
    if file.endswith((".pem", ".key")):
        certificate, key = authority.certify("node")
        return Path(certificate if file.endswith(".pem") else key).read_text()
    return "secret\n"


def test_every_configuration_of_a_document_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the secrets and certificates that they name are other files."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "authority").mkdir()
    authority = Authority(tmp_path / "authority")
    checked: set[str] = set()
    for name, written in all_configurations():
        text = written.replace("/etc/ccagent", str(tmp_path))
        for file in re.findall(rf'-file = "(?:{tmp_path}/|credential:)([\w.-]+)"', text):
            (tmp_path / file).write_text(stands_for(file, authority))
            (tmp_path / file).chmod(0o600)
        table = tomllib.loads(text)
        if not OTHERS & set(table):
            check(tomllib.loads(text + ADDED.get(name, "")), name)
            checked.add(name)
    assert checked >= {
        "README.md", "src/ccagent/README.md", "packaging/fleet.md",
        *(f"agents/{agent}/README.md" for agent in ("log", "lustre", "metrics", "slurm", "sysinfo")),
        *(f"transports/{name}/README.md" for name in ("http", "kafka", "mqtt", "nats")),
    }  # fmt: skip
    assert set(ADDED) <= checked


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    for file, anchor in links(document):
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


@pytest.mark.parametrize("name", ["README.md", "packaging/fleet.md", "src/ccagent/README.md"])
def test_commands_in_the_text_exist(name: str) -> None:
    found = re.findall(r"`ccagent ([^`]+)`", (ROOT / name).read_text())
    assert found
    for words in found:
        command: click.Command | None = cli
        context = click.Context(cli)
        for word in words.split():
            if not isinstance(command, click.Group) or word.startswith("-"):
                break
            command = command.get_command(context, word)
            assert command is not None, words
        options = {name for p in command.get_params(context) for name in p.opts} if command else {}
        for option in re.findall(r"(?<!\S)--[\w-]+", words):
            assert option in options, words


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
