"""Text for man pages, in the macros of man(7)."""

from __future__ import annotations

_ESCAPES = {
    "\\": "\\(rs",
    "-": "\\-",
    "'": "\\(aq",
    '"': "\\(dq",
    "`": "\\(ga",
    "^": "\\(ha",
    "~": "\\(ti",
    "|": "|\\:",  # permits a line break in a long expression
}
"""Characters that roff would interpret as a command or replace."""


def escape(text: str) -> str:
    """Return text with roff's special characters escaped, at any position of a line."""
    found = _line(" ".join(text.split()))
    return f"\\&{found}" if found.startswith(".") else found


def _character(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else ""
    return f"\\[u{ord(character):04X}]"


def bold(text: str) -> str:
    """Return text in bold."""
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    """Return text in italics, for placeholders."""
    return f"\\fI{escape(text)}\\fR"


def title(name: str, section: int, date: str, source: str, manual: str) -> str:
    """Return the start of a page. date: in ISO 8601."""
    # Lines with long expressions can't be adjusted to the right margin.
    return f'.TH "{escape(name)}" {section} "{date}" "{escape(source)}" "{escape(manual)}"\n.ad l\n'


def heading(text: str) -> str:
    """Return the heading of a section."""
    return f'.SH "{escape(text)}"\n'


def subheading(text: str) -> str:
    """Return the heading of a subsection."""
    return f'.SS "{escape(text)}"\n'


def paragraphs(*texts: str) -> str:
    """Return plain text after a heading."""
    return ".PP\n".join(f"{escape(text)}\n" for text in texts)


def entry(term: str, text: str) -> str:
    """Return a term in roff, with plain text indented below it."""
    return f".TP\n{term}\n{escape(text)}\n"


def example(text: str) -> str:
    """Return unchanged lines after a heading."""
    lines = [f"\\&{_line(line)}" for line in text.splitlines()]
    return ".nf\n.RS 4\n" + "".join(f"{line}\n" for line in lines) + ".RE\n.fi\n"


def _line(line: str) -> str:
    return "".join(_ESCAPES.get(each) or _character(each) for each in line)
