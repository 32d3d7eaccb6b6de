"""MQTT topics: levels separated by slashes."""

from __future__ import annotations

import re
from functools import lru_cache

from ccagent.errors import ConfigurationError
from ccagent.transports import templates

_LONGEST = 65535
_WILDCARDS = re.compile(r"[+#\0]")
_NOT_IN_LEVELS = re.compile(r"[+#\0/]")


def check_template(key: str, template: str, *known: str) -> None:
    """Check a template of a topic. Raise ConfigurationError if it is invalid."""
    if not template:
        raise ConfigurationError(f"{key}: must not be empty")
    if _WILDCARDS.search(template):
        raise ConfigurationError(f"{key}: the wildcards + and # can't be part of it")
    templates.check_template(key, template, known)


@lru_cache(maxsize=1000)
def fill_topic(template: str, cluster: str, node: str, kind: str, prefix: str) -> str:
    """Return the topic of a template. Raise ValueError if a value can't be part of a topic.

    The level of an empty prefix is omitted. Only a prefix may have several levels.
    """
    values = {"prefix": prefix, "cluster": cluster, "node": node, "kind": kind}
    for name, value in values.items():
        if f"{{{name}}}" not in template or (name == "prefix" and not value):
            continue
        refused = _WILDCARDS if name == "prefix" else _NOT_IN_LEVELS
        if not value or refused.search(value):
            raise ValueError(f"the {name} {value!r} can't be a level of a topic")
    topic = templates.fill_template(template, values, "/")
    if not 0 < len(topic.encode()) <= _LONGEST:
        raise ValueError(f"a topic has 1 to {_LONGEST} bytes")
    return topic
