"""JSON encoding of records, without values that JSON readers refuse.

What can't be encoded is omitted: the rest of a record is repaired.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, cast

import msgspec

from ccagent.errors import EncodingError
from ccagent.records.message import JsonRecord

_encode = msgspec.json.Encoder().encode

_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0 for byte in range(256))
_LONG = b"0" * 20
"""A number of 20 digits, the maximum of 64 bits, after `translate` with _DIGITS."""
_LONG_NUMBER = re.compile(rb'(?:[^\\]":|[\[,])-?[0-9]{20}')
_NULL_FIELD = re.compile(rb'[^\\]":null[,}]')
"""A field without a number: text has a backslash before its quotation marks."""


def encode_value(value: object, *, has_null: bool = False) -> tuple[bytes, list[str]]:
    """Return the JSON of a structure, and a phrase for each omitted part.

    has_null: None, NaN and infinity are written as null; otherwise they are omitted. Numbers of
    more than 64 bits are omitted. Raise EncodingError if nothing can be encoded.
    """
    try:
        body = _encode(value)
    except (OverflowError, UnicodeEncodeError):
        body = b""
    except (TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise EncodingError(str(error)) from error
    # Searches for fixed bytes come first: a regular expression costs as much as the encoding.
    # msgspec writes null for NaN and infinity.
    has_bad_null = not has_null and b'":null' in body and _NULL_FIELD.search(body)
    if body and not (
        has_bad_null or (_LONG in body.translate(_DIGITS) and _LONG_NUMBER.search(body))
    ):
        return body, []
    return repair_json(value, has_null=has_null)


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


class JsonArray(JsonRecord, frozen=True):
    """An array. kind: the kind of its message. items: the objects."""

    kind: str
    items: list[dict[str, str | int | float | bool | None]]

    def label(self) -> str:
        """Return the array's name in the log."""
        return f"a part of {self.kind}"

    def encode_json(self) -> tuple[str, bytes, list[str]]:
        """Return kind and JSON of the message, and a phrase for each omitted part."""
        body, lost = encode_value(self.items, has_null=True)
        return self.kind, body, lost


class Structure(
    msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Base class of all parts of an envelope."""


class KVPair(Structure, frozen=True, kw_only=True):
    """An attribute in `meta.attrs`: a unique key and its value."""

    key: str
    value: str = ""


class MetadataObject(Structure, frozen=True, kw_only=True):
    """The producer of the envelope. Consumers accept only `producer` and `version` by default."""

    producer: str
    version: str
    format: int | None = None
    attrs: list[KVPair] = []
    token: str = ""


class ErrorObject(Structure, frozen=True, kw_only=True):
    """One error. detail: a sentence. time: Timestamp of the error."""

    time: str
    detail: str
    cluster: str = ""
    node: str = ""


class Envelope(
    JsonRecord, omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Base class of all envelopes. kind: the kind of its message."""

    kind: ClassVar[str]
    is_envelope: ClassVar[bool] = True

    meta: MetadataObject
    data: Structure | None = None
    errors: list[ErrorObject] = []

    def label(self) -> str:
        """Return the envelope's name in the log."""
        return f"a part of {self.kind}"

    def encode_json(self) -> tuple[str, bytes, list[str]]:
        """Return kind and JSON of the message, and a phrase for each omitted part."""
        body, lost = encode_value(self)
        return self.kind, body, lost
