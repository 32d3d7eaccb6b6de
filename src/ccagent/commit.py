"""The version of this ccagent with its commit, also in a checkout.

packaging/version.py runs this file separately. It does not need `git`.
"""

from __future__ import annotations

import os
import re

_ABBREVIATED = 12
_FULL = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def version() -> str:
    """Return the version. That of a checkout, which no build has written, has the commit added."""
    from ccagent import __version__

    source, name = os.path.split(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = commit_of(source) if name == "src" and __version__.endswith(".dev0") else ""
    return __version__ + (f"+g{found}" if found else "")


def commit_of(directory: str) -> str:
    """Return the abbreviated checked-out commit of a git working tree, or an empty string.

    Source: gitrepository-layout(5).
    """
    repository = os.path.join(directory, ".git")
    if os.path.isfile(repository):
        repository = os.path.join(directory, _first_line(repository).removeprefix("gitdir: "))
    head = _first_line(os.path.join(repository, "HEAD"))
    reference = head.removeprefix("ref: ")
    if reference != head:
        common = os.path.join(repository, _first_line(os.path.join(repository, "commondir")))
        head = _first_line(os.path.join(common, reference)) or _read_packed(common, reference)
    return head[:_ABBREVIATED] if _FULL.fullmatch(head) else ""


def _read_packed(repository: str, reference: str) -> str:
    for line in _text(os.path.join(repository, "packed-refs")).splitlines():
        found, _, name = line.partition(" ")
        if name == reference:
            return found
    return ""


def _first_line(path: str) -> str:
    return _text(path).partition("\n")[0].strip()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
