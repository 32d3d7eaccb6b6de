"""Subjects: names of tokens with dots between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.records.message import Message

_DEFAULT = "{prefix}.{cluster}.{kind}"
_PLACEHOLDER = re.compile(r"\{(?:cluster|node|kind|prefix)\}")
_TOKEN = re.compile(r"[\w!#$%&'+,/:;=?@^`|~-]+", re.ASCII)


def check_subject(template: str) -> None:
    """Refuse a template that gives no subject. Raises ConfigurationError."""
    if not template:
        return
    if "{" in _PLACEHOLDER.sub("", template):
        raise ConfigurationError("subject: its placeholders are {cluster} {node} {kind} {prefix}")
    if template == "{prefix}":
        raise ConfigurationError("subject: {prefix} alone may be empty")
    if not all(map(_TOKEN.fullmatch, _PLACEHOLDER.sub("x", template).split("."))):
        raise ConfigurationError("subject: tokens with dots between them, no spaces, no wildcards")


def subject_of(message: Message, template: str) -> str:
    """Give the subject of a message; dots in names separate tokens, empty tokens are left out."""
    values = {
        "{prefix}": message.prefix,
        "{cluster}": message.cluster,
        "{node}": message.node,
        "{kind}": message.kind,
    }
    subject = _PLACEHOLDER.sub(lambda found: _cleaned(values[found[0]]), template or _DEFAULT)
    return ".".join(filter(None, subject.split(".")))


def _cleaned(value: str) -> str:
    """Replace what NATS would take for something else."""
    if value.isascii() and value.replace("-", "").replace(".", "").isalnum():
        return value
    return "".join("_" if c in " *>" or not c.isprintable() else c for c in value)
