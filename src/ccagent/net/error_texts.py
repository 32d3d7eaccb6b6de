"""Texts for errors: the reason of a missing connection or answer, and what a receiver says of it.

The first follows the URL in a line: `nats://127.0.0.1:4222: connection refused`. The second is
shown only if it can't contain a secret. A receiver may repeat a login, and escape, encode or cut it
in any way. Therefore every decoded form of its text is searched for parts of the secrets sent to
it.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import socket
from typing import TYPE_CHECKING

from ccagent.log import printable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Sequence

_TLS_ALERTS = {
    "certificate required": (
        "the server requires a client certificate (certificate-file, key-file)"
    ),
    "alert unknown ca": "the server does not trust the client certificate",
    "alert bad certificate": "the server does not trust the client certificate",
}

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

WITHHELD = "(its text is withheld: it may repeat a secret)"
"""Replacement for a text that may contain a part of a secret."""

_SHOWN = 200
_SEARCHED = 1000
"""Number of searched characters. It exceeds the shown ones: a form of a shown part must not be
cut."""

_PART = 4
"""The maximum number of consecutive characters of a secret that may be shown, plus one."""

_ENCODED_PART = 8
"""The same for a secret in base64, even in lower case."""


def explain_network_error(error: BaseException, seconds: float) -> str:
    """Return the reason for a missing connection or answer; empty for other kinds of errors.

    seconds: the time limit.
    """
    import ssl  # its import takes milliseconds

    match error:
        case socket.gaierror():
            return f"the name does not resolve: {error.strerror}"
        case UnicodeError() if not isinstance(error, UnicodeDecodeError):
            return "the name does not resolve: it is not a host name"
        case ssl.SSLCertVerificationError():
            return explain_certificate(error.verify_message)
        case ssl.SSLEOFError():
            return "TLS was broken off: the server may not speak TLS, or require a key-file"
        case ssl.SSLError():
            return _explain_tls_error(error)
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return f"no answer within {seconds:g} s"
        case _:
            return ""


def explain_listening(error: OSError) -> str:
    """Return address and reason of a server that can't listen, or the error's own text."""
    found = re.search(r"\('([^']*)', (\d+)", str(error))
    if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES} or not found:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"{found[1]}:{found[2]}: {os.strerror(error.errno).lower()}"


def explain_certificate(reason: str) -> str:
    """Return the text for a refused certificate of a server, with the reason."""
    return f"its certificate can't be trusted: {reason}"


def explain_tls_alert(text: str) -> str:
    """Return the meaning of an alert about ccagent's certificate; empty for any other text."""
    text = text.lower().replace("_", " ")
    return next((meaning for alert, meaning in _TLS_ALERTS.items() if alert in text), "")


def _explain_tls_error(error: ssl.SSLError) -> str:
    text = str(error.reason or error.strerror or error).lower().replace("_", " ")
    if meaning := explain_tls_alert(text):
        return meaning
    hint = "" if "alert" in text else "; perhaps the server does not speak TLS"
    return f"TLS failed: {text}{hint}"


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


def hide_secrets(text: str, secrets: Iterable[str], own: Iterable[str] = ()) -> str:
    """Return a receiver's text as one short line, or WITHHELD if it may contain a secret.

    own: names of ccagent, such as hosts and topics. A text may contain them even if they are
    similar to a secret.
    """
    text = text.strip()[:_SEARCHED]
    if repeats_secret(text, secrets, own):
        return WITHHELD
    return printable(text)[:_SHOWN]


def repeats_secret(text: str, secrets: Iterable[str], own: Iterable[str] = ()) -> bool:
    """Return whether a text contains a secret or a part of one, in any form.

    A part completely inside a name of `own` does not count.
    """
    sought = [secret for secret in secrets if secret]
    if not sought or not text:
        return False
    whole = [_normalise(secret) for secret in sought]
    names = [name for name in map(_normalise, own) if not any(secret in name for secret in whole)]
    parts = {part for secret in whole for part in _list_parts(secret, _PART)}
    parts |= {part for secret in sought for part in _list_encoded_parts(secret)}
    letters = [bare for bare in map(_squeeze, whole) if len(bare) >= _PART]
    squeezed = {part for bare in letters for part in _list_parts(bare, _PART)}
    squeezed_names = [*map(_squeeze, names)]
    for form in map(_normalise, decode_all(text)):
        bare = _squeeze(form)
        if _is_any_shown(parts, form, names) or _is_any_shown(squeezed, bare, squeezed_names):
            return True
        for name in names:
            form = form.replace(name, "")  # noqa: PLW2901 - a name may stand within a secret
        if any(part in _squeeze(form) for part in squeezed):
            return True
    return False


def _is_any_shown(parts: Iterable[str], text: str, names: Sequence[str]) -> bool:
    """Return whether a text contains one of the parts outside of a name.

    A part that starts in a name and ends after it counts: the name is then a piece of a secret.
    """
    return any(
        not any(_lies_inside(name, text, at, part) for name in names)
        for part in parts
        if part in text
        for at in _find_all(part, text)
    )


def _lies_inside(name: str, text: str, at: int, part: str) -> bool:
    """Return whether the part at a position of a text is inside a name."""
    return any(
        before <= at and text.startswith(name, at - before) for before in _find_all(part, name)
    )


def _find_all(part: str, text: str) -> Iterator[int]:
    """Yield the positions of a part in a text, including overlaps."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _normalise(text: str) -> str:
    """Return a text with normalised case and width."""
    if text.isascii():
        return text.lower()
    from unicodedata import normalize

    return normalize("NFKC", text).casefold()


def _squeeze(text: str) -> str:
    """Return only the letters and digits of a text."""
    return "".join(filter(str.isalnum, text))


def _list_parts(secret: str, size: int) -> Iterator[str]:
    """Yield the parts of a secret of `size` characters; the whole secret if it is shorter."""
    if secret:
        yield from (secret[at : at + size] for at in range(max(1, len(secret) - size + 1)))


def _list_encoded_parts(secret: str) -> Iterator[str]:
    """Yield parts of a secret in base64, for any position in the encoded text."""
    data = secret.encode("utf-8", "surrogatepass")
    for before in range(3):
        # The first and last characters depend on the text beside the secret.
        text = base64.b64encode(bytes(before) + data).decode("ascii")[4:].rstrip("=")[:-1].lower()
        if len(text) >= _ENCODED_PART:
            yield from _list_parts(text, _ENCODED_PART)
