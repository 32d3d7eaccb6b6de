"""JSON of records, checked for what its readers can't take."""

from __future__ import annotations

import re

import msgspec

from ccagent.errors import EncodingError

_encode = msgspec.json.Encoder().encode

_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0 for byte in range(256))
_LONG = b"0" * 20
"""Numbers of 64 bits have 20 digits at most, as `translate` with _DIGITS shows them."""
_LONG_NUMBER = re.compile(rb'(?:[^\\]":|[\[,])-?[0-9]{20}')
_NULL_FIELD = re.compile(rb'[^\\]":null[,}]')
"""A field without a number: text has a backslash before its quotation marks."""


def encode_json(value: object, *, has_null: bool = False) -> tuple[bytes, list[str]]:
    """Encode a structure; return it with a phrase for each part that had to be left out.

    Readers have numbers of 64 bits at most. Raises EncodingError.

    has_null: the structure may hold None, NaN and infinity, which are null.
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
    # Searches for fixed bytes come first: a regular expression costs as much as the encoding.
    if not has_null and b'":null' in body and _NULL_FIELD.search(body):
        return True  # msgspec writes null for NaN and infinity
    return _LONG in body.translate(_DIGITS) and _LONG_NUMBER.search(body) is not None
