"""Names of topics of Kafka: by default `[prefix.]<cluster>.<kind>`, or by a template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError
from ccagent.transports import templates

if TYPE_CHECKING:
    from ccagent.records.message import Message

_VALID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def check_template(template: str) -> None:
    """Check a template of a topic. Raise ConfigurationError."""
    if template and not is_topic(templates.check_template("topic", template)):
        raise ConfigurationError("topic: letters, digits, '.', '_' and '-' only, 249 at most")


def fill_topic(template: str, message: Message) -> str:
    """Return the topic of a message; the dot after an empty prefix is left out."""
    if not template:
        return message.topic
    return templates.fill_template(template, templates.get_values(message), ".")


def is_topic(name: str) -> bool:
    """Return whether a name can be that of a topic."""
    return _VALID.fullmatch(name) is not None
