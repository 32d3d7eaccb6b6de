"""Templates of topics, subjects and URLs: text with placeholders such as `{cluster}`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.records.message import Message

PLACEHOLDERS = ("prefix", "cluster", "node", "kind")
"""The values of a message that a template may contain."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def check_template(key: str, template: str, known: tuple[str, ...] = PLACEHOLDERS) -> str:
    """Return a template with `x` in place of its placeholders.

    Raise ConfigurationError with the configuration key if the template has other braces.
    """
    rest = re.sub(r"\{(?:" + "|".join(known) + r")\}", "x", template)
    if "{" in rest or "}" in rest:
        names = ", ".join(f"{{{name}}}" for name in known)
        raise ConfigurationError(f"{key}: the placeholders are {names}; no other braces")
    return rest


def get_values(message: Message) -> dict[str, str]:
    """Return the values of a message by placeholder."""
    return {
        "prefix": message.prefix,
        "cluster": message.cluster,
        "node": message.node,
        "kind": message.kind,
    }


def fill_template(template: str, values: Mapping[str, str], separator: str = "") -> str:
    """Return a template with values. The separator after an empty prefix is removed."""
    if separator and not values["prefix"]:
        template = template.replace("{prefix}" + separator, "")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
