"""Every configuration of a document passes the check, with certificates made by openssl."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.config.configuration import check
from ccagent.stores.metrics.checking import read_settings
from tests.support.certificates import Authority
from tests.support.documents import configurations, documents
from tests.support.nats_server import new_seed
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDED = {
    "agents/log/README.md": '[sinks.cockpit]\nurl = "nats://127.0.0.1"\nformat = "line"\n',
}
"""What a configuration of a document names and leaves to the reader."""

STORES = {"usage", "web"}
"""Tables of the configuration of the metric store."""

OTHERS = {"project"}
"""Tables that are no configuration of ccagent's: those of a package's pyproject.toml."""


def all_configurations() -> Iterator[tuple[str, str]]:
    for path in documents():
        for text in configurations(path):
            yield path.relative_to(ROOT).as_posix(), text


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    """What is in the files that configurations name, by name."""
    (tmp_path / "authority").mkdir()
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.certify("node")
    files = {"ca.pem": authority.certificate, "node.pem": certificate, "node.key": key}
    seed = new_seed()
    creds = (
        "-----BEGIN NATS USER JWT-----\ne30.e30.x\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    found = {name: Path(path).read_text() for name, path in files.items()}
    return found | {"nkey": seed, "fox.creds": creds}


def test_every_configuration_of_a_document_passes_the_check(
    tmp_path: Path, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the secrets and certificates that they name are other files."""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    checked: set[str] = set()
    for name, written in all_configurations():
        text = written.replace("/etc/ccagent", str(tmp_path))
        for file in re.findall(rf'-file = "(?:{tmp_path}/|credential:)([\w.-]+)"', text):
            (tmp_path / file).write_text(secrets.get(file, "secret\n"))
            (tmp_path / file).chmod(0o600)
        table = tomllib.loads(text)
        if STORES & set(table):
            (tmp_path / "store.toml").write_text(text)
            read_settings(str(tmp_path / "store.toml"), {"data": str(tmp_path)})
        elif not OTHERS & set(table):
            check(tomllib.loads(text + ADDED.get(name, "")), name)
            checked.add(name)
    assert checked >= {
        "README.md", "src/ccagent/README.md", "packaging/fleet.md",
        *(f"agents/{name}/README.md" for name in ("log", "lustre", "metrics", "slurm", "sysinfo")),
        *(f"transports/{name}.md" for name in ("http", "kafka", "mqtt", "nats")),
    }  # fmt: skip
    assert set(ADDED) <= checked
