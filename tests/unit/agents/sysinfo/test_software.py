"""sysinfo, software: versions from files of CUDA and ROCm, from configured files and commands."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sysinfo.software import (
    SoftwareSettings,
    make_version,
    parse_component,
    parse_cuda,
    parse_first_line,
    parse_rocm_file_name,
    read_drawing,
    read_software,
    split_command,
)
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError
from ccagent.machine.node import Node
from ccagent.records.envelopes import SysinfoSoftwareVersion

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CUDA = {
    "cuda": {"name": "CUDA SDK", "version": "12.2.20230823"},
    "nvidia_driver": {"name": "NVIDIA Linux Driver", "version": "535.104.05"},
}


def tree(root: Path, files: Mapping[str, str]) -> Node:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Node(root=str(root), hostname="n1", cluster="c1")


def software(
    node: Node, errors: list[CcagentError], *configured: SoftwareSettings
) -> dict[str, tuple[str, str]]:
    """What is found: name and version by key."""
    found = read_software(
        node,
        configured,
        cuda_root="/usr/local/cuda",
        rocm_root="/opt/rocm/",
        time_limit=5.0,
        errors=errors,
    )
    return {entry.key: (entry.name, entry.version) for entry in found}


def absent(errors: list[CcagentError]) -> bool:
    return all(isinstance(error, NotHereError) for error in errors)


def test_cuda_names_its_components(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"usr/local/cuda/version.json": json.dumps(CUDA)})
    assert software(node, errors) == {
        "cuda": ("CUDA SDK", "12.2.20230823"),
        "nvidia_driver": ("NVIDIA Linux Driver", "535.104.05"),
    }
    assert absent(errors)


def test_a_bad_component_of_cuda_is_left_out(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    components = {
        "nameless": {"version": "1"},
        "empty": {"name": "x", "version": " "},
        "text": "12.2",
        "number": {"name": "x", "version": 12.2},
        "": {"name": "x", "version": "1"},
        "bell": {"name": "x", "version": "1\a"},
        "unprintable name": {"name": "\x1b[2J", "version": "2"},
        "newer": {"name": "x", "version": "3", "date": {"year": 2026}},
    }
    node = tree(tmp_path, {"usr/local/cuda/version.json": json.dumps(components)})
    assert software(node, errors) == {
        "nameless": ("", "1"),
        "unprintable name": ("", "2"),
        "newer": ("x", "3"),
    }
    complaints = [str(error) for error in errors if isinstance(error, UnparsableError)]
    assert len(complaints) == 5
    assert all(text.startswith("/usr/local/cuda/version.json: ") for text in complaints)


@pytest.mark.parametrize("text", ["", "[]", "{", '"12.2"', "{" * 100_000, '{"a":' + "[" * 100_000])
def test_a_version_json_that_is_no_object_gives_nothing(tmp_path: Path, text: str) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"usr/local/cuda/version.json": text})
    assert software(node, errors) == {}
    assert [type(error) for error in errors] == [UnparsableError, NotHereError]
    assert str(errors[0]).startswith("/usr/local/cuda/version.json: ")


@given(st.binary() | st.text().map(str.encode))
def test_cuda_is_understood_or_unparsable(content: bytes) -> None:
    try:
        components = parse_cuda(content)
    except UnparsableError:
        return
    for key, component in components.items():
        with contextlib.suppress(UnparsableError):
            assert parse_component(key, component).key


@given(st.text(), st.recursive(st.none() | st.text() | st.integers(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from(["name", "version", "x"]), inner)
)))  # fmt: skip
def test_a_component_is_understood_or_unparsable(key: str, component: object) -> None:
    try:
        entry = parse_component(key, msgspec.Raw(json.dumps(component).encode()))
    except UnparsableError:
        return
    assert entry.key.isprintable()
    assert entry.version
    assert entry.version.isprintable()
    assert entry.name.isprintable()


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("version", "rocm"),
        (".version", "rocm"),
        ("version-hip-libraries", "hip-libraries"),
        ("version-", ""),
        ("versions", ""),
        ("conversion", ""),
        ("", ""),
    ],
)
def test_files_of_rocm_are_named_after_components(file: str, key: str) -> None:
    assert parse_rocm_file_name(file) == key


def test_rocm_has_a_file_a_component(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    files = {
        "opt/rocm/.info/version": "6.4.0-47\n",
        "opt/rocm/.info/version-hip-libraries": "\n6.4.1-47\nbuilt by hand\n",
        "opt/rocm/.info/version-lrt": "\n",
        "opt/rocm/.info/README": "1\n",
        "opt/rocm/.info/version-directory/file": "1\n",
    }
    assert software(tree(tmp_path, files), errors) == {
        "rocm": ("ROCm", "6.4.0-47"),
        "hip-libraries": ("ROCm hip-libraries", "6.4.1-47"),
    }
    complaints = [str(error) for error in errors if not isinstance(error, NotHereError)]
    assert complaints == [
        "/opt/rocm/.info/version-directory: Is a directory",
        "software 'lrt': not a version: ''",
    ]


def test_configured_files_are_below_the_root(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"etc/os-version": "\n  9.4 (Plow)  \nmore\n"})
    os_version = SoftwareSettings(key="os", name="Distribution", file="/etc/os-version")
    missing = SoftwareSettings(key="no", file="/etc/missing")
    assert software(node, errors, os_version, missing) == {"os": ("Distribution", "9.4 (Plow)")}
    assert absent(errors)


def test_configured_commands_print_versions(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    commands = {
        "ok": r"printf '\n  5.36.0  \nmore\n'",
        "silent": "true",
        "failing": "false",
        "missing": "no-such-program-of-ccagent --version",
        "binary": r"printf '\377\376'",
        "escape": r"printf '\033[2J1.0'",
    }
    entries = [SoftwareSettings(key=key, command=line) for key, line in commands.items()]
    found = software(Node(root=str(tmp_path)), errors, *entries)
    assert found == {"ok": ("", "5.36.0"), "binary": ("", "\ufffd\ufffd")}
    kinds = [type(error) for error in errors[:4]]
    assert kinds == [UnparsableError, ProgramError, NotHereError, UnparsableError]


def test_of_equal_keys_the_configured_one_counts_then_the_first(tmp_path: Path) -> None:
    files = {"usr/local/cuda/version.json": json.dumps(CUDA), "a": "1\n", "b": "2\n"}
    first, second = (SoftwareSettings(key="cuda", file=file) for file in "ab")
    assert software(tree(tmp_path, files), [], first, second)["cuda"] == ("", "1")


def test_an_empty_root_is_not_looked_at(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"version.json": json.dumps(CUDA), ".info/version": "1\n"})
    found = read_software(node, (), cuda_root="", rocm_root="", time_limit=5.0, errors=errors)
    assert found == []
    assert errors == []


def test_long_texts_are_cut() -> None:
    entry = make_version("k" * 300, "n" * 300, " " + "v" * 300)
    assert entry == SysinfoSoftwareVersion(key="k" * 200, name="n" * 200, version="v" * 200)


@given(st.text(), st.text(), st.text())
def test_an_entry_is_printable_or_unparsable(key: str, name: str, version: str) -> None:
    try:
        entry = make_version(key, name, version)
    except UnparsableError:
        return
    for text in (entry.key, entry.name, entry.version):
        assert text.isprintable()
        assert len(text) <= 200
    assert entry.key
    assert entry.version


@given(st.binary())
def test_the_first_line_is_one_line(content: bytes) -> None:
    line = parse_first_line(content)
    assert line == line.strip()
    assert len(line.splitlines()) <= 1


def drawing(command: str, errors: list[CcagentError]) -> str:
    node = Node(hostname="n1", cluster="c1")
    return read_drawing(
        node, split_command(command), time_limit=5.0, size_limit=1000, errors=errors
    )


def test_a_command_is_split_as_a_shell_would_but_there_is_no_shell() -> None:
    assert split_command("lstopo --of 'an svg' $HOME") == ["lstopo", "--of", "an svg", "$HOME"]
    assert split_command(" ") == []


@given(st.text())
def test_a_command_is_split_or_refused(command: str) -> None:
    try:
        words = split_command(command)
    except ValueError:
        return
    assert all("\0" not in word for word in words)


def test_output_is_sent_in_standard_base64() -> None:
    errors: list[CcagentError] = []
    assert drawing(r"printf '\373\377\376a'", errors) == "+//+YQ=="
    assert base64.b64decode(drawing("printf <svg/>", errors), validate=True) == b"<svg/>"
    assert errors == []


@pytest.mark.parametrize("command", ["", "  ", "true"])
def test_without_a_command_or_output_there_is_no_drawing(command: str) -> None:
    errors: list[CcagentError] = []
    assert drawing(command, errors) == ""
    assert errors == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program-of-ccagent", "no-such-program-of-ccagent: no such program"),
        ("sh -c 'echo half; echo no GPU >&2; exit 3'", "sh: exit status 3: no GPU"),
        ("head -c 1001 /dev/zero", "head: printed more than 1000 bytes"),
    ],
)
def test_a_command_that_fails_gives_no_drawing_and_a_reason(command: str, reason: str) -> None:
    errors: list[CcagentError] = []
    assert drawing(command, errors) == ""
    assert [(type(error), str(error)) for error in errors] == [(ProgramError, reason)]
