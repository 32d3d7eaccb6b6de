"""What packages install besides the program: man pages, completions, a configuration file."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccagent.commands.generate import (
    bold,
    entry,
    escape,
    example,
    heading,
    paragraphs,
    title,
)
from ccagent.registry import AGENTS, TRANSPORTS

CCAGENT = Path(sys.executable).with_name("ccagent")


def generate(directory: Path, **environment: str) -> dict[str, str]:
    """Run the command; give the texts by path."""
    done = subprocess.run(
        [CCAGENT, "generate", directory], env=os.environ | environment, timeout=60, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return {
        str(Path(line).relative_to(directory)): Path(line).read_text()
        for line in done.stdout.splitlines()
    }


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated")
    generate(directory, SOURCE_DATE_EPOCH="1700000000")
    return directory / "share"


def test_two_runs_write_the_same(tmp_path: Path) -> None:
    first = generate(tmp_path / "a", SOURCE_DATE_EPOCH="1700000000", TZ="Asia/Tokyo")
    second = generate(tmp_path / "b", SOURCE_DATE_EPOCH="1700000000", LANG="C", COLUMNS="40")
    assert first == second
    assert sorted(first) == [
        "ccagent.toml",
        "share/bash-completion/completions/ccagent",
        "share/fish/vendor_completions.d/ccagent.fish",
        "share/man/man1/ccagent.1",
        "share/man/man5/ccagent.toml.5",
        "share/zsh/site-functions/_ccagent",
    ]
    assert '"2023-11-14"' in first["share/man/man1/ccagent.1"]


def test_what_cant_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory, epoch, said in [
        (tmp_path / "file", "", f"{tmp_path}/file/ccagent.toml: Not a directory"),
        (tmp_path, "yesterday", "SOURCE_DATE_EPOCH: 'yesterday' is not a number of seconds"),
    ]:
        done = subprocess.run(
            [CCAGENT, "generate", directory], env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr.strip()) == (2, f"ccagent: {said}")


@pytest.mark.parametrize("page", ["man1/ccagent.1", "man5/ccagent.toml.5"])
def test_man_pages_are_valid(share: Path, page: str) -> None:
    linted = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", share / "man" / page],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")


def printed(page: Path) -> str:
    """A man page as a wide terminal shows it, without emphasis."""
    done = subprocess.run(
        ["mandoc", "-T", "utf8", "-O", "width=500", page],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return re.sub(".\b", "", done.stdout)


def test_every_command_and_option_has_its_place_in_the_manual(share: Path) -> None:
    text = printed(share / "man/man1/ccagent.1")
    for command in ("run", "sample", "config check", "config import", "lustre check", "sinks test"):
        assert f"\n   ccagent {command} " in text
    for option in ("--once", "--every DURATION", "--config FILE", "--template", "--cluster-config"):
        assert re.search(rf"\n +{re.escape(option)}", text)
    assert "generate" not in text


def test_every_key_has_its_place_in_the_manual(share: Path) -> None:
    text = printed(share / "man/man5/ccagent.toml.5")
    for table in AGENTS:
        assert f"\n   [agents.{table}]\n" in text
    for scheme in TRANSPORTS:
        assert re.search(rf"\n   Sinks .*\b{scheme}:", text)
    for line in (
        'status-socket = "/run/ccagent/status.sock"',
        "max-bytes = 268435456",
        "rollup = false",
        'topic = "{prefix}/{cluster}/{kind}/{node}"',
        'exclude = ["/boot", "/boot/*"]',
    ):
        assert re.search(rf"\n +{re.escape(line)}\n", text)


def test_text_is_printed_as_it_is(tmp_path: Path) -> None:
    hostile = r""".SH '"\fB\n- `x` ^~ 'größe' \\ -- ${a}"""
    page = tmp_path / "x.1"
    page.write_text(
        title("X", 1, "2023-11-14", "x 1", hostile)
        + heading(hostile) + paragraphs(hostile, hostile)
        + entry(bold(hostile), hostile) + heading("B") + example(f"  {hostile}\n.TH\n\\c")
    )  # fmt: skip
    text = printed(page)
    assert text.count(hostile) == 7
    assert re.search(rf"\n( +)  {re.escape(hostile)}\n\1\.TH\n\1\\c\n", text)
    assert escape("a\n b\t\x1bc\x00") == "a b c"


class Terminal:
    """A shell that somebody types into."""

    def __init__(self, *command: str, **environment: str) -> None:
        path = f"{CCAGENT.parent}:{os.environ['PATH']}"
        self._child, self._terminal = pty.fork()
        if self._child == 0:
            os.environ.update({"PATH": path, "TERM": "dumb", **environment})
            os.execvp(command[0], command)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read(self, wanted: str) -> str:
        """Wait for a line of output; give what `wanted` has in parentheses."""
        text, deadline = "", time.monotonic() + 30
        while (found := re.search(rf"(?m)^{wanted}\r$", text)) is None:
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, text
            text += os.read(self._terminal, 65536).decode(errors="replace")
        return found[1]

    def completed(self, typed: str) -> str:
        """Type the beginning of a line and the tabulator; give what the line is then."""
        self.type(f"{typed}\t\x01echo got \n")
        return self.read("got (.*)")

    def end(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._child, 0)


COMPLETED = {
    "ccagent conf": "ccagent config",
    "ccagent config ch": "ccagent config check",
    "ccagent config check no": "ccagent config check node.toml",
    "ccagent lustre ch": "ccagent lustre check",
    "ccagent sample --fo": "ccagent sample --format",
    "ccagent sample --format li": "ccagent sample --format line",
    "ccagent run --config no": "ccagent run --config node.toml",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "node.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_bash_completes(share: Path) -> None:
    shell = Terminal("bash", "--norc", "--noprofile", "-i")
    shell.type(f"source {share}/bash-completion/completions/ccagent; echo re''ady\n")
    shell.read("(ready)")
    assert {typed: shell.completed(typed) for typed in COMPLETED} == COMPLETED
    shell.end()


def test_zsh_completes(share: Path, here: Path) -> None:
    shell = Terminal("zsh", "-f", "-i", HOME=str(here))
    shell.type(f"fpath=({share}/zsh/site-functions $fpath); autoload -U compinit; compinit -D\n")
    shell.type("echo re''ady\n")
    shell.read("(ready)")
    assert {typed: shell.completed(typed) for typed in COMPLETED} == COMPLETED
    shell.end()


def test_fish_completes(share: Path, here: Path) -> None:
    environment = {
        "HOME": str(here),
        "XDG_DATA_DIRS": f"{share}:/usr/share",
        "PATH": f"{CCAGENT.parent}:{os.environ['PATH']}",
    }
    for typed, line in COMPLETED.items():
        done = subprocess.run(
            ["fish", "-c", f"complete -C '{typed}'"], env=os.environ | environment,
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert [found.split("\t")[0] for found in done.stdout.splitlines()] == [line.split()[-1]]
