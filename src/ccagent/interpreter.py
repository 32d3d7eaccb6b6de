"""Starting Python again, for what needs a process of its own."""

from __future__ import annotations

import sys


def python(program: str) -> list[str]:
    """Give the command that runs the text of a program; arguments may follow.

    It runs isolated (-I) and imports from where this process does: the interpreter may have been
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
