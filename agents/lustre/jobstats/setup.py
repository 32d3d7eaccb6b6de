"""Jobstats parameters of this node: from files, and from lctl if there is no file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

INTERVAL, STATS = _OF_TARGET = ("job_cleanup_interval", "job_stats")
"""Parameters of each target."""

_OF_NODE = ("jobid_var", "jobid_name", "jobid_this_session")
_PLACES = ("sys/fs/lustre", "proc/fs/lustre", "proc/sys/lustre")
_TYPES = ("mdt", "obdfilter")
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_LARGEST_FILE = 4096
_LARGEST_OUTPUT = 1024 * 1024
_LONGEST_VALUE = 100
_VARIABLE = ("", "jobid_var")

_Found = dict[tuple[str, str], str | None]


class JobstatsSetting(NamedTuple):
    """A parameter. target: `mdt.fs-MDT0000`, empty for a parameter of the node.

    value: None if unknown. The value of an existing `job_stats` is empty.
    """

    name: str
    target: str
    value: str | None


def parse_settings(content: bytes) -> list[JobstatsSetting]:
    """Parse the output of `lctl get_param`, with any other parameters; the last value counts.

    A bare `mdt.fs-MDT0000.job_stats` comes from `lctl get_param -N`.
    """
    found: _Found = {}
    waiting: tuple[str, str] | None = None
    for line in content.decode("utf-8", "backslashreplace").split("\n"):
        name, equals, value = line.partition("=")
        key = _key(name.strip())
        if key is not None and (equals or key[1] == STATS):
            found[key] = "" if key[1] == STATS else _value(value)
            waiting = None if found[key] or key[1] == STATS else key
        elif waiting is not None and line.strip():
            # lctl prints a value on a separate line if it doesn't fit into 80 columns.
            if not equals and not line.startswith("error:"):
                found[waiting] = _value(line)
            waiting = None
    return _settings(found)


def read_settings(node: Node, lctl: str, time_limit: float) -> list[JobstatsSetting]:
    """Read the parameters from /sys and /proc, and missing ones through `lctl`.

    time_limit: seconds for all queries together. Without Lustre the list is empty.
    """
    found = _from_files(node)
    deadline = node.clock.monotonic() + time_limit
    for arguments in _missing(found):
        left = deadline - node.clock.monotonic()
        printed = _run(node, [lctl, "get_param", *arguments], left) if left > 0 else None
        if printed is None:
            break
        _add(found, _VARIABLE, None)
        for name, target, value in parse_settings(printed):
            _add(found, (target, name), value)
    for target in {target for target, _ in found if target}:
        for name in _OF_TARGET:
            _add(found, (target, name), None)
    return _settings(found)


def _key(name: str) -> tuple[str, str] | None:
    """Return target and name of a Jobstats parameter; None for another parameter."""
    kind, _, rest = name.partition(".")
    target, _, parameter = rest.partition(".")
    if kind in _TYPES and parameter in _OF_TARGET and _TARGET.fullmatch(target):
        return f"{kind}.{target}", parameter
    return ("", name) if name in _OF_NODE else None


def _value(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return printable(text[:_LONGEST_VALUE])


def printable(text: str) -> str:
    """Return a text for a terminal, with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _settings(found: _Found) -> list[JobstatsSetting]:
    return [JobstatsSetting(name, target, value) for (target, name), value in sorted(found.items())]


def _from_files(node: Node) -> _Found:
    found: _Found = {}
    for place in _PLACES:
        if _list(node, place) is None:
            continue
        for name in _OF_NODE:
            _add(found, ("", name), _read(node, f"{place}/{name}"))
        # Later versions have the interval below /sys; job_stats is still below /proc.
        for kind in _TYPES:
            for target in filter(_TARGET.fullmatch, _list(node, f"{place}/{kind}") or []):
                directory, key = f"{place}/{kind}/{target}", f"{kind}.{target}"
                names = _list(node, directory)
                if names is not None:
                    _add(found, (key, INTERVAL), _read(node, f"{directory}/{INTERVAL}"))
                    _add(found, (key, STATS), "" if STATS in names else None)
    return found


def _add(found: _Found, key: tuple[str, str], value: str | None) -> None:
    if found.get(key) is None:
        found[key] = value


def _list(node: Node, path: str) -> list[str] | None:
    """Return the names in a directory; None if there is none."""
    try:
        return node.list(path)
    except NotHereError:
        return None
    except CcagentError:
        return []


def _read(node: Node, path: str) -> str | None:
    try:
        content = node.read(path, _LARGEST_FILE)
    except CcagentError:
        return None
    return _value(content.decode("utf-8", "backslashreplace"))


def _missing(found: _Found) -> Iterator[list[str]]:
    """Yield the lctl arguments for parameters without a file.

    One parameter at a time: a version that lacks one fails, and may not print the rest.
    """
    yield from ([name] for name in _OF_NODE if found.get(("", name)) is None)
    of_targets = [value for (target, _), value in found.items() if target]
    if not of_targets or None in of_targets:
        yield from ([f"{kind}.*.{INTERVAL}"] for kind in _TYPES)
        yield from (["-N", f"{kind}.*.{STATS}"] for kind in _TYPES)


def _run(node: Node, command: list[str], time_limit: float) -> bytes | None:
    """Return the output of a program, up to a failure; None if the program is missing."""
    printed = bytearray()
    try:
        for part in node.stream(command, time_limit=time_limit, output_limit=_LARGEST_OUTPUT):
            printed += part
    except NotHereError:
        return None
    except CcagentError:
        pass
    return bytes(printed)
