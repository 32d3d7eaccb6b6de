"""The lines of a TOML file: the line of each key, and all invalid lines.

tomllib reports only the line of the first error. It has no lines for keys whose values are refused
later.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 20
"""Maximum number of errors to find in a file."""

_KEY = re.compile(r"""[ \t]*("(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*(\.?)""")
_TOKEN = re.compile(
    r'''(?P<text>"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')'''
    r"|(?P<comment>\#[^\n]*)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>\n)"
    r"""|[^"'\#\[\]{}\n]+|.""",
    re.DOTALL,
)
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


class Statement(NamedTuple):
    """A key or the header of a table: its full name, and its first line.

    Elements of an array of tables have their number after its name: `software[1]`.
    """

    key: tuple[str, ...]
    line: int


class ParsedToml(NamedTuple):
    """The valid part of a TOML file.

    table: None if an error concerns more than single statements. errors: line and reason; line 0 if
    unknown. left_out: the keys of these errors.
    """

    table: dict[str, Any] | None
    errors: list[tuple[int, str]]
    left_out: set[tuple[str, ...]]


def parse_leniently(text: str) -> ParsedToml:
    """Parse TOML. An invalid statement of one line is added to the errors and omitted.

    Raise RecursionError.
    """
    errors: list[tuple[int, str]] = []
    left_out: set[tuple[str, ...]] = set()
    while True:
        try:
            return ParsedToml(tomllib.loads(text), errors, left_out)
        except (
            ValueError
        ) as error:  # TOMLDecodeError, or a number with more digits than Python accepts
            place = _PLACE.search(str(error))
            line = int(place[1]) if place is not None else _find_broken(text)
            reason = str(error).partition(" (at ")[0] + _hint(text, line)
            errors.append((line, f"{reason} (column {place[2]})" if place is not None else reason))
        key = _key_of(text, line)
        if key is None or len(errors) == _MOST:
            return ParsedToml(None, errors, left_out)
        left_out.add(key)
        lines = text.split("\n")
        lines[line - 1] = ""
        text = "\n".join(lines)


def list_statements(text: str) -> Iterator[Statement]:
    """Yield the keys and headers of a file in their order. Skip lines that are not TOML."""
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    position, line = 0, 1
    while True:
        begin = position
        blank = _BLANK.match(text, position)
        position = blank.end() if blank is not None else position
        line += text.count("\n", begin, position)
        if position >= len(text):
            return
        is_array = text.startswith("[[", position)
        is_header = text.startswith("[", position)
        begin = position
        parts, position = _read_key(text, position + is_header + is_array)
        if is_header and parts:
            table = _number(parts, counts, is_array=is_array)
            yield Statement(table, line)
        elif parts and text.startswith("=", position):
            yield Statement((*table, *parts), line)
        position = _end_of_statement(text, position)
        line += text.count("\n", begin, position)


def _read_key(text: str, position: int) -> tuple[tuple[str, ...], int]:
    """Return the parts of a dotted key, and the position of its end."""
    parts: list[str] = []
    while (match := _KEY.match(text, position)) is not None:
        parts.append(_unquote(match[1]))
        position = match.end()
        if not match[2]:
            break
    return tuple(parts), position


def _unquote(part: str) -> str:
    if part[0] not in "\"'":
        return part
    try:
        return str(tomllib.loads(f"key = {part}")["key"])
    except ValueError:
        return part


def _number(
    parts: tuple[str, ...], counts: dict[tuple[str, ...], int], *, is_array: bool
) -> tuple[str, ...]:
    """Return the name of a table, with the numbers of array elements in it."""
    if is_array:
        counts[parts] = counts.get(parts, -1) + 1
    named: list[str] = []
    for end, part in enumerate(parts, 1):
        number = counts.get(parts[:end])
        named.append(part if number is None else f"{part}[{number}]")
    return tuple(named)


def _end_of_statement(text: str, position: int) -> int:
    """Return the position of the line after a statement of one or more lines."""
    depth = 0
    for match in _TOKEN.finditer(text, position):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
        elif match["end"] and depth <= 0:
            return match.end()
    return len(text)


def _find_broken(text: str) -> int:
    """Return the line of the first statement that makes the text up to it invalid TOML."""
    lines = text.split("\n")
    begins = sorted({statement.line for statement in list_statements(text)})

    def is_broken(end: int) -> bool:
        try:
            tomllib.loads("\n".join(lines[: end - 1]))
        except ValueError:
            return True
        return False

    return begins[max(0, bisect_left([*begins[1:]], True, key=is_broken))] if begins else 0


def _key_of(text: str, line: int) -> tuple[str, ...] | None:
    """Return the key of a line, if the line is a whole statement."""
    found = [statement for statement in list_statements(text) if statement.line == line]
    if len(found) != 1:
        return None
    content = text.split("\n")[line - 1].lstrip()
    value = content.partition("=")[2].lstrip()
    if content.startswith("[") or value.startswith(("[", "{", '"""', "'''")):
        return None
    return found[0].key


def _hint(text: str, line: int) -> str:
    """Return a hint for a common mistake in a value."""
    lines = text.split("\n")
    value = lines[line - 1].partition("=")[2].strip() if 0 < line <= len(lines) else ""
    if value.startswith(("$", "env:")):
        return f": {NO_VARIABLES}"
    if value[:1].isalpha() or value[:1] == "/":
        return ": a string stands in quotes"
    return ""


NO_VARIABLES = (
    "there are no variables in the configuration; a secret is read from a file, "
    "such as password-file = '/etc/ccagent/password' or 'credential:NAME' of systemd"
)
