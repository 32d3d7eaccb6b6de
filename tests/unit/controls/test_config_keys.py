"""Keys of ccagent's configuration that controls set, and the overrides that hold them."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.settings import as_table
from ccagent.controls.config_keys import (
    ConfigControls,
    ConfigSource,
    Overrides,
    apply_overrides,
    read_key,
    read_overrides,
    with_key,
    with_overrides,
    write_overrides,
)
from ccagent.errors import CcagentError
from ccagent.service.instance import Lock
from tests.support.control_machines import MachineNode, Site, allow

if TYPE_CHECKING:
    from pathlib import Path

EVERY, ON = "config.agents.sample.every", "config.agents.sample"
TABLE: dict[str, Any] = {"agents": {"sample": {"every": "30s", "rollup": True}}}


def effective(overrides: Overrides) -> dict[str, Any]:
    found: dict[str, Any] = with_overrides(TABLE, overrides)["agents"]
    return found


def test_a_cadence_is_laid_over_the_files() -> None:
    overrides = with_key(TABLE, Overrides(), EVERY, "10s")
    assert effective(overrides) == {"sample": {"every": "10s", "rollup": True}}
    assert read_key(TABLE, overrides, EVERY) == "10s"
    assert effective(with_key(TABLE, overrides, EVERY, "30s")) == TABLE["agents"]
    assert with_key(TABLE, overrides, EVERY, "30s") == Overrides()


def test_agents_go_off_and_on() -> None:
    off = with_key(TABLE, Overrides(), ON, "0")
    assert (effective(off), read_key(TABLE, off, ON)) == ({}, "0")
    assert effective(with_key(TABLE, off, ON, "1")) == TABLE["agents"]
    metrics = with_key(TABLE, Overrides(), "config.agents.metrics", "1")
    assert effective(metrics) == TABLE["agents"] | {"metrics": {}}
    assert effective(with_key(TABLE, metrics, "config.agents.metrics", "0")) == TABLE["agents"]


def test_an_agent_that_is_only_in_the_overrides_goes_off_with_its_cadence() -> None:
    on = with_key(TABLE, Overrides(), "config.agents.metrics.every", "10s")
    assert effective(on)["metrics"] == {"every": "10s"}
    assert effective(with_key(TABLE, on, "config.agents.metrics", "0")) == TABLE["agents"]


def test_an_agent_that_is_off_keeps_its_cadence() -> None:
    both = with_key(TABLE, with_key(TABLE, Overrides(), EVERY, "10s"), ON, "0")
    again = with_key(TABLE, both, ON, "1")
    assert effective(again)["sample"]["every"] == "10s"


def test_overrides_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "run/overrides.toml")
    overrides = Overrides({"sample": {"every": "10s"}, "metrics": {}}, ("lustre",))
    assert read_overrides(path) == Overrides()
    write_overrides(path, overrides)
    assert read_overrides(path) == overrides
    assert os.stat(path).st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "content",
    [
        *("[", "agents = 3", "agents.sample = 3", "\xff"),
        *("agents-off = 5", 'agents-off = "sample"', "agents-off = [['sample']]"),
    ],
)
def test_overrides_that_cant_be_read_change_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "overrides.toml"
    path.write_bytes(content.encode("latin-1"))
    table = TABLE | {"controls": {"overrides": str(path)}}
    assert apply_overrides(table)["agents"] == TABLE["agents"]


def test_overrides_of_others_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "overrides.toml"
    path.write_text("agents-off = ['sample']")
    path.chmod(0o666)
    with pytest.raises(CcagentError):
        read_overrides(str(path))
    assert apply_overrides(TABLE | {"controls": {"overrides": str(path)}})["agents"]


class ConfigSite:
    """A site whose daemon is this process: it counts the reloads."""

    def __init__(self, root: Path) -> None:
        self.file = root / "ccagent.toml"
        self.file.write_text(
            f'lock-directory = "{root}"\n[agents.sample]\nevery = "30s"\n'
            '[sinks.x]\nurl = "http://h/write?token=secret"\nformat = "line"\n'
        )
        node = MachineNode(root / "machine")
        table = allow(config__agents__sample__every={"values": ["10s", "30s"]})
        rules: dict[str, Any] = {
            **as_table(table["allow"]), "config.agents.sample": {}, "config.agents.nothing": {}
        }  # fmt: skip
        self.source = ConfigSource(node, str(self.file), str(root / "o.toml"))
        self.site = Site(
            node, {"allow": rules}, classes=[ConfigControls(self.source, rules)], state=root / "t"
        )


@pytest.fixture
def config_site(tmp_path: Path) -> ConfigSite:
    return ConfigSite(tmp_path)


@pytest.mark.slow
def test_a_cadence_is_set_checked_taken_over_and_put_back(
    config_site: ConfigSite, tmp_path: Path
) -> None:
    reloads: list[int] = []
    old = signal.signal(signal.SIGHUP, lambda number, _: reloads.append(number))
    lock = Lock(str(tmp_path / "ccagent.lock"), "lock-directory")
    try:
        site = config_site.site
        assert site.ask(EVERY) == ("INFO", "30s")
        assert site.ask(EVERY, "10s")[0] == "INFO"
        assert site.ask("config", "agents.sample.every=10s", kind="node")[0] == "INFO"
        assert read_overrides(config_site.source.overrides).agents == {"sample": {"every": "10s"}}
        assert site.ask(EVERY, "20s")[0] == "ERROR"
        site.ask("restore", "")
        assert site.ask(EVERY) == ("INFO", "30s")
        assert len(reloads) == 2
    finally:
        lock.release()
        signal.signal(signal.SIGHUP, old)


def test_what_the_check_refuses_is_not_written(config_site: ConfigSite) -> None:
    level, text = config_site.site.ask("config.agents.nothing", "1")
    assert level == "ERROR"
    assert "refused by the check" in text
    assert "unknown agent" in text
    assert read_overrides(config_site.source.overrides) == Overrides()


class NotedLock:
    """A lock that notes that a thread waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_awaited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_two_keys_that_are_set_at_the_same_time_are_both_kept(
    config_site: ConfigSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, checked = NotedLock(), threading.Event()

    def ignore(_source: ConfigSource) -> None: ...

    def check(_source: ConfigSource, _overrides: Overrides) -> None:
        if threading.current_thread().name == EVERY:
            checked.set()
            assert lock.is_awaited.wait(60)

    monkeypatch.setattr(ConfigSource, "change_lock", lock)
    monkeypatch.setattr(ConfigSource, "check", check)
    monkeypatch.setattr(ConfigSource, "reload", ignore)
    site = config_site.site
    slow = threading.Thread(target=site.ask, args=(EVERY, "10s"), name=EVERY)
    slow.start()
    assert checked.wait(60)
    assert site.ask("config.agents.nothing", "1")[0] == "INFO"
    slow.join()
    found = read_overrides(config_site.source.overrides)
    assert found.agents == {"sample": {"every": "10s"}, "nothing": {}}


def test_a_cadence_of_an_agent_that_is_off_is_refused(config_site: ConfigSite) -> None:
    site = config_site.site
    assert site.ask("config.agents.sample", "0")[0] == "INFO"
    assert "does not run" in site.ask(EVERY, "10s")[1]


def test_the_document_has_no_secret(config_site: ConfigSite) -> None:
    document = json.loads(config_site.source.document())
    assert document["sinks"]["x"]["url"] == "http://h/write"
    assert document["agents"] == {"sample": {"every": "30s"}}
