"""NATS subjects: tokens separated by dots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.transports.templates import check_template, fill_template, get_values

if TYPE_CHECKING:
    from ccagent.records.message import Message

_DEFAULT = "{prefix}.{cluster}.{kind}"
_TOKEN = re.compile(r"[\w!#$%&'+,/:;=?@^`|~-]+", re.ASCII)


def check_subject(template: str) -> None:
    """Check a template of a subject. Raise ConfigurationError if it is invalid."""
    if not template:
        return
    example = check_template("subject", template)
    if template == "{prefix}":
        raise ConfigurationError("subject: {prefix} alone may be empty")
    if not all(map(_TOKEN.fullmatch, example.split("."))):
        raise ConfigurationError("subject: tokens with dots between them, no spaces, no wildcards")


def fill_subject(message: Message, template: str) -> str:
    """Return the subject of a message. Dots in names separate tokens. Empty tokens are omitted."""
    values = {name: _clean_value(value) for name, value in get_values(message).items()}
    subject = fill_template(template or _DEFAULT, values)
    return ".".join(filter(None, subject.split(".")))


def _clean_value(value: str) -> str:
    """Return a value with `_` in place of characters with a meaning in subjects."""
    if value.isascii() and value.replace("-", "").replace(".", "").isalnum():
        return value
    return "".join("_" if c in " *>" or not c.isprintable() else c for c in value)
