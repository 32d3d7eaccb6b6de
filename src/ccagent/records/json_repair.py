"""Repair of structures that can't be encoded as JSON, or that JSON readers refuse."""

from __future__ import annotations

import math
import re
from typing import Any, cast

import msgspec

from ccagent.errors import EncodingError

_SURROGATES = re.compile("[\ud800-\udfff]")
_LARGEST = 2**64 - 1
_SMALLEST = -(2**63)
_NAMES = ("job", "job_id", "pid", "cmd", "name", "uuid")
_SHOWN = 40


class _BadNumberError(Exception):
    """A number that can't be encoded. This module catches it."""


def repair_json(value: object, *, has_null: bool) -> tuple[bytes, list[str]]:
    """Return the JSON of the encodable parts, and a phrase for each omitted part.

    If a number can't be encoded, the object that contains it is omitted if it is an element of a
    list, else only the field. Surrogates in text become U+FFFD. Raise EncodingError if nothing can
    be encoded.
    """
    repair = _Repair(has_null=has_null)
    try:
        parts = msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))
        return msgspec.json.encode(repair.repair(parts)), repair.lost
    except (_BadNumberError, TypeError, RecursionError, ValueError, OverflowError) as error:
        raise EncodingError(str(error)) from error


class _Repair:
    """One repair. lost: a phrase for each omitted part."""

    def __init__(self, *, has_null: bool) -> None:
        self._has_null = has_null
        self.lost: list[str] = []

    def repair(self, value: object) -> object:
        """Return an encodable value. Raise _BadNumberError for a number that must be omitted."""
        if isinstance(value, str):
            return _SURROGATES.sub("\ufffd", value)
        if isinstance(value, dict):
            return self._fields(cast("dict[str, Any]", value), is_element=False)
        if isinstance(value, list):
            return self._elements(cast("list[object]", value))
        if isinstance(value, float) and not math.isfinite(value) and not self._has_null:
            raise _BadNumberError(f"{value} is not a number in JSON")
        if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
            raise _BadNumberError(f"a number of {value.bit_length()} bits")
        return value

    def _fields(self, fields: dict[str, Any], *, is_element: bool) -> dict[str, object]:
        kept: dict[str, object] = {}
        for key, value in fields.items():
            try:
                kept[_SURROGATES.sub("\ufffd", key)] = self.repair(value)
            except _BadNumberError as error:
                if is_element:
                    raise _BadNumberError(f"{key}: {error}") from error
                self.lost.append(f"{key}: {error}")
        return kept

    def _elements(self, items: list[object]) -> list[object]:
        kept: list[object] = []
        for item in items:
            if not isinstance(item, dict):
                # Numbers in a list have a meaning by position: none may be omitted.
                kept.append(self.repair(item))
                continue
            fields = cast("dict[str, Any]", item)
            try:
                kept.append(self._fields(fields, is_element=True))
            except _BadNumberError as error:
                names = [f"{key} {ascii(fields[key])[:_SHOWN]}" for key in _NAMES if key in fields]
                self.lost.append(f"{' '.join(names) or 'an element'}: {error}")
        return kept
