"""Parser for /proc/vmstat."""

from __future__ import annotations

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT


def parse_vmstat(content: bytes) -> dict[str, int]:
    """Return events, pages or KiB by name. Raise UnparsableError for other text."""
    words = content.decode("ascii", "replace").split()
    try:
        found = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    except ValueError as error:
        raise UnparsableError(f"not names and numbers: {content[:80]!r}") from error
    if not found or min(found.values()) < 0 or max(found.values()) > LARGEST_UINT:
        raise UnparsableError(f"no numbers, or one out of range: {content[:80]!r}")
    return found
