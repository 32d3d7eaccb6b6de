"""Parser and writer of Slurm's node lists and of their elements, the NodeRanges.

A NodeRange is a host name with brackets for numbers: `c[1-3,5]-[2-4].fox`. Slurm prints brackets
only at the end of a name. The specification allows them anywhere.
"""

from __future__ import annotations

import re
from itertools import pairwise, permutations, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


LARGEST = 100_000
"""Maximum number of hosts in one list. A Slurm cluster has at most 65,536 nodes."""

_NOTHING = frozenset({"", "(null)", "None assigned"})
LONGEST_NAME = 255
MOST_BRACKETS = 8
MOST_DIGITS = 18

# Possessive quantifiers do not backtrack: the time is linear in the length of the text. The group
# is not possessive: Python before 3.11.5 continues in the middle of a failed one (gh-106052).
_RANGE = re.compile(r"(?:[A-Za-z0-9._-]++|\[[0-9,-]++\])+")
_INSIDE = re.compile(r"[0-9,-]*+")


class _Run(NamedTuple):
    """The numbers `first` to `last`, each with `width` digits."""

    width: int
    first: int
    last: int


class _Brackets(NamedTuple):
    """The text between brackets, and its numbers in the same order."""

    text: str
    runs: list[_Run]

    def size(self) -> int:
        return sum(run.last - run.first + 1 for run in self.runs)

    def numbers(self) -> list[str]:
        return [
            f"{number:0{run.width}d}"
            for run in self.runs
            for number in range(run.first, run.last + 1)
        ]


class _NodeRange(NamedTuple):
    """Texts with brackets between them: n + 1 texts for n brackets."""

    texts: list[str]
    brackets: list[_Brackets]

    def text(self) -> str:
        parts = [self.texts[0]]
        for brackets, text in zip(self.brackets, self.texts[1:], strict=True):
            parts += (f"[{brackets.text}]", text)
        return "".join(parts)

    def size(self) -> int:
        return prod(brackets.size() for brackets in self.brackets)

    def longest(self) -> int:
        """Return the number of characters of the longest name."""
        widths = (max(run.width for run in brackets.runs) for brackets in self.brackets)
        return sum(map(len, self.texts)) + sum(widths)

    def names(self) -> Iterator[str]:
        parts = [[self.texts[0]]]
        for brackets, text in zip(self.brackets, self.texts[1:], strict=True):
            parts += (brackets.numbers(), [text])
        return map("".join, product(*parts))


def split(text: str, limit: int = LARGEST) -> list[str]:
    """Split a node list at the commas outside brackets. Return valid NodeRanges in their order.

    Slurm prints an empty text, `(null)` or `None assigned` for no nodes: the result is an empty
    list. Slurm also prints ranges beyond their padding: `n[08-120]` becomes `n[08-99,100-120]`.

    Raise UnparsableError if any range is invalid, or for more than `limit` hosts. In a valid range
    the first number is not greater than the last. Both have the same number of digits if either has
    leading zeros. No number is repeated. Names have at most 255 characters: letters, digits, `.`,
    `_` and `-`.
    """
    return [node_range.text() for node_range in _parse(text, limit)]


def expand(text: str, limit: int = LARGEST) -> list[str]:
    """List the host names of a node list in their order, including repetitions.

    The last of several brackets changes fastest. Raise UnparsableError as `split` does.
    """
    names: list[str] = []
    for node_range in _parse(text, limit):
        names += node_range.names()
    return names


def _parse(text: str, limit: int) -> Iterator[_NodeRange]:
    text = text.strip()
    if text in _NOTHING:
        return
    start = 0
    while start <= len(text):
        try:
            end = _find_end(text, start)
            node_range = _parse_range(text[start:end], limit)
        except UnparsableError as error:
            part = text[start : start + 80]
            raise UnparsableError(f"not a list of host ranges at {part!r}: {error}") from error
        yield node_range
        start, limit = end + 1, limit - node_range.size()


def _find_end(text: str, start: int) -> int:
    """Return the position of the comma, or of the end of the text, after the range at `start`."""
    match = _RANGE.match(text, start)
    end = match.end() if match else start
    if match is None or text[end : end + 1] not in {"", ","}:
        raise UnparsableError(_fault(text, end))
    return end


def _fault(text: str, position: int) -> str:
    """Return the reason why the character at `position` is invalid in the range."""
    character = text[position : position + 1]
    if character in {"", ","}:
        return "a host name is missing"
    if character == "]":
        return "] without ["
    if character != "[":
        return f"{character!r} in a host name"
    inside = _INSIDE.match(text, position + 1)
    end = inside.end() if inside else position + 1
    character = text[end : end + 1]
    if not character:
        return "[ without ]"
    return "nothing in brackets" if character == "]" else f"{character!r} in brackets"


def _parse_range(text: str, limit: int) -> _NodeRange:
    if text.count("[") > MOST_BRACKETS:
        raise UnparsableError("too many brackets")
    parts = re.split(r"[][]", text)
    node_range = _NodeRange(parts[::2], [_parse_brackets(part, limit) for part in parts[1::2]])
    if node_range.longest() > LONGEST_NAME:
        raise UnparsableError("a host name is too long")
    if node_range.size() > limit:
        raise UnparsableError("too many hosts")
    return node_range


