"""Names of topics: by default `[prefix.]<cluster>.<kind>`, or by a template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.records.message import Message

_VALID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_PLACEHOLDER = re.compile(r"\{prefix\}\.|\{.*?\}")
_PLACEHOLDERS = {"{cluster}", "{node}", "{kind}", "{prefix}", "{prefix}."}


def check_template(template: str) -> None:
    """Refuse a template that can't give topics. Raises ConfigurationError."""
    if set(_PLACEHOLDER.findall(template)) - _PLACEHOLDERS:
        raise ConfigurationError("topic: knows {cluster}, {node}, {kind} and {prefix} in braces")
    if template and not is_topic(_PLACEHOLDER.sub("x", template)):
        raise ConfigurationError("topic: letters, digits, '.', '_' and '-' only, 249 at most")


def topic_of(template: str, message: Message) -> str:
    """Fill the template; an empty prefix goes with the dot behind it."""
    if not template:
        return message.topic
    prefix = message.prefix
    values = {
        "{cluster}": message.cluster,
        "{node}": message.node,
        "{kind}": message.kind,
        "{prefix}": prefix,
        "{prefix}.": f"{prefix}." if prefix else "",
    }
    return _PLACEHOLDER.sub(lambda match: values[match[0]], template)


def is_topic(name: str) -> bool:
    """Tell whether a name can be that of a topic."""
    return _VALID.fullmatch(name) is not None
