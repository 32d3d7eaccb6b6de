"""Names of Kafka topics: by default `[prefix.]<cluster>.<kind>`, or from a template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.transports import templates

if TYPE_CHECKING:
    from ccagent.records.message import Message

_VALID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def check_template(template: str) -> None:
    """Check a template of a topic. Raise ConfigurationError if it is invalid."""
    if template and not is_topic(templates.check_template("topic", template)):
        raise ConfigurationError("topic: letters, digits, '.', '_' and '-' only, 249 at most")


def fill_topic(template: str, message: Message) -> str:
    """Return the topic of a message. The dot after an empty prefix is omitted."""
    if not template:
        return message.topic
    return templates.fill_template(template, templates.get_values(message), ".")


def is_topic(name: str) -> bool:
    """Return whether a name is valid for a topic."""
    return _VALID.fullmatch(name) is not None
