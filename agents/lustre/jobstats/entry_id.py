"""Entry identifiers: job, user, host and program in the format of a client's `jobid_name`.

Codes: %e executable, %h host name, %H host name up to the first dot, %j job id, %u user id, %g
group id, %p process id.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(rb"\\x([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(rb'"(?:[A-Za-z0-9.@_:/-]|\\x[0-9A-F]{2})*+"')
_PLAIN = re.compile(rb"[ -\[\]-~]*+")

_PARTS = {
    "e": r"(?P<executable>.+)",
    "h": r"(?P<nodename>[A-Za-z0-9][A-Za-z0-9._-]*)",
    "H": r"(?P<nodename>[A-Za-z0-9][A-Za-z0-9_-]*)",
    "j": r"(?P<job_id>[^\s:]*?)",
    "u": r"(?P<user_id>[0-9]{1,10})",
    "g": r"(?P<group_id>[0-9]{1,10})",
    "p": r"(?P<process_id>[0-9]{1,10})",
}
_NUMBERS = ("user_id", "group_id", "process_id")
_DIGITS = len(str(2**63))
_JOB_ALONE = re.compile(r"[^0-9\\]*[0-9][^\\]*")


def canonical(raw: bytes, *, is_escaped: bool = True) -> str:
    r"""Return the canonical printable text of an id, independent of the server's version.

    is_escaped: the version prints ids with special characters in double quotes, escaped as `\xHH`.
    Other versions print double quotes only if they are part of the id; some vendors' versions
    escape, too. Different ids have different texts: a backslash is doubled, and each byte that is
    unprintable or invalid UTF-8 becomes `\xHH`.
    """
    if len(raw) > 1 and raw[:1] == raw[-1:] == b'"' and (is_escaped or _is_escaped(raw)):
        return unquote(raw[1:-1])
    return _as_text(raw)


def unquote(raw: bytes) -> str:
    """Return the printable text of an id that a server printed between double quotes."""
    if b"\\" in raw:
        # The usual escape is a colon. Replacing it creates no new escape.
        raw = raw.replace(b"\\x3A", b":")
        if b"\\" in raw:
            raw = _ESCAPE.sub(_unescape, raw)
            return _as_text(raw)
    # Same result as _as_text, in a third of the time.
    if raw.isascii():
        text = raw.decode("ascii")
        if text.isprintable():
            return text
    return _as_text(raw)


def _as_text(raw: bytes) -> str:
    if _PLAIN.fullmatch(raw):
        return raw.decode("ascii")
    return "".join(map(_printable, raw.decode("utf-8", "surrogateescape")))


def _is_escaped(raw: bytes) -> bool:
    return b"\\x" in raw and _ESCAPED.fullmatch(raw) is not None


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)])


def _printable(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


class IdFormat:
    """A format such as `%j:%u:%H`. Raise ValueError if it is invalid."""

    def __init__(self, text: str) -> None:
        pattern: list[str] = []
        used: set[str] = set()
        position = 0
        while position < len(text):
            if text[position] == "%":
                code = text[position + 1 : position + 2]
                part = _PARTS.get(code)
                if part is None:
                    raise ValueError(f"{text!r}: %{code} is none of %e %h %H %j %u %g %p")
                name = part[4 : part.index(">")]
                if name in used:
                    raise ValueError(f"{text!r}: {name} occurs twice")
                used.add(name)
                pattern.append(part)
                position += 2
            else:
                pattern.append(re.escape(text[position]))
                position += 1
        if not used:
            raise ValueError(f"{text!r}: none of %e %h %H %j %u %g %p")
        self.text = text
        self._is_free = text == "%j"
        self._fullmatch = re.compile("".join(pattern)).fullmatch
        self._numbers = [name for name in _NUMBERS if name in used]
        self._has_job = "job_id" in used

    def parse(self, entry_id: str) -> dict[str, str | int] | None:
        """Return the parts of an id by name; None if the id has another format.

        An executable may contain any character, so it matches as much as possible. A numeric job id
        becomes a number, but `0123` stays a text. A job id alone must have a digit and no
        unprintable character; otherwise it is a part of an id of another format.
        """
        match = self._fullmatch(entry_id)
        if match is None or (self._is_free and not _JOB_ALONE.fullmatch(entry_id)):
            return None
        found: dict[str, str | int] = match.groupdict()
        for name in self._numbers:
            found[name] = int(found[name])
        if self._has_job:
            job = str(found["job_id"])
            if not job:
                del found["job_id"]
            elif job[0] in "123456789" and len(job) < _DIGITS and job.isdigit() and job.isascii():
                found["job_id"] = int(job)
        return found
