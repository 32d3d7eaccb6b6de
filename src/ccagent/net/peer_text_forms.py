"""Decoded forms of a text: escapes and encodings, in any order."""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LAYERS = 3
_MOST_FORMS = 200
_BACKSLASHED = re.compile(
    r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})"
    r"|([0-3][0-7]{2})|(.))",
    re.DOTALL,
)
_QUOTED_PRINTABLE = re.compile(r"=([0-9a-fA-F]{2})|=\r?\n")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{6,}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){4,}")
_NUMBERS = re.compile(r"\d{1,3}(?:[\s,;]+\d{1,3}){3,}")
_BETWEEN_HEX = re.compile(r"0x|\\x|[\s:,;-]")
_LAST_CHARACTER = 0x10FFFF
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def decode_all(text: str) -> Iterator[str]:
    """Return every decoded form of a text, layer by layer."""
    seen = {text}
    layer = [text]
    yield text
    for _ in range(_LAYERS):
        after: list[str] = []
        for form in layer:
            for decode in _DECODERS:
                for decoded in decode(form):
                    if decoded and decoded not in seen and len(seen) < _MOST_FORMS:
                        seen.add(decoded)
                        after.append(decoded)
                        yield decoded
        layer = after


def _decode_backslashes(text: str) -> Iterator[str]:
    """Decode the escapes of JSON, C, Go and Python."""
    if "\\" not in text:
        return

    def character(match: re.Match[str]) -> str:
        *digits, octal, other = match.groups()
        code = next((int(number, 16) for number in digits if number), None)
        if octal:
            code = int(octal, 8)
        if code is None or code > _LAST_CHARACTER:
            return _CONTROLS.get(other, other or "")
        return chr(code)

    decoded = _BACKSLASHED.sub(character, text)
    # JSON escapes characters above U+FFFF as surrogate pairs.
    yield decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode_percent(text: str) -> Iterator[str]:
    """Decode the escapes of URLs and forms."""
    if "%" in text or "+" in text:
        from urllib.parse import unquote, unquote_plus

        yield unquote(text)
        yield unquote_plus(text)


def _decode_entities(text: str) -> Iterator[str]:
    """Decode the escapes of HTML and XML."""
    if "&" in text:
        from html import unescape

        yield unescape(text)


def _decode_quoted_printable(text: str) -> Iterator[str]:
    """Decode the escapes of mails."""
    if "=" in text:
        yield _QUOTED_PRINTABLE.sub(lambda m: chr(int(m[1], 16)) if m[1] else "", text)


def _decode_misread(text: str) -> Iterator[str]:
    """Decode UTF-8 that was read as Latin-1, and escapes of its bytes."""
    if not text.isascii():
        yield text.encode("latin-1", "ignore").decode("utf-8", "ignore")


def _decode_base64(text: str) -> Iterator[str]:
    """Decode base64 that may start, end and be split at any character."""
    runs = [*_BASE64.findall("".join(text.split()))]
    for start in range(4 if runs else 0):
        decoded = b"\n".join(filter(None, (_decode_base64_run(run[start:]) for run in runs)))
        yield decoded.decode("utf-8", "ignore")


def _decode_base64_run(run: str) -> bytes:
    """Return the bytes of base64; empty if it is malformed."""
    digits = run.replace("-", "+").replace("_", "/")
    if len(digits) % 4 == 1:
        digits = digits[:-1]
    try:
        return binascii.a2b_base64(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        return b""


def _decode_numbers(text: str) -> Iterator[str]:
    """Decode dumps of bytes in hexadecimal digits, or in decimal numbers as printed by Go."""
    for start in range(2):
        runs = [run[start:] for run in _HEX.findall(_BETWEEN_HEX.sub("", text))]
        data = b"\n".join(bytes.fromhex(run[: len(run) // 2 * 2]) for run in runs)
        yield data.decode("utf-8", "ignore")
    for run in _NUMBERS.findall(text):
        numbers = (int(number) for number in re.findall(r"\d+", run))
        yield bytes(number for number in numbers if number < 256).decode("utf-8", "ignore")


_DECODERS: tuple[Callable[[str], Iterator[str]], ...] = (
    _decode_backslashes,
    _decode_percent,
    _decode_entities,
    _decode_quoted_printable,
    _decode_misread,
    _decode_base64,
    _decode_numbers,
)
