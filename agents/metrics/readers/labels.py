"""Names of sensors, mounts and file systems as tag values."""

from __future__ import annotations

LONGEST_LABEL = 255


def clean_label(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return a name as a tag value: printable ASCII of at most `longest` characters.

    A question mark replaces every other character, quotation marks and backslashes. The result is
    empty if nothing is left.
    """
    return "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '\\"' else "?"
        for letter in text.strip()
    )[:longest].strip()
