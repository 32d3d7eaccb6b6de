"""Sinks of the records of an agent, warnings of `config check`, and the table of a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.config.configuration import check, load, load_service
from ccagent.config.settings import Settings
from ccagent.config.warnings import find_warnings
from ccagent.errors import ConfigurationError
from ccagent.registry import TABLES, load_table

ENVELOPES = {"url": "dir:/srv/files"}
LINES = {"url": "http://store/api/write/", "format": "line"}


def configuration(agents: dict[str, Any], **sinks: dict[str, str]) -> dict[str, Any]:
    return {"cluster": "fox", "agents": agents, "sinks": sinks}


def test_an_agent_that_names_no_sinks_sends_to_all_whose_format_it_has() -> None:
    agents: dict[str, Any] = {name: {"every": "1m"} for name in ("sample", "sysinfo", "metrics")}
    checked = check(configuration(agents, files=ENVELOPES, store=LINES), "test")
    assert checked.sinks_of("sample") == ["files", "store"]
    assert checked.sinks_of("sysinfo") == ["files"]
    assert checked.sinks_of("metrics") == ["store"]
    assert checked.formats_of("metrics") == {"line"}
    assert not [*find_warnings(checked)]


def test_a_sink_that_an_agent_names_must_have_its_format() -> None:
    table = configuration({"metrics": {"sinks": ["files", "store"]}}, files=ENVELOPES, store=LINES)
    with pytest.raises(ConfigurationError, match="'files' needs format 'sonar', but metrics has"):
        check(table, "test")


def test_an_agent_needs_one_sink_of_its_format() -> None:
    table = configuration({"sample": {}, "metrics": {}}, files=ENVELOPES, more=ENVELOPES)
    with pytest.raises(ConfigurationError) as caught:
        check(table, "test")
    assert len(caught.value.problems) == 2


def test_a_sink_to_which_no_agent_sends_is_a_warning() -> None:
    checked = check(configuration({"metrics": {"every": "1m"}}, a=ENVELOPES, b=LINES), "test")
    (warning,) = find_warnings(checked)
    assert warning.startswith("sinks.a.format: no agent sends there")


def test_an_agent_that_a_daemon_would_never_run_is_a_warning() -> None:
    agents: dict[str, Any] = {"sample": {}, "sysinfo": {"on-startup": True}}
    (warning,) = find_warnings(check(configuration(agents, a=ENVELOPES), "test"))
    assert warning.startswith("agents.sample.every: missing")


@pytest.mark.parametrize("name", TABLES)
def test_an_optional_table_has_settings_and_a_check(name: str) -> None:
    kind, check_more = load_table(name)
    settings = kind()
    check_more(settings)
    assert check({name: {}}, "test").table(kind) == settings
    assert check({}, "test").table(kind) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("clustr = 'x'", "clustr: unknown key; did you mean 'cluster'?"),
        ("[agents.sample]\nevery='30s'\nexclude-user=['x']",
         "agents.sample.exclude-user: unknown key; did you mean 'exclude-users'?"),
        ("[agents.sample]\nexclude_users=['x']",
         "agents.sample.exclude_users: unknown key; did you mean 'exclude-users'?"),
        ("[agents.sampel]", "agents.sampel: 'sampel' is an unknown agent; did you mean 'sample'?"),
        ("[agents.sample]\nrollup='yes'",
         "agents.sample.rollup: expected true or false, got a string"),
        ("[agents.sample]\nevery='45s'",
         "agents.sample.every: '45s' does not divide a minute; nearest: '30s' or '1m'"),
        ("[agents.sample]\nevery='7m'", "nearest: '6m' or '10m'"),
        ("[agents.sample]\nsource='bfp'", "agents.sample.source: "),
        ("[agents.sample]\nextras=['cards']", "agents.sample.extras: 'cards' is unknown"),
        ("[agents.sample]\nsinks=['bakend']\n[sinks.backend]\nurl='stdout:'",
         "agents.sample.sinks: there is no [sinks.bakend]; did you mean 'backend'?"),
        ("[sinks.x]\nurl='http//x'", "sinks.x.url: 'http//x' is not a sink URL"),
        ("[sinks.x]\nurl='dri:/x'",
         "sinks.x.url: 'dri' is an unknown kind of sink; did you mean 'dir'?"),
        ("[sinks.x]\nurl='dir:relative'", "sinks.x: dir:relative: an absolute path is needed"),
        ("[sinks.x]\nformat='sonar'", "sinks.x.url: a sink needs a URL"),
        ("[sinks.x]\nurl='stdout:'\nformat='json'", "sinks.x.format: "),
        ("[agents.sysinfo]\n[sinks.x]\nurl='stdout:'\nformat='line'", "but sysinfo has only"),
        ("cluster = 'två ord'", "cluster 'två ord': letters, digits"),
        ("cluster = '../x'", "cluster '../x': letters, digits"),
        ("hostname = 'a b'", "hostname 'a b': letters, digits"),
        ("agents = 3", "agents: expected tables [agents.NAME]"),
        ("[agents]\nsample = 3", "agents.sample: expected a table [agents.sample]"),
        ("cluster = ", "Invalid value"),
        (b"cluster = '\xff'", "not text in UTF-8"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message_with_the_file(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigurationError) as caught:
        load(str(file))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: ")
    assert said in problem
    assert "\n" not in problem


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
