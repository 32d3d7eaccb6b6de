"""Settings of views: strict, and all of them in the README."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.page_settings import JobThresholds
from ccagent.views.job.rules import RULE_NAMES
from ccagent.views.settings import ViewSettings, load_views
from tests.support.documents import blocks
from tests.support.paths import ROOT

README = ROOT / "views/job/README.md"


def load(directory: Path, text: str) -> ViewSettings:
    path = directory / "views.toml"
    path.write_text(text)
    return load_views(str(path))


def test_the_readme_has_a_configuration_that_can_be_used(tmp_path: Path) -> None:
    (block,) = [one for one in blocks(README) if one.name == "views.toml"]
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    found = load(tmp_path, block.text.replace("/home/alice/.config/ccagent/token", str(token)))
    assert found.thresholds.gpu_low_bad == 10
    assert len(found.hardware()) == 58
    assert found.hardware()["n042"].memory == 256 * 1024**3


def test_the_readme_has_all_keys_and_rules() -> None:
    text = README.read_text()
    keys = {*ViewSettings.__struct_encode_fields__, *JobThresholds.__struct_encode_fields__}
    assert {key for key in keys if not re.search(rf"[`.]{key}[`.]", text)} == set()
    assert {name for name in RULE_NAMES if f"`{name}`" not in text} == set()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stor = 'http://x'", "stor: unknown key; did you mean 'store'?"),
        ("store = 'ftp://x'", "store: expected http://HOST:PORT"),
        ("store = 'http://u:p@x'", "store: url: with a user, password or token in it"),
        ("[thresholds]\noff = ['gpu-ide']", "thresholds.off: 'gpu-ide' is not a rule; did you"),
        ("[thresholds]\ncpu-low-bad = 101", "thresholds.cpu-low-bad"),
        ("[thresholds]\nmin-runtime = 300", "thresholds.min-runtime"),
        ("[nodes.'n[1-']\ncores = 1", "nodes.n[1-: "),
        ("store = 'http://store:8082'\ntoken-file = '/nowhere'", "/nowhere: No such file"),
        ("x = [", "views.toml"), ("\0", "views.toml"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert sentence in "; ".join(caught.value.problems)


def test_a_token_is_not_sent_unencrypted_to_another_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    text = f"store = 'http://store:8082'\ntoken-file = '{token}'\n"
    with pytest.raises(ConfigurationError, match="would be sent unencrypted"):
        load(tmp_path, text)
    assert load(tmp_path, text + "allow-cleartext = true\n").store
    assert load(tmp_path, text.replace("store:", "localhost:")).store


def test_the_own_file_comes_before_that_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_views(None).store == ""
    (tmp_path / ".config/ccagent").mkdir(parents=True)
    (tmp_path / ".config/ccagent/views.toml").write_text("store = 'http://localhost:1'\n")
    assert load_views(None).store == "http://localhost:1"
    assert load_views(None, store="http://localhost:2").store == "http://localhost:2"


@pytest.mark.skipif(os.getuid() != 0, reason="only root has files of others")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    target = tmp_path / "secret"
    target.write_text("store = 'http://localhost:1'\n")
    link = tmp_path / "views.toml"
    link.symlink_to(target)
    os.lchown(link, 65534, 65534)
    with pytest.raises(ConfigurationError):
        load_views(str(link))


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "views.toml")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        load_views(str(tmp_path / "views.toml"))
