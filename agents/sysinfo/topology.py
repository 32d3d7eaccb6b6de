"""Drawings of the machine's topology by programs such as lstopo of hwloc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, ProgramError

if TYPE_CHECKING:
    from ccagent.machine.node import Node


def split_command(command: str) -> list[str]:
    """Split a configured command into words like a shell; empty for none.

    Raise ValueError with the reason if that is impossible.
    """
    if not command:
        return []
    if "\0" in command:
        raise ValueError(f"{command!r} can't be split into words: it holds the character NUL")
    import shlex

    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} can't be split into words: {error}") from error


def read_drawing(
    node: Node,
    command: list[str],
    *,
    time_limit: float,
    size_limit: int,
    errors: list[CcagentError],
) -> str:
    """Run a command and return its output in base64 (RFC 4648, section 4).

    Return an empty text without command or output. Also return an empty text, and add to `errors`,
    if the program is missing, fails, exceeds `time_limit` seconds or prints more than `size_limit`
    bytes.
    """
    if not command:
        return ""
    try:
        output = node.run(command, time_limit=time_limit, output_limit=size_limit)
    except CcagentError as error:
        # A configured program should exist, so a missing one is a failure, too.
        errors.append(ProgramError(str(error)))
        return ""
    import base64

    return base64.b64encode(output).decode("ascii")
