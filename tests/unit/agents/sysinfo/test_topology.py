"""sysinfo, topology: what commands print, in base64."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sysinfo.software import read_drawing, split_command
from ccagent.errors import CcagentError, ProgramError
from ccagent.machine.node import Node


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
