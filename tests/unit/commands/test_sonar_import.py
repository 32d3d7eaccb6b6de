"""Sonar's configuration made into ours: recorded files, and whatever else may come."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.commands.sonar_import import (
    KEYS,
    LOGIN_FILE,
    Setting,
    convert,
    import_file,
    parse,
)
from ccagent.config.configuration import check
from ccagent.errors import ConfigurationError, UnparsableError
from tests.support.paths import DATA

FOLDER = DATA / "sonar_ini"
FILES = sorted(FOLDER.glob("*.ini"))
GLOBAL = "[global]\ncluster = fox\nrole = node\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_files(path: Path) -> None:
    assert import_file(str(path)).text == path.with_suffix(".toml").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_comes_out_is_a_configuration_that_can_be_used(path: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o600)
    text = import_file(str(path)).text.replace('ca-file = "/etc/sonar/ca.pem"\n', "")
    for place in (LOGIN_FILE, "/etc/sonar/password"):
        text = text.replace(f'"{place}"', f'"{tmp_path}/secret"')
    configuration = check(tomllib.loads(text), path.name)
    assert configuration.agents
    for name in configuration.agents:
        assert configuration.agents[name].every is not None


def test_the_parts_of_a_file() -> None:
    text = "# a\n[global]\r\n\n  cluster=fox \n[ps]\ncadence\t= '5m'\n x-Y_1 = `a \"b\" = c`\n"
    text += "[paths]\nq = a'b"
    assert parse(text) == [
        Setting("global", "cluster", "fox", 4),
        Setting("sample", "cadence", "5m", 6),
        Setting("sample", "x-Y_1", 'a "b" = c', 7),
        Setting("programs", "q", "a'b", 9),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster = fox", "line 1: cluster: before the first section"),
        ("[global]\ncluster", "line 2: expected 'name = value'"),
        ("[global]\nclu ster = 1", "line 2: expected 'name = value'"),
        ("[global]\n= 1", "line 2: expected 'name = value'"),
        ("[global", "line 1: expected '[section]'"),
        ("[]", "line 1: expected '[section]'"),
        ("[global]\ncluster =", "line 2: no value: an empty one is written as ''"),
        ("[global]\ncluster = 'fox", "line 2: a quote ' that isn't closed"),
        ("[global]\ncluster = '", "line 2: a quote ' that isn't closed"),
    ],
)
def test_what_is_no_such_file(text: str, said: str) -> None:
    with pytest.raises(UnparsableError) as caught:
        parse(text)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "global.cluster is missing: is the file complete?"),
        ("[global]\nrole = node", "global.cluster is missing: is the file complete?"),
        ("[global]\ncluster = a b", "line 2: global.cluster: cluster 'a b': letters"),
        ("[global]\ncluster = ''", "line 2: global.cluster: cluster '': letters"),
        (GLOBAL + "[sample]\ncadence = 5", "line 5: sample.cadence: '5' is not a duration"),
        (GLOBAL + "[ps]\ncadence = 7m", "line 5: sample.cadence: '7m' does not divide an hour"),
        (GLOBAL + "[sample]\nrollup = yes", "line 5: sample.rollup: expected true or false"),
        (GLOBAL + "[jobs]\nbatch-size = -1", "line 5: jobs.batch-size: '-1' is not a whole"),
        (GLOBAL + "[jobs]\nbatch-size = 0", "line 5: jobs.batch-size: '0' is not a whole"),
        (GLOBAL + f"[jobs]\nbatch-size = {'9' * 5000}", "line 5: jobs.batch-size: '9999"),
        (GLOBAL + "[directory]\ndata-directory = data", "line 5: directory.data-directory: 'data'"),
        (
            GLOBAL + "[kafka]\ntimeout = 5m",
            "[kafka]: the address is missing: is the file complete?",
        ),
        (GLOBAL + "[http]\ntimeout = 5m", "[http]: the address is missing: is the file complete?"),
    ],
)
def test_a_value_that_sonar_would_refuse_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert(text)
    assert str(caught.value).startswith(said)


def test_no_password_is_ever_shown() -> None:
    for section, name in KEYS:
        if "password" in name and not name.endswith("file"):
            address = "broker-address = h\napi-root = h"
            found = convert(f"{GLOBAL}[{section}]\n{address}\n{name} = S3CRET")
            assert "S3CRET" not in found.text
            assert f'password-file = "{LOGIN_FILE}"' in found.text
    for line in (
        "sasl-password S3CRET",
        "sasl-password = 'S3CRET",
        "[S3CRET",
        "my password=S3CRET",
    ):
        with pytest.raises(UnparsableError) as caught:
            parse(f"[kafka]\n{line}")
        assert "S3CRET" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"^\[http\]: a login in the address"):
        convert(f"{GLOBAL}[http]\napi-root = https://me:S3CRET@example.org/api")


def test_values_of_others_stay_values() -> None:
    text = f'{GLOBAL}[sample]\ncadence = 5m\nexclude-users = a"\x1b\u2028]\n[x"\x1b]'
    with pytest.raises(UnparsableError):
        convert(text)
    found = convert(text.rpartition("\n")[0])
    assert tomllib.loads(found.text)["agents"]["sample"]["exclude-users"] == ['a"\x1b\u2028]']
    assert "\x1b" not in found.text


def test_files_that_cant_be_read(tmp_path: Path) -> None:
    path = tmp_path / "sonar.ini"
    for content, said in [
        (None, "No such file or directory"),
        (b"[global]\ncluster = \xff", "line 2: not text in UTF-8"),
        (b"#" * (1024 * 1024 + 1), "larger than 1048576 bytes"),
        (b"[global]\ncluster", "line 2: expected 'name = value'"),
    ]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigurationError) as caught:
            import_file(str(path))
        assert str(caught.value) == f"{path}: {said}"
    path.write_bytes(b"\xef\xbb\xbf" + GLOBAL.encode())
    assert 'cluster = "fox"' in import_file(str(path)).text


def test_an_empty_value_is_the_default() -> None:
    found = convert(f"{GLOBAL}[cluster]\ncadence = 1h\n[programs]\nsinfo-command = ''")
    assert "line 7: programs.sinfo-command: empty: the default is used" in found.notes
    with pytest.raises(ConfigurationError, match=r"\[kafka\]: the address is empty"):
        convert(f"{GLOBAL}[kafka]\nbroker-address = ''")


def test_a_default_that_sonar_has_changed_is_named() -> None:
    (note,) = (one for one in convert(GLOBAL).notes if "hostname-only" in one)
    assert "true by default; before Sonar 0.19 it was false" in note
    assert "hostname-only" not in "".join(convert(f"{GLOBAL}hostname-only = true").notes)


def test_a_program_is_for_each_agent_that_runs_it() -> None:
    programs = "[programs]\nscontrol-command = /x/scontrol\nsinfo-command = /x/sinfo\n"
    for sections, with_scontrol, with_sinfo in [
        ("[jobs]\ncadence = 5m", {"jobs"}, {"jobs"}),
        ("[sample]\ncadence = 5m\n[cluster]\ncadence = 1h", {"sample"}, {"cluster"}),
        ("[sample]\ncadence = 5m\n[jobs]\ncadence = 5m", {"sample", "jobs"}, {"jobs"}),
    ]:
        agents = tomllib.loads(convert(GLOBAL + programs + sections).text)["agents"]
        assert {name for name in agents if "scontrol" in agents[name]} == with_scontrol
        assert {name for name in agents if "sinfo" in agents[name]} == with_sinfo
    note = "line 5: programs.scontrol-command: without a cadence in [jobs], jobs does not run"
    assert note in convert(GLOBAL + programs).notes


def test_addresses_of_http_need_no_scheme() -> None:
    text = "rest-endpoint = proxy.fox:8080\nhttp-proxy = squid.fox:3128"
    sink = tomllib.loads(convert(f"{GLOBAL}[kafka]\n{text}").text)["sinks"]["kafka"]
    assert sink["url"] == "kprox://proxy.fox:8080"
    assert sink["proxy"] == "http://squid.fox:3128"
    text = "api-root = HTTPS://fox/api\nhttp-proxy = squid.fox:3128"
    sink = tomllib.loads(convert(f"{GLOBAL}[http]\n{text}").text)["sinks"]["http"]
    assert (sink["url"], sink["proxy"]) == ("https://fox/api", "http://squid.fox:3128")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_truncated_file_gives_an_error_or_a_part(path: Path) -> None:
    text = path.read_text()
    for end in range(len(text)):
        try:
            found = convert(text[:end])
        except (ConfigurationError, UnparsableError):
            continue
        tomllib.loads(found.text)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(KEYS)),
            st.sampled_from(["5m", "true", "false", "3", "/x", "''", "a,b"]) | st.text(max_size=8),
        )
    )
)
def test_any_settings_give_an_error_or_a_configuration(
    settings: list[tuple[tuple[str, str], str]],
) -> None:
    lines = [f"[{section}]\n{name} = {value}" for (section, name), value in settings]
    try:
        found = convert(GLOBAL + "\n".join(lines))
    except (ConfigurationError, UnparsableError):
        return
    table = tomllib.loads(found.text)
    assert table["cluster"]
    assert all(note.isprintable() for note in found.notes)
    comments = [line for line in found.text.splitlines() if line.startswith("# - ")]
    assert comments == [f"# - {note}" for note in found.notes]


@given(st.text())
def test_any_text_gives_an_error_or_settings(text: str) -> None:
    try:
        found = parse(text)
    except UnparsableError:
        return
    assert all(setting.name and setting.section for setting in found)
