"""Commands of the Python that runs ccagent: to start it, and to install a library for it."""

from __future__ import annotations

import os
import sys

PACKAGED = "/usr/lib/ccagent"
"""Directory of packages for ccagent with its modules."""

ADDED = "/usr/local/lib/ccagent"
"""Directory in which the packaged ccagent finds libraries that a site adds."""


def install_command(library: str) -> str:
    """Return the command that installs a Python library for this ccagent."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    target = f"--target {ADDED} " if home == PACKAGED else ""
    return f"{sys.executable or 'python3'} -m pip install {target}{library}"


def python(program: str) -> list[str]:
    """Return the command that runs the text of a program; arguments may follow.

    It runs isolated (-I) with the import path of this process: the interpreter may have been
    started with a path of its own, without the system's packages (-S) or unable to write (-B).
    """
    path = [entry for entry in sys.path if entry]
    flags = ["-I"]
    if sys.flags.no_site:
        flags.append("-S")
    if sys.dont_write_bytecode:
        flags.append("-B")
    text = f"import sys; sys.path[:] = {path!r}; {program}"
    return [sys.executable or "python3", *flags, "-c", text]
