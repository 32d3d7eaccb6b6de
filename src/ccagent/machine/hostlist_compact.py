"""Short NodeRanges for many host names, the reverse of `ccagent.machine.hostlist`."""

from __future__ import annotations

import re
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import (
    LONGEST_NAME,
    MOST_BRACKETS,
    MOST_DIGITS,
    is_padded,
    write_item,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
