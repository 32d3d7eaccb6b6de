"""Text of a receiver, shown only if it can't hold a secret that was sent to that receiver.

A receiver that repeats a login may escape, encode or cut it in any way. So its text is searched
in every form that it can be decoded to, for any part of a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WITHHELD = "(its text is withheld: it may repeat a secret)"
"""What is shown instead of a text that may hold a part of a secret."""

_SHOWN = 200
_SEARCHED = 1000
"""Characters that are searched; more than are shown, so that no form is cut where it is shown."""

_PART = 4
"""Characters of a secret that must not be shown."""

_ENCODED_PART = 8
"""Characters of a secret in base64 that must not be shown, even in lower case."""

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


def peer_text(text: str, secrets: Iterable[str], own: Iterable[str] = ()) -> str:
    """Return what a receiver has sent as one short line, or WITHHELD if it may hold a secret.

    `own` are names of ours, such as hosts and topics, that a text may hold though they resemble a
    secret.
    """
    text = text.strip()[:_SEARCHED]
    if repeats_secret(text, secrets, own):
        return WITHHELD
    return printable(text)[:_SHOWN]


def repeats_secret(text: str, secrets: Iterable[str], own: Iterable[str] = ()) -> bool:
    """Return whether a text holds a secret, or a part of one, in any form.

    A part that lies wholly inside a name of `own` does not count.
    """
    sought = [secret for secret in secrets if secret]
    if not sought or not text:
        return False
    whole = [_normal(secret) for secret in sought]
    names = [name for name in map(_normal, own) if not any(secret in name for secret in whole)]
    parts = {part for secret in whole for part in _parts(secret, _PART)}
    parts |= {part for secret in sought for part in _encoded(secret)}
    letters = [bare for bare in map(_squeezed, whole) if len(bare) >= _PART]
    squeezed = {part for bare in letters for part in _parts(bare, _PART)}
    squeezed_names = [*map(_squeezed, names)]
    for form in map(_normal, _forms(text)):
        bare = _squeezed(form)
        if _is_any_shown(parts, form, names) or _is_any_shown(squeezed, bare, squeezed_names):
            return True
        for name in names:
            form = form.replace(name, "")  # noqa: PLW2901 - a name may stand within a secret
        if any(part in _squeezed(form) for part in squeezed):
            return True
    return False


def _is_any_shown(parts: Iterable[str], text: str, names: Sequence[str]) -> bool:
    """Return whether a text holds one of these parts anywhere but inside a name.

    A part that begins in a name and ends beyond it is shown: the name is then a piece of a secret.
    """
    return any(
        not any(_lies_inside(name, text, at, part) for name in names)
        for part in parts
        if part in text
        for at in _places(part, text)
    )


def _lies_inside(name: str, text: str, at: int, part: str) -> bool:
    """Return whether the part of a text at a place belongs to a name that stands there."""
    return any(
        before <= at and text.startswith(name, at - before) for before in _places(part, name)
    )


def _places(part: str, text: str) -> Iterator[int]:
    """Return where a text holds a part, overlaps included."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _normal(text: str) -> str:
    """Return a text without differences of case and of width."""
    if text.isascii():
        return text.lower()
    from unicodedata import normalize

    return normalize("NFKC", text).casefold()


def _squeezed(text: str) -> str:
    """Return the letters and digits of a text."""
    return "".join(filter(str.isalnum, text))


def _parts(secret: str, size: int) -> Iterator[str]:
    """Return the parts of a secret that must not be shown: the whole if it is shorter."""
    if secret:
        yield from (secret[at : at + size] for at in range(max(1, len(secret) - size + 1)))


def _encoded(secret: str) -> Iterator[str]:
    """Return parts of a secret in base64, wherever it stands in what was encoded."""
    data = secret.encode("utf-8", "surrogatepass")
    for before in range(3):
        # The first and last characters depend on what stands beside the secret.
        text = base64.b64encode(bytes(before) + data).decode("ascii")[4:].rstrip("=")[:-1].lower()
        if len(text) >= _ENCODED_PART:
            yield from _parts(text, _ENCODED_PART)


def _forms(text: str) -> Iterator[str]:
    """Return a text in every form that it can be decoded to, layer by layer."""
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


def _backslashed(text: str) -> Iterator[str]:
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
    # JSON escapes characters above U+FFFF as two halves.
    yield decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _percent(text: str) -> Iterator[str]:
    """Decode what stands in URLs and forms."""
    if "%" in text or "+" in text:
        from urllib.parse import unquote, unquote_plus

        yield unquote(text)
        yield unquote_plus(text)


def _entities(text: str) -> Iterator[str]:
    """Decode what stands in HTML and XML."""
    if "&" in text:
        from html import unescape

        yield unescape(text)


def _quoted_printable(text: str) -> Iterator[str]:
    """Decode what stands in mails."""
    if "=" in text:
        yield _QUOTED_PRINTABLE.sub(lambda m: chr(int(m[1], 16)) if m[1] else "", text)


def _misread(text: str) -> Iterator[str]:
    """Decode UTF-8 that was read as Latin-1, and escapes that stand for its bytes."""
    if not text.isascii():
        yield text.encode("latin-1", "ignore").decode("utf-8", "ignore")


def _base64(text: str) -> Iterator[str]:
    """Decode base64 that may begin, end and be broken anywhere."""
    runs = [*_BASE64.findall("".join(text.split()))]
    for start in range(4 if runs else 0):
        decoded = b"\n".join(filter(None, (_unbased(run[start:]) for run in runs)))
        yield decoded.decode("utf-8", "ignore")


def _unbased(run: str) -> bytes:
    digits = run.replace("-", "+").replace("_", "/")
    if len(digits) % 4 == 1:
        digits = digits[:-1]
    try:
        return binascii.a2b_base64(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        return b""


def _hexadecimal(text: str) -> Iterator[str]:
    """Decode dumps of bytes in hexadecimal and, as Go prints them, in decimal digits."""
    for start in range(2):
        runs = [run[start:] for run in _HEX.findall(_BETWEEN_HEX.sub("", text))]
        data = b"\n".join(bytes.fromhex(run[: len(run) // 2 * 2]) for run in runs)
        yield data.decode("utf-8", "ignore")
    for run in _NUMBERS.findall(text):
        numbers = (int(number) for number in re.findall(r"\d+", run))
        yield bytes(number for number in numbers if number < 256).decode("utf-8", "ignore")


_DECODERS: tuple[Callable[[str], Iterator[str]], ...] = (
    _backslashed,
    _percent,
    _entities,
    _quoted_printable,
    _misread,
    _base64,
    _hexadecimal,
)
