"""Commands of ccagent's Python interpreter: start a program, install a library."""

from __future__ import annotations

import os
import sys

PACKAGED = "/usr/lib/ccagent"
"""Module directory of the packaged ccagent."""

ADDED = "/usr/local/lib/ccagent"
"""Directory for additional libraries of the packaged ccagent."""


def install_command(library: str) -> str:
    """Return the command that installs a Python library for this ccagent."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    target = f"--target {ADDED} " if home == PACKAGED else ""
    return f"{sys.executable or 'python3'} -m pip install {target}{library}"


def python(program: str) -> list[str]:
    """Return the command that runs the text of a program. Arguments may be appended.

    The program runs isolated (-I) with the import path of this process. The options -S and -B of
    this process are kept.
    """
    path = [entry for entry in sys.path if entry]
    flags = ["-I"]
    if sys.flags.no_site:
        flags.append("-S")
    if sys.dont_write_bytecode:
        flags.append("-B")
    text = f"import sys; sys.path[:] = {path!r}; {program}"
    return [sys.executable or "python3", *flags, "-c", text]