def _parse_brackets(text: str, limit: int) -> _Brackets:
    if text.count(",") >= limit:
        raise UnparsableError("too many hosts")
    pairs = [pair for item in text.split(",") for pair in _parse_item(item)]
    runs: list[_Run] = []
    for first, last in pairs:
        runs += _runs(first, last)
        # Two pairs that both contain 9 and 10, or 99 and 100, have these numbers in common.
        if len(runs) > len(pairs) + MOST_DIGITS:
            raise UnparsableError("repeated numbers")
    for one, next_one in pairwise(sorted(runs)):
        if one.width == next_one.width and one.last >= next_one.first:
            raise UnparsableError("repeated numbers")
    return _Brackets(",".join(write_item(first, last) for first, last in pairs), runs)


def _parse_item(item: str) -> Iterator[tuple[str, str]]:
    """Yield the first and last number of an item; two pairs if it exceeds its padding."""
    first, dash, last = item.partition("-")
    if not dash:
        last = first
    if not first.isdigit() or not last.isdigit():
        raise UnparsableError("neither a number nor a range in brackets")
    if max(len(first), len(last)) > MOST_DIGITS:
        raise UnparsableError("a number is too long")
    if int(first) > int(last):
        raise UnparsableError("the first number is greater than the last")
    if len(first) > len(last) or (len(first) < len(last) and is_padded(last)):
        raise UnparsableError("leading zeros of different width")
    if len(first) < len(last) and is_padded(first):
        yield first, "9" * len(first)
        first = "1" + "0" * len(first)
    yield first, last


def _runs(first: str, last: str) -> Iterator[_Run]:
    low, high = int(first), int(last)
    for width in range(len(first), len(last) + 1):
        yield _Run(width, low, min(high, 10**width - 1))
        low = 10**width


def write_item(first: str, last: str) -> str:
    """Return an item of brackets, `3` or `3-7`."""
    return first if first == last else f"{first}-{last}"


def is_padded(number: str) -> bool:
    """Return whether a number has leading zeros."""
    return len(number) > 1 and number.startswith("0")


_MOST_ORDERED_FIELDS = 3
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
_NUMBER = re.compile(rf"(?<![0-9])([0-9]{{1,{MOST_DIGITS}}})(?![0-9])")


def compact(names: Iterable[str]) -> list[str]:
    """Return few NodeRanges for exactly these names, each name once, in natural order.

    The result depends only on the set of names. A number is written with its leading zeros: `c9`,
    `c08`, `c10` are `c[08,10,9]`. A range has several brackets if all combinations of their numbers
    are among the names. If no full product results, a shorter list may exist.

    Raise UnparsableError if a name is not a host name.
    """
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in set(names):
        texts, numbers = _split_name(name)
        groups.setdefault(texts, []).append(numbers)
    ranges = [
        "".join(part for pair in zip(texts, (*fields, ""), strict=True) for part in pair)
        for texts, rows in groups.items()
        for fields in _cover(rows)
    ]
    return sorted(ranges, key=_natural_order)


def _split_name(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a host name into texts and the numbers between them; only the last numbers if many.

    Numbers that are too long for brackets are text.
    """
    if not _NAME.fullmatch(name):
        raise UnparsableError(f"not a host name: {name[:80]!r}")
    parts = _NUMBER.split(name)
    surplus = max(0, len(parts) - 2 * MOST_BRACKETS)
    parts[:surplus] = ["".join(parts[:surplus])] if surplus else []
    return tuple(parts[::2]), tuple(parts[1::2])


def _cover(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Cover distinct rows of numbers with full products. Return the shortest of several tries."""
    varying = [index for index, field in enumerate(zip(*rows, strict=True)) if len(set(field)) > 1]
    varying.reverse()
    orders: Iterable[Sequence[int]] = (varying, varying[::-1])
    if len(varying) <= _MOST_ORDERED_FIELDS:
        orders = permutations(varying)
    return min((_merge(rows, order) for order in orders), key=len)


def _merge(rows: list[tuple[str, ...]], order: Sequence[int]) -> list[tuple[str, ...]]:
    """Merge, field by field, the rows that differ only in this field."""
    for index in order:
        merged: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            merged.setdefault(row[:index] + row[index + 1 :], []).append(row[index])
        rows = [
            (*others[:index], _write_numbers(numbers), *others[index:])
            for others, numbers in merged.items()
        ]
    return rows


def _write_numbers(numbers: list[str]) -> str:
    """Return distinct numbers as text, in brackets if there are several."""
    if len(numbers) == 1:
        return numbers[0]
    padded = {len(number) for number in numbers if is_padded(number)}
    # Numbers of a width with leading zeros are a group of their own: 8, 08, 9 are not 8-9.
    groups: dict[int, list[str]] = {}
    for number in sorted(numbers, key=lambda number: (int(number), number)):
        width = len(number) if len(number) in padded else 0
        groups.setdefault(width, []).append(number)
    return f"[{','.join(item for group in groups.values() for item in _write_runs(group))}]"


def _write_runs(numbers: list[str]) -> list[str]:
    """Return the items for ascending numbers, all of one width or all without leading zeros."""
    items: list[str] = []
    first = numbers[0]
    for number, following in pairwise([*numbers, ""]):
        if not following or int(following) != int(number) + 1:
            items.append(write_item(first, number))
            first = following
    return items


def _natural_order(text: str) -> tuple[list[str | int], int, str]:
    """Return a sort key: the first name of a range, in numeric order, less padding first."""
    name = re.sub(r"\[([0-9]+)[^]]*\]", r"\1", text)
    parts: list[str | int] = [*re.split(r"([0-9]+)", name)]
    parts[1::2] = [int(part) for part in parts[1::2]]
    return parts, len(name), text
