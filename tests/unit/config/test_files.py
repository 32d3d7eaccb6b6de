"""`conf.d/*.toml` beside the main file: how they are joined, and how a mistake in one is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ccagent.config import files as config_files
from ccagent.config import files as configuration_files
from ccagent.config.configuration import Configuration, load
from ccagent.config.files import read_files
from ccagent.errors import ConfigurationError

MAIN = """
cluster = "fox"
[agents.sample]
every = "30s"
[sinks.out]
url = "stdout:"
"""


class Directory:
    """A directory with `ccagent.toml` and `conf.d`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.main = path / "ccagent.toml"
        self.main.write_text(MAIN)
        (path / "conf.d").mkdir()

    def add(self, name: str, content: str | bytes) -> Path:
        path = self.path / "conf.d" / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def table(self) -> dict[str, Any]:
        return read_files(str(self.main)).table

    def load(self) -> Configuration:
        return load(str(self.main))

    def refusal(self) -> str:
        """What is said, with paths below the directory."""
        with pytest.raises(ConfigurationError) as caught:
            self.load()
        return str(caught.value).replace(f"{self.path}/", "")


@pytest.fixture
def etc(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_tables_of_the_same_name_are_joined(etc: Directory) -> None:
    etc.add("10-sample.toml", "[agents.sample]\nrollup = true\n[agents.sysinfo]\nevery = '1d'")
    etc.add("20-sinks.toml", "[sinks.tree]\nurl = 'dir:/tmp'\n[outbox]\nmax-age = '1d'")
    assert etc.table() == {
        "cluster": "fox",
        "agents": {"sample": {"every": "30s", "rollup": True}, "sysinfo": {"every": "1d"}},
        "sinks": {"out": {"url": "stdout:"}, "tree": {"url": "dir:/tmp"}},
        "outbox": {"max-age": "1d"},
    }
    assert list(etc.load().sinks) == ["out", "tree"]


def test_files_are_taken_in_the_order_of_their_names(etc: Directory) -> None:
    for name in ("b", "a", "10", "9", "B"):
        etc.add(f"{name}.toml", f"[sinks.{name}]\nurl = 'stdout:'")
    assert list(etc.load().sinks) == ["out", "10", "9", "B", "a", "b"]
    paths = read_files(str(etc.main)).paths
    assert [Path(path).name for path in paths] == [
        "ccagent.toml", "10.toml", "9.toml", "B.toml", "a.toml", "b.toml",
    ]  # fmt: skip


def test_what_editors_and_package_managers_leave_is_not_read(etc: Directory) -> None:
    for name in ("a.toml~", ".a.toml", "a.toml.rpmnew", "a.toml.dpkg-old", "README"):
        etc.add(name, "not TOML")
    assert etc.table() == read_files(str(etc.main)).table
    assert len(read_files(str(etc.main)).paths) == 1


def test_without_the_directory_there_is_only_the_main_file(tmp_path: Path) -> None:
    main = tmp_path / "ccagent.toml"
    main.write_text(MAIN)
    assert read_files(str(main)).paths == [str(main)]
    (tmp_path / "conf.d").write_text("a file")
    assert read_files(str(main)).paths == [str(main)]


def test_a_file_by_a_relative_path_has_its_directory_beside_it(
    etc: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc.add("a.toml", "[sinks.a]\nurl = 'stdout:'")
    monkeypatch.chdir(etc.path)
    assert list(load("ccagent.toml").sinks) == ["out", "a"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("cluster = 'fox'", "conf.d/b.toml: line 1: cluster: is already set in ccagent.toml"),
        ("[agents.sample]\nevery = '1m'",
         "conf.d/b.toml: line 2: agents.sample.every: is already set in ccagent.toml"),
        ("[sinks.tree]\nurl = 'dir:/x'",
         "conf.d/b.toml: line 2: sinks.tree.url: is already set in conf.d/a.toml"),
        ("sinks = 3", "conf.d/b.toml: line 1: sinks: is already set in ccagent.toml"),
        ("[cluster]\nname = 'fox'",
         "conf.d/b.toml: line 1: cluster: is already set in ccagent.toml"),
        ("[agents.sysinfo]\nsoftware = []",
         "conf.d/b.toml: line 2: agents.sysinfo.software: is already set in conf.d/a.toml"),
    ],
)  # fmt: skip
def test_a_key_that_stands_twice_is_an_error_that_names_both_files(
    etc: Directory, content: str, said: str
) -> None:
    software = "[[agents.sysinfo.software]]\nkey = 'x'\nfile = '/x'"
    etc.add("a.toml", f"[sinks.tree]\nurl = 'dir:/tmp'\n{software}")
    etc.add("b.toml", content)
    assert etc.refusal() == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n\nx = [1 2]", "conf.d/b.toml: line 3: Unclosed array (column "),
        (".".join("a" * 2_000) + " = 1", "conf.d/b.toml: tables nested too deep"),
        (b"a = 1\nx = '\xff'", "conf.d/b.toml: line 2: not text in UTF-8"),
        (b"a = '\0'", "conf.d/b.toml: line 1: Found invalid character '\\x00' (column "),
        ("x = " + "[" * 100_000, "conf.d/b.toml: nested too deep"),
        ('status-socket = "/a\\u0000"', "conf.d/b.toml: line 1: status-socket: can't hold the ch"),
        ('[sinks."a\\u0000"]', "conf.d/b.toml: line 1: sinks.a\0: can't hold the character NUL"),
        ("[agents.metrics.commands.a]\ncommand = 'x'",
         "conf.d/b.toml: line 2: agents.metrics.commands.a.command: expected a list, got a str"),
        ("[outbox]\nmax-bytes = " + "9" * 5_000, "conf.d/b.toml: line 2: Exceeds the limit (4300"),
        (b" " * 4_194_305, "conf.d/b.toml: larger than 4194304 bytes"),
        ("clustr = 'x'", "conf.d/b.toml: line 1: clustr: unknown key; did you mean 'cluster'?"),
        ("[agents.sample]\nrolup = true", "conf.d/b.toml: line 2: agents.sample.rolup: unknown"),
        ("[agents.sample]\nrollup = 'yes'",
         "conf.d/b.toml: line 2: agents.sample.rollup: expected true or false, got a string"),
        ("[agents.sampel]", "conf.d/b.toml: line 1: agents.sampel: 'sampel' is an unknown"),
        ("[sinks.x]\nurl = 'dri:/x'", "conf.d/b.toml: line 2: sinks.x.url: 'dri' is an unknown"),
        ("[outbox]\ndirectory = 'x'", "conf.d/b.toml: line 2: outbox.directory: an absolute path"),
        ("hostname = 'a b'", "conf.d/b.toml: line 1: hostname 'a b': letters, digits"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_file_where_it_stands(
    etc: Directory, content: str | bytes, said: str
) -> None:
    etc.add("a.toml", "[sinks.a]\nurl = 'stdout:'")
    etc.add("b.toml", content)
    assert etc.refusal().startswith(said)


def test_a_mistake_in_the_main_file_is_named_with_it(etc: Directory) -> None:
    etc.add("a.toml", "[agents.sample]\nrollup = true")
    etc.main.write_text("[agents.sample]\nevery = '45s'")
    assert etc.refusal().startswith(
        "ccagent.toml: line 2: agents.sample.every: '45s' does not divide"
    )


def test_all_mistakes_of_all_files_are_named_at_once_with_their_lines(etc: Directory) -> None:
    etc.main.write_text(
        """\
clustr = "fox"                  # 1
status-socket = "relative"
[outbox]
max-bytes = 0
durability = "disk"             # 5
[agents.sample]
every = "45s"
rolup = true
[agents.sampel]
[agents.sysinfo]                # 10
sinks = ["bakend", "lines"]
[[agents.sysinfo.software]]
key = "a"
file = "/a"
[[agents.sysinfo.software]]     # 15
key = 3
"""
    )
    etc.add("a.toml", "[sinks.backend]\nurl = 'dir:relative'\n")
    etc.add("b.toml", "[sinks.none]\n[sinks.lines]\nurl = 'stdout:'\nformat = 'lines'\n")
    with pytest.raises(ConfigurationError) as caught:
        etc.load()
    found = [problem.replace(f"{etc.path}/", "") for problem in caught.value.problems]
    begins = [
        "ccagent.toml: line 1: clustr: unknown key",
        "ccagent.toml: line 2: status-socket: an absolute path",
        "ccagent.toml: line 4: outbox.max-bytes: expected",
        "ccagent.toml: line 5: outbox.durability: 'disk'",
        "conf.d/a.toml: line 1: sinks.backend: dir:relative: an absolute path",
        "conf.d/b.toml: line 1: sinks.none.url: a sink needs a URL",
        "conf.d/b.toml: line 4: sinks.lines.format: 'lines' is none of",
        "ccagent.toml: line 7: agents.sample.every: '45s' does not divide",
        "ccagent.toml: line 8: agents.sample.rolup: unknown key",
        "ccagent.toml: line 9: agents.sampel: 'sampel' is an unknown agent",
        "ccagent.toml: line 11: agents.sysinfo.sinks: there is no [sinks.bakend]",
        "ccagent.toml: line 16: agents.sysinfo.software[1].key: expected a string",
    ]
    assert [begin for begin in begins if not any(map(str.startswith, found, [begin] * 99))] == []
    assert len(found) == len(begins)
    assert any("durability: 'disk' is none of 'power', 'process'" in problem for problem in found)


def test_what_is_no_toml_hides_no_other_mistake(etc: Directory) -> None:
    etc.add("a.toml", "[sinks.a]\nurl = nats://a:4222\nfromat = 'line'\n[sinks.b]\nurl = 3\n")
    etc.add("b.toml", "cluster = 'fox'\nhostname = 'a\n")
    with pytest.raises(ConfigurationError) as caught:
        etc.load()
    assert [problem.replace(f"{etc.path}/", "") for problem in caught.value.problems] == [
        "conf.d/a.toml: line 2: Invalid value: a string stands in quotes (column 7)",
        'conf.d/b.toml: line 2: Expected "\'"',
        "conf.d/b.toml: line 1: cluster: is already set in ccagent.toml",
        "conf.d/a.toml: line 5: sinks.b.url: a sink needs a URL, such as 'stdout:'",
    ]


def test_a_file_that_can_t_be_read_on_is_the_only_complaint(etc: Directory) -> None:
    etc.main.write_text("[agents.sample\nevery = '1s'\n[agents.nonesuch]\n")
    assert etc.refusal() == (
        "ccagent.toml: line 1: Expected ']' at the end of a table declaration (column 15)"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[sinks.a]\nurl = ${URL}", "line 2: Invalid value: "),
        ("[sinks.a]\nurl = env:URL", "line 2: Invalid value: "),
        ("[sinks.a]\nurl = 'nats://${HOST}'", "line 2: sinks.a.url: "),
        ("cluster = 'env:CLUSTER'", "line 1: cluster: "),
    ],
)
def test_variables_are_refused_with_what_there_is_instead(
    tmp_path: Path, content: str, line: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load(str(file))
    said = caught.value.problems[0]
    assert said.startswith(f"{file}: {line}there are no variables in the configuration; a secret")


def test_a_dollar_in_a_command_is_the_command_s(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[agents.metrics.commands.a]\ncommand = ['/bin/sh', '-c', 'echo ${HOME}']\n")
    assert load(str(file)).agents


def test_what_is_no_file(etc: Directory) -> None:
    (etc.path / "conf.d" / "a.toml").mkdir()
    assert etc.refusal() == "conf.d/a.toml: not a regular file"
    (etc.path / "conf.d" / "a.toml").rmdir()
    os.mkfifo(etc.path / "conf.d" / "a.toml")
    assert etc.refusal() == "conf.d/a.toml: not a regular file"


def test_a_link_to_nowhere(etc: Directory) -> None:
    (etc.path / "conf.d" / "a.toml").symlink_to("nowhere")
    assert etc.refusal() == "conf.d/a.toml: No such file or directory"


def test_what_others_may_write_is_refused(etc: Directory) -> None:
    path = etc.add("a.toml", "")
    path.chmod(0o646)
    assert etc.refusal() == "conf.d/a.toml: others can write it: chmod o-w it"
    path.chmod(0o664)
    (etc.path / "conf.d").chmod(0o777)
    assert etc.refusal() == "conf.d: others can write it: chmod o-w it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(etc: Directory) -> None:
    path = etc.add("a.toml", "")
    os.chown(path, 65534, -1)
    assert etc.refusal().startswith("conf.d/a.toml: belongs to another user (uid 65534)")
    os.chown(path, 0, -1)
    os.chown(etc.main, 65534, -1)
    assert etc.refusal().startswith("ccagent.toml: belongs to another user (uid 65534)")


def test_a_main_file_that_others_may_write_is_refused(etc: Directory) -> None:
    etc.main.chmod(0o646)
    assert etc.refusal() == "ccagent.toml: others can write it: chmod o-w it"


def test_a_pipe_as_the_main_file_is_refused_at_once(etc: Directory) -> None:
    etc.main.unlink()
    os.mkfifo(etc.main)
    assert etc.refusal() == "ccagent.toml: not a regular file"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_only_links_of_trusted_users_lead_to_the_main_file(etc: Directory) -> None:
    real = etc.main.rename(etc.path / "real.toml")
    etc.main.symlink_to(real)
    assert list(etc.load().sinks) == ["out"]
    os.lchown(etc.main, 65534, -1)
    assert "is a symbolic link of user 65534 and is not followed" in etc.refusal()


@pytest.fixture
def packaged(etc: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """The directory of a package's defaults, which complete the configuration of `etc`."""
    (tmp_path / "usr").mkdir()
    found = Directory(tmp_path / "usr")
    monkeypatch.setattr(config_files, "COMPLETED", str(etc.path))
    monkeypatch.setattr(configuration_files, "PACKAGED", str(found.path / "conf.d"))
    return found


def test_defaults_of_packages_complete_and_never_collide(
    etc: Directory, packaged: Directory
) -> None:
    etc.add("site.toml", "[agents.sysinfo]\nsinks = ['out']\n[outbox]\ndirectory = '/site'")
    packaged.add("core.toml", "lock-directory = '/run/x'\n[outbox]\ndirectory = '/var/x'")
    packaged.add("node.toml", "[agents.sample]\nevery = '1m'\nrollup = true\n"
                              "[agents.sysinfo]\nevery = '12h'\nsinks = []")  # fmt: skip
    assert etc.table() == {
        "cluster": "fox",
        "lock-directory": "/run/x",
        "agents": {
            "sample": {"every": "30s", "rollup": True},
            "sysinfo": {"every": "12h", "sinks": ["out"]},
        },
        "sinks": {"out": {"url": "stdout:"}},
        "outbox": {"directory": "/site"},
    }


def test_a_file_of_the_same_name_replaces_a_package_s_defaults(
    etc: Directory, packaged: Directory
) -> None:
    packaged.add("node.toml", "[agents.sysinfo]\nevery = '12h'")
    assert "sysinfo" in etc.load().agents
    etc.add("node.toml", "")
    assert list(etc.load().agents) == ["sample"]


def test_a_configuration_elsewhere_gets_no_defaults_of_packages(
    etc: Directory, packaged: Directory, tmp_path: Path
) -> None:
    packaged.add("node.toml", "[agents.sysinfo]\nevery = '12h'")
    (tmp_path / "other").mkdir()
    assert list(Directory(tmp_path / "other").load().agents) == ["sample"]


def test_a_mistake_is_named_with_the_file_although_defaults_are_below_it(
    etc: Directory, packaged: Directory
) -> None:
    packaged.add("node.toml", "[agents.sysinfo]\nevery = '12h'\nsinks = ['nowhere']")
    assert etc.refusal().startswith("usr/conf.d/node.toml: line 3: agents.sysinfo.sinks: ")
    packaged.add("node.toml", "[agents.sysinfo]\nevery = '12h'")
    etc.add("a.toml", "[agents]\nsysinfo = 3")
    assert etc.refusal().startswith("conf.d/a.toml: line 2: agents.sysinfo: ")


def test_without_packages_the_configuration_is_what_the_site_wrote(
    etc: Directory, packaged: Directory
) -> None:
    shutil.rmtree(packaged.path / "conf.d")
    assert list(etc.load().agents) == ["sample"]
