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
    "|": "|\\:",  # a long expression may break here
}
"""Characters that roff would take for a command or print as another."""


def escape(text: str) -> str:
    """Write text so that it is printed as it is, wherever on a line it stands."""
    found = _line(" ".join(text.split()))
    return f"\\&{found}" if found.startswith(".") else found


def _character(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() else ""
    return f"\\[u{ord(character):04X}]"


def bold(text: str) -> str:
    """Write text in bold."""
    return f"\\fB{escape(text)}\\fR"


def italic(text: str) -> str:
    """Write text in italics, as what the user has to replace."""
    return f"\\fI{escape(text)}\\fR"


def title(name: str, section: int, date: str, source: str, manual: str) -> str:
    """Begin a page; `date` is in ISO 8601."""
    # Long words of expressions can't be adjusted to the right margin.
    return f'.TH "{escape(name)}" {section} "{date}" "{escape(source)}" "{escape(manual)}"\n.ad l\n'


def heading(text: str) -> str:
    """Begin a section."""
    return f'.SH "{escape(text)}"\n'


def subheading(text: str) -> str:
    """Begin a part of a section."""
    return f'.SS "{escape(text)}"\n'


def paragraphs(*texts: str) -> str:
    """Write plain text after a heading."""
    return ".PP\n".join(f"{escape(text)}\n" for text in texts)


def entry(term: str, text: str) -> str:
    """Write a term, which is roff already, and plain text below it, indented."""
    return f".TP\n{term}\n{escape(text)}\n"


def example(text: str) -> str:
    """Write lines as they are, after a heading."""
    lines = [f"\\&{_line(line)}" for line in text.splitlines()]
    return ".nf\n.RS 4\n" + "".join(f"{line}\n" for line in lines) + ".RE\n.fi\n"


def _line(line: str) -> str:
    return "".join(_ESCAPES.get(each) or _character(each) for each in line)
