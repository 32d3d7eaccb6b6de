"""JSON encoding of structures, without values that JSON readers refuse."""

from __future__ import annotations

import re

import msgspec

from ccagent.errors import EncodingError

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
    if body and not _is_suspect(body, has_null=has_null):
        return body, []
    from ccagent.records.json_repair import repair_json

    return repair_json(value, has_null=has_null)


def _is_suspect(body: bytes, *, has_null: bool) -> bool:
    """Return whether JSON may contain a number that readers refuse."""
    # Searches for fixed bytes come first: a regular expression costs as much as the encoding.
    if not has_null and b'":null' in body and _NULL_FIELD.search(body):
        return True  # msgspec writes null for NaN and infinity
    return _LONG in body.translate(_DIGITS) and _LONG_NUMBER.search(body) is not None
